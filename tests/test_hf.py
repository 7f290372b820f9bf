"""Conversion judged by transformers: equal logits with every mask, and an exact round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from zoo import hf
from zoo.errors import ZooError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCAB, LENGTH = 67, 20
# odd on purpose: a vocabulary that is no multiple of 8, three KV groups, heads wider than dim/heads
DECODER = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
}
T5 = {
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 56,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": VOCAB,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
BART = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 56,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=16)
DEEP_YARN = rope(
    "yarn", factor=40.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.7
)
LATENT = {
    key: value for key, value in DECODER.items() if key not in ("head_dim", "num_key_value_heads")
} | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 7,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
OLMO = {key: value for key, value in DECODER.items() if key != "head_dim"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DECODER | LLAMA3 | {"attention_bias": True, "mlp_bias": True}),
    "llama_linear_tied": (
        "LlamaForCausalLM",
        DECODER | rope("linear", factor=4.0) | {"tie_word_embeddings": True},
    ),
    "llama_yarn": ("LlamaForCausalLM", DECODER | YARN),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": 5}),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "qwen3_windows": (
        "Qwen3ForCausalLM",
        DECODER | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "olmo2": ("Olmo2ForCausalLM", OLMO),
    "gemma2": (
        "Gemma2ForCausalLM",
        DECODER
        | {
            "sliding_window": 5,
            "query_pre_attn_scalar": 17,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attn_implementation": "eager",
        },
    ),
    "mixtral": ("MixtralForCausalLM", DECODER | {"num_local_experts": 4, "sliding_window": 6}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        LATENT | {"q_lora_rank": None, "n_shared_experts": 2} | DEEP_YARN,
    ),
    "deepseek_v2_groups": (
        "DeepseekV2ForCausalLM",
        LATENT
        | {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        LATENT | {"n_group": 4, "topk_group": 2, "n_shared_experts": 1} | DEEP_YARN,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "vocab_size": VOCAB,
            "n_positions": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "bert": ("BertForMaskedLM", ENCODER),
    "bert_pooler": ("BertModel", ENCODER),
    "roberta": ("RobertaForMaskedLM", ENCODER | {"max_position_embeddings": 42, "pad_token_id": 1}),
    "modernbert": (
        "ModernBertForMaskedLM",
        ENCODER
        | {
            "num_hidden_layers": 5,
            "local_attention": 6,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5_v1_1": (
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": ("BartForConditionalGeneration", BART),
}
EVERY = pytest.mark.parametrize("case", CASES)
LEFT = torch.tensor([[False] * 5 + [True] * 15, [True] * 20])


def theirs(case: str, scale: float = 5.0) -> Any:
    """A model of transformers with random weights, `scale` times as large as they start."""
    name, numbers = CASES[case]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**numbers)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn(parameter.shape) * (0.02 * scale if parameter.ndim > 1 else 0.3)
            )
    return model


def tokens(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, (2, length), generator=torch.Generator().manual_seed(seed))


def pairs(case: str, model: Any, ours: Any, mask: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Their outputs and ours where there are tokens. Where theirs count positions from the padding
    on, ours are message so.
    """
    given: dict[str, Any] = {} if mask is None else {"attention_mask": mask.long()}
    real = torch.ones(2, LENGTH, dtype=torch.bool) if mask is None else mask
    x = tokens()
    if case in ("t5", "t5_v1_1", "bart"):
        y = tokens(12, seed=1)
        memory = ours.encode(x, mask, positions=torch.arange(LENGTH)[None])
        yield (
            model(input_ids=x, decoder_input_ids=y, **given).logits,
            ours.logits(ours.decode(y, memory, mask)),
        )
        return
    if case == "roberta":
        x = x.masked_fill(~real, 1)  # by which it knows its padding
    elif mask is not None:
        given["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    output = model(input_ids=x, **given)
    if case == "bert_pooler":
        yield output.last_hidden_state[real], ours.hidden(x, mask)[real]
        if real[:, 0].all():
            yield output.pooler_output, ours(x, mask)[:, 0]
        return
    yield output.logits[real], ours(x, mask)[real]


@EVERY
@pytest.mark.parametrize("mask", [None, LEFT, LEFT.flip(1)], ids=["whole", "left", "right"])
@torch.no_grad()
def test_logits_match_transformers(case: str, mask: Tensor | None) -> None:
    model = theirs(case)
    for expected, actual in pairs(case, model, hf.from_hf(model), mask):
        assert expected.std() > 0.02
        assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


@EVERY
def test_round_trip_is_exact_to_the_bit(case: str) -> None:
    model = theirs(case)
    back = hf.to_hf(hf.from_hf(model))
    assert type(back) is type(model)
    expected, actual = model.state_dict(), back.state_dict()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    ours = hf.from_hf(back).state_dict()
    assert all(
        torch.equal(tensor, ours[name]) for name, tensor in hf.from_hf(model).state_dict().items()
    )


@EVERY
def test_round_trip_preserves_special_tokens(case: str) -> None:
    """Those of the configuration and those of generation, which can be others."""
    model = theirs(case)
    ids = {
        "bos_token_id": 3,
        "eos_token_id": 5,
        "decoder_start_token_id": 8,
        "forced_eos_token_id": None,
    }
    model.config.update(ids if case == "roberta" else ids | {"pad_token_id": 7})
    parts = {"config": model.config}
    if model.can_generate():
        model.generation_config.update(
            **ids | {"eos_token_id": [5, 9], "pad_token_id": 4, "forced_bos_token_id": 6}
        )
        parts["generation_config"] = model.generation_config
    back = hf.to_hf(hf.from_hf(model))
    for part, before in parts.items():
        expected = {
            name: value for name, value in before.to_dict().items() if name.endswith("_token_id")
        }
        after = getattr(back, part).to_dict()
        assert {name: after.get(name) for name in expected} == expected


def test_zoo_model_exports_without_the_class_default_special_tokens() -> None:
    """The ids that a class of transformers starts with are of the vocabulary that it was first made
    for.
    """
    for name in ("llama3_8b", "bart_base", "t5_small", "modernbert_base"):
        exported = hf.to_hf(zoo.build(name, "size=tiny"))
        for part in [
            exported.config,
            *([exported.generation_config] if exported.can_generate() else []),
        ]:
            found = {
                key: value for key, value in part.to_dict().items() if key.endswith("_token_id")
            }
            assert set(found.values()) <= {None}, found


@EVERY
def test_saved_folder_is_loaded(case: str, tmp_path: Any) -> None:
    model = theirs(case)
    model.save_pretrained(tmp_path)
    ours, loaded = hf.from_hf(model).state_dict(), hf.from_hf(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in ours.items())


def test_bfloat16_weights_stay_bfloat16() -> None:
    ours = hf.from_hf(theirs("llama").to(torch.bfloat16))
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in hf.to_hf(ours).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=llama3_8b", "norm=dyt"], "norm=dyt"),
        (["model=llama3_8b", "attn.window=5", "ffn.multiple_of=3", "head.softcap=3.0"], "softcap"),
        (["model=gpt2", "pos=alibi"], "GPT2LMHeadModel, lacks pos=alibi"),
        (["model=bert_base", "residual=pre"], "residual=pre"),
        (["model=llama3_8b", "attn.sinks=true"], "sinks"),
    ],
    ids=str,
)
def test_model_without_counterpart_in_transformers_is_refused_by_name(
    words: list[str], message: str
) -> None:
    with pytest.raises(ZooError, match=message):
        hf.to_hf(zoo.build(words[0].removeprefix("model="), "size=tiny", *words[1:]))


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("llama", rope("dynamic", factor=2.0), "dynamic"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
        ("bart", {"scale_embedding": True}, "scale_embedding=True"),
        ("bart", {"decoder_ffn_dim": 60}, "ffn_dim differ"),
    ],
)
def test_model_without_counterpart_in_the_zoo_is_refused_by_name(
    case: str, changes: dict[str, Any], message: str
) -> None:
    name, numbers = CASES[case]
    kind = getattr(transformers, name)
    with pytest.raises(ZooError, match=message):
        hf.from_hf(kind(kind.config_class(**(numbers | changes))))


