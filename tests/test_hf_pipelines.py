"""Exported runs read by transformers alone: its pipelines do what the zoo does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo import config, generation, models
from zoo.generation import prompting
from zoo.hf.__main__ import main
from zoo.registry import build
from zoo.training import module

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

DECODERS = [
    "gpt2",
    "llama3_8b",
    "mistral_7b",
    "qwen3_0_6b",
    "smollm2_135m",
    "olmo2_7b",
    "gemma2_2b",
    "mixtral_8x7b",
    "deepseek_v2_lite",
    "deepseek_v3",
]
ENCODERS = ["bert_base", "roberta_base", "modernbert_base"]
BOTH = ["t5_small", "t5_v1_1_base", "bart_base"]
BYTES = ["tokenizer=byte"]
PAIRS = [
    "tokenizer=bpe",
    "tokenizer.vocab=300",
]  # of which the text below has fewer, so that ids are left over
TEXTS = ["the quick brown fox — jumps over", "the lazy dog! the lazy fox!\n"]
PROMPTS = [
    "the lazy",
    "!",
    "the quick brown fox! — jumps",
]  # of different lengths, and with the first byte of the pairs
NEW = 10


def exported(folder: Path, model: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of this model as its end leaves it, with weights that tell apart what they are given,
    exported by the command.
    """
    made = config.compose([f"model={model}", "size=tiny", "arch.dim=32", "arch.length=64", *words])
    tokenizer = build("tokenizer", made["tokenizer"])
    tokenizer.train(TEXTS)
    ours, draw = models.build(made).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(
                0.2 * torch.randn(parameter.shape, generator=draw)
                + (parameter.ndim == 1) * parameter
            )
    checkpoint = {
        "state_dict": {f"model.{name}": tensor for name, tensor in ours.state_dict().items()}
    }
    module.LMModule(made, ours, tokenizer).on_save_checkpoint(checkpoint)
    torch.save(checkpoint, folder / "last.ckpt")
    monkeypatch.setattr(
        "sys.argv", ["zoo.hf", f"ckpt={folder / 'last.ckpt'}", f"out={folder / 'out'}"]
    )
    main()
    return prompting.prompter(made, ours, tokenizer)


@pytest.mark.parametrize(
    ("model", "words"), [*((model, PAIRS) for model in DECODERS), ("gpt2", BYTES)], ids=str
)
def test_text_generation_pipeline_matches_the_zoo(
    model: str, words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    ours = exported(tmp_path, model, words, monkeypatch)
    pipeline = transformers.pipeline("text-generation", model=str(tmp_path / "out"), device="cpu")
    how = {"max_new_tokens": NEW, "do_sample": False, "return_full_text": False}
    expected = [ours.generate(prompt, tokens=NEW, temperature=0) for prompt in PROMPTS]
    assert len(set(expected)) == len(PROMPTS), "weights that tell prompts apart"
    assert [pipeline(prompt, **how)[0]["generated_text"] for prompt in PROMPTS] == expected
    assert [
        answer[0]["generated_text"] for answer in pipeline(PROMPTS, batch_size=len(PROMPTS), **how)
    ] == expected


@pytest.mark.parametrize(
    ("model", "words"), [*((model, PAIRS) for model in ENCODERS), ("bert_base", BYTES)], ids=str
)
def test_fill_mask_pipeline_matches_the_zoo(
    model: str, words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    ours = exported(tmp_path, model, words, monkeypatch)
    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), device="cpu")
    vocab = ours.tokenizer.vocab
    ids = pipeline.tokenizer.get_vocab().values()
    assert sorted(ids) == list(range(len(pipeline.tokenizer))), (
        "a name for each id, so that none is cut off by its number"
    )
    prompts = [f"{prompt}[MASK]! over" for prompt in PROMPTS]
    for prompt, batched in zip(
        prompts, pipeline(prompts, batch_size=len(prompts), top_k=vocab), strict=True
    ):
        asked = ours.objective.encode_prompt(
            [ours.tokenizer.encode(part) for part in prompt.split("[MASK]")]
        )
        at = torch.from_numpy(np.flatnonzero(asked == ours.objective.mask))
        expected = generation.at_places(ours.model, torch.from_numpy(asked)[None], at, vocab)[0]
        for answer in (pipeline(prompt, top_k=vocab), batched):
            found = {one["token"]: one["score"] for one in answer if one["token"] < vocab}
            scores = torch.tensor(list(found.values()))
            torch.testing.assert_close(
                scores / scores.sum(), expected[list(found)], rtol=1e-3, atol=1e-4
            )
        best = next(one for one in batched if one["token"] < vocab)
        assert (
            best["token_str"] == ours.fill_mask(prompt, top=1)[0][0][0]
            or best["token"] == ours.tokenizer.eot
        )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        *((model, PAIRS) for model in BOTH),
        ("t5_small", BYTES),
        ("t5_small", [*PAIRS, "objective=seq2seq"]),
    ],
    ids=str,
)
def test_encoder_decoder_pipeline_matches_the_zoo(
    model: str, words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    ours = exported(tmp_path, model, words, monkeypatch)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    gap = "<extra_id_0>" if "<extra_id_0>" in read.get_vocab() else ""
    written = theirs.generate(
        **read([prompt + gap for prompt in PROMPTS], padding=True, return_tensors="pt"),
        max_new_tokens=NEW,
        do_sample=False,
    )
    for prompt, row in zip(PROMPTS, written, strict=True):
        source, begin, _ = ours.objective.encode_prompt([ours.tokenizer.encode(prompt)])
        expected = generation.generate(
            ours.model,
            torch.tensor([begin[:1]]),
            NEW,
            temperature=0,
            end=ours.tokenizer.eot,
            source=torch.tensor([source]),
        )[0].tolist()
        alone = theirs.generate(
            **read(prompt + gap, return_tensors="pt"), max_new_tokens=NEW, do_sample=False
        )[0].tolist()
        assert alone == [begin[0], *expected]
        assert row.tolist()[: len(alone)] == alone
    if gap:  # as the zoo asks: the decoder starts with the first sentinel, and ends at the next
        source, begin, end = ours.objective.encode_prompt([ours.tokenizer.encode(prompt)])
        assert [
            read.convert_tokens_to_ids(token)
            for token in ("<|start|>", "<extra_id_0>", "<extra_id_1>")
        ] == [*begin, end]
        row = theirs.generate(
            **read(prompt + gap, return_tensors="pt"),
            decoder_input_ids=torch.tensor([begin]),
            eos_token_id=end,
            max_new_tokens=NEW,
            do_sample=False,
        )[0].tolist()
        text = "".join(read.decode(row, skip_special_tokens=True))
        assert prompt + text == ours.generate(prompt, tokens=NEW, temperature=0)