def test_unknown_class_and_missing_folder_are_refused_by_name(tmp_path: Any) -> None:
    config = transformers.BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=VOCAB)
    with pytest.raises(ZooError, match="BloomForCausalLM has no counterpart"):
        hf.from_hf(transformers.BloomForCausalLM(config))
    with pytest.raises(ZooError, match="is empty"):
        hf.from_hf(tmp_path)


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_trained_run_is_exported_with_its_tokenizer(
    tokenizer: str, tmp_path: Any, capsys: Any, monkeypatch: Any
) -> None:
    from zoo.checkpoints import weights
    from zoo.data import tokenizers
    from zoo.hf.__main__ import main
    from zoo.registry import build
    from zoo.training import module

    words = build(
        "tokenizer", {"name": tokenizer, **({"vocab": 300} if tokenizer == "bpe" else {})}
    )
    words.train(["the quick brown fox — jumps over", "the lazy dog, the lazy fox"])
    ours = zoo.build(
        "gpt2",
        "size=tiny",
        "arch.layers=2",
        f"tokenizer={tokenizer}",
        f"arch.vocab={words.vocab}",
        seed=2,
    ).eval()
    checkpoint = {
        "state_dict": {f"model.{name}": tensor for name, tensor in ours.state_dict().items()}
    }
    module.LMModule(ours.config, ours, words).on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    monkeypatch.setattr(
        "sys.argv", ["zoo.hf", f"ckpt={tmp_path / 'last.ckpt'}", f"out={tmp_path / 'out'}"]
    )
    main()
    assert "model.safetensors" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="not empty"):
        main()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "the quick — brown\n\n fox 123"
    expected = torch.tensor([words.eot, *words.encode(text).tolist()])[None]
    assert read(text, return_tensors="pt")["input_ids"].tolist() == expected.tolist()
    assert read.decode(expected[0], skip_special_tokens=True) == text
    assert (read.eos_token_id, theirs.config.eos_token_id) == (words.eot, words.eot)
    with torch.no_grad():
        torch.testing.assert_close(theirs(expected).logits, ours(expected), rtol=1e-5, atol=1e-5)
    assert weights.load_model(tmp_path / "last.ckpt")[1].dumps() == words.dumps()
    assert not list(tmp_path.glob("out/*.bin"))
    assert tokenizers.loads(words.dumps()).eot == words.eot


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=llama3_8b", "pos.fraction=0.5"], "pos.fraction"),
        (["model=deepseek_v3", "pos.fraction=0.5"], "pos.fraction"),
        (["model=deepseek_v2_lite", "pos.pairing=half"], "pairing"),
        (["model=deepseek_v2_lite", "attn.bias=true"], "bias"),
        (["model=gpt2", "ffn=relu"], "ffn=relu"),
        (["model=gpt", "norm=rms", "pos=rope"], "ffn=gelu"),
    ],
    ids=str,
)
def test_option_that_transformers_would_ignore_is_not_exported(
    words: list[str], message: str
) -> None:
    with pytest.raises(ZooError, match=message):
        hf.to_hf(zoo.build(words[0].removeprefix("model="), "size=tiny", *words[1:]))


def test_export_with_other_outputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = zoo.build("gpt2", "size=tiny", "arch.layers=2")
    build = transformers.GPT2LMHeadModel.forward
    monkeypatch.setattr(
        transformers.GPT2LMHeadModel, "forward", lambda self, **given: _louder(build(self, **given))
    )
    with pytest.raises(ZooError, match="does not compute what this model does"):
        hf.to_hf(ours)


def _louder(output: Any) -> Any:
    output.logits = output.logits * 1.01
    return output
