"""What one number cannot say between a configuration of transformers and the zoo's: rotary scaling, windows, ties.

A field reads from a transformers model the zoo's words that it decides, and writes back what transformers needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ZooError
from zoo.registry import resolve

Words = dict[str, Any]  # dotted words of the zoo, or attributes of a transformers configuration


def _nothing(words: Words, model: Any) -> Words:
    return {}


@dataclass(frozen=True)
class Field:
    read: Callable[[Any, Words], Words]  # from the transformers model and the words read so far
    write: Callable[[Words, Any], Words] = _nothing  # from the zoo's words and model


def same(word: str, other: str) -> Field:
    """Two of the zoo's words that are one for transformers."""
    return Field(lambda model, known: {word: known[other]})


def _scaling(rope: Mapping[str, Any]) -> Any:
    kind, factor = rope.get("rope_type", "default"), rope.get("factor")
    original = rope.get("original_max_position_embeddings")
    if kind == "default":
        return None
    if kind == "linear":
        return {"name": "linear", "factor": factor}
    if kind == "llama3":
        return {
            "name": "llama3",
            "factor": factor,
            "original": original,
            "low": rope["low_freq_factor"],
            "high": rope["high_freq_factor"],
        }
    if kind == "yarn" and factor and rope.get("truncate", True):
        gain, above, below = (
            rope.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim")
        )
        if gain is None:
            above, below = (above, below) if above and below else (1.0, 0.0)
            gain = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
        return {
            "name": "yarn",
            "factor": factor,
            "original": original,
            "fast": rope.get("beta_fast") or 32.0,
            "slow": rope.get("beta_slow") or 1.0,
            "gain": gain,
        }
    raise ZooError(f"the zoo has no counterpart of rotary positions with {dict(rope)}")


def _parameters(words: Words) -> dict[str, Any]:
    """pos=rope as transformers' rope_parameters."""
    chosen = words["pos.scaling"]
    scaling = resolve("scaling", chosen) if chosen else {"name": "default"}
    rope: dict[str, Any] = {"rope_theta": words["pos.base"], "rope_type": scaling["name"]}
    if words["pos.fraction"] != 1:
        raise ZooError("pos.fraction (transformers' classes turn the whole head)")
    if scaling["name"] not in ("default", "linear", "llama3", "yarn"):
        raise ZooError(f"pos.scaling={scaling['name']}")
    names = {
        "factor": "factor",
        "original": "original_max_position_embeddings",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "fast": "beta_fast",
        "slow": "beta_slow",
        "gain": "attention_factor",
    }
    return rope | {names[key]: value for key, value in scaling.items() if key != "name"}


def _read_rope(model: Any, known: Words) -> Words:
    rope = model.config.rope_parameters
    if rope.get("partial_rotary_factor", 1.0) != 1:
        raise ZooError(
            "rotary positions of a part of the head are not read: transformers' classes here turn the whole"
        )
    return {
        "pos.base": float(rope["rope_theta"]),
        "pos.scaling": _scaling(rope),
        "pos.fraction": 1.0,
    }


def _windows(model: Any) -> tuple[list[str], int | None]:
    """Each layer's kind in transformers' words, and the window of the local ones."""
    found = [
        next(module.window for module in block.modules() if hasattr(module, "window"))
        for block in model.stack.blocks
    ]
    sizes = {window for window in found if window is not None}
    if len(sizes) > 1:
        raise ZooError(
            f"attn.window (transformers knows one a model, and this one has {sorted(sizes)})"
        )
    return ["full_attention" if window is None else "sliding_attention" for window in found], next(
        iter(sizes), None
    )


def _read_windows(model: Any, known: Words) -> Words:
    kinds, size = model.config.layer_types, model.config.sliding_window
    return {
        "arch.pattern": [
            {"attn": {"window": size}} if kind == "sliding_attention" else {} for kind in kinds
        ],
        "arch.first": [],
        "attn.window": None,
    }


def _write_windows(words: Words, model: Any) -> Words:
    kinds, size = _windows(model)
    return {"layer_types": kinds, "sliding_window": size, "use_sliding_window": size is not None}


def _read_local_rope(model: Any, known: Words) -> Words:
    config = model.config
    near, far = (config.rope_parameters[kind] for kind in ("sliding_attention", "full_attention"))
    if _scaling(near) or _scaling(far):
        raise ZooError("scaled rotary positions in ModernBERT have no counterpart here")
    local = {
        "attn": {"window": config.local_attention // 2 + 1},
        "pos": {"base": float(near["rope_theta"])},
    }
    layers = [dict(local) if kind == "sliding_attention" else {} for kind in config.layer_types]
    return {
        "arch.first": [{**layers[0], "block": {"bare": ["attn"]}}],
        "arch.pattern": layers[1:],
        "pos.base": float(far["rope_theta"]),
    }


def _write_local_rope(words: Words, model: Any) -> Words:
    kinds, size = _windows(model)
    bases = {
        kind: model.stack.positions[which].base
        for kind, which in zip(kinds, model.stack.position_of, strict=True)
    }
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return {"layer_types": kinds, "rope_parameters": rope} | (
        {"local_attention": 2 * (size - 1)} if size else {}
    )


def _tied_and_scaled(model: Any, known: Words) -> Words:
    return {
        "head.tied": model.lm_head.weight is model.shared.weight,
        "head.scaled": bool(model.config.scale_decoder_outputs),
    }


def _write_scaled(words: Words, model: Any) -> Words:
    return {
        "tie_word_embeddings": words["head.scaled"]
    }  # by which transformers' T5 means that it scales


def _query_scalar(words: Words, model: Any) -> Words:
    scalar = words["attn.scale"] ** -2
    return {
        "query_pre_attn_scalar": round(scalar) if math.isclose(scalar, round(scalar)) else scalar
    }


def _read_latent(model: Any, known: Words) -> Words:
    """DeepSeek's: YaRN also stretches the scores; the first layers are dense; the shared experts are one wider one."""
    config, rope = model.config, model.config.rope_parameters
    wider = 0.1 * (rope.get("mscale_all_dim") or 0) * math.log(rope.get("factor") or 1) + 1
    dense = {"ffn": {"name": "swiglu", "hidden": config.intermediate_size}}
    shared = config.n_shared_experts and {
        "name": "swiglu",
        "hidden": config.n_shared_experts * config.moe_intermediate_size,
    }
    return {
        "attn.scale": (known["attn.nope_dim"] + known["attn.rope_dim"]) ** -0.5 * wider**2,
        "pos.pairing": "interleaved" if getattr(config, "rope_interleave", True) else "half",
        "arch.first": [dense] * config.first_k_dense_replace,
        "ffn.shared": shared or None,
    }


def _write_latent(words: Words, model: Any) -> Words:
    rope, blocks = _parameters(words), list(model.stack.blocks)
    wider = (
        math.sqrt(words["attn.scale"] * math.sqrt(words["attn.nope_dim"] + words["attn.rope_dim"]))
        - 1
    )
    if abs(wider) > 1e-9:
        rope["mscale"] = rope["mscale_all_dim"] = wider / (0.1 * math.log(rope["factor"]))
    dense = [block for block in blocks if not hasattr(block.ffn.sublayer, "experts")]
    width, shared = words["ffn.expert.hidden"], blocks[-1].ffn.sublayer.shared
    return {
        "rope_parameters": rope,
        "first_k_dense_replace": len(dense),
        "intermediate_size": dense[0].ffn.sublayer.out.in_features if dense else width,
        "n_shared_experts": shared.out.in_features // width if shared else None,
        "rope_interleave": words["pos.pairing"] == "interleaved",
    }


def _read_groups(model: Any, known: Words) -> Words:
    limited = model.config.topk_method == "group_limited_greedy"
    return {
        "ffn.groups": model.config.n_group if limited else 1,
        "ffn.top_groups": model.config.topk_group if limited else 1,
    }


def _write_groups(words: Words, model: Any) -> Words:
    return {
        "topk_method": "group_limited_greedy" if words["ffn.groups"] > 1 else "greedy",
        "n_group": words["ffn.groups"],
        "topk_group": words["ffn.top_groups"],
    }


ROPE = Field(_read_rope, lambda words, model: {"rope_parameters": _parameters(words)})
LATENT = Field(_read_latent, _write_latent)
GROUPS = Field(_read_groups, _write_groups)
WINDOWS = Field(_read_windows, _write_windows)
LOCAL_ROPE = Field(_read_local_rope, _write_local_rope)
QUERY_SCALAR = Field(
    lambda model, known: {"attn.scale": model.config.query_pre_attn_scalar**-0.5}, _query_scalar
)
TIED_SCALED = Field(_tied_and_scaled, _write_scaled)
PADDED_POSITIONS = Field(
    lambda model, known: {
        "pos.offset": model.config.pad_token_id + 1,
        "arch.length": model.config.max_position_embeddings - model.config.pad_token_id - 1,
    },
    lambda words, model: {
        "pad_token_id": words["pos.offset"] - 1,
        "max_position_embeddings": words["arch.length"] + words["pos.offset"],
    },
)


def _decoder_like_encoder(model: Any, known: Words) -> Words:
    config = model.config
    for name in ("attention_heads", "ffn_dim"):
        if getattr(config, f"encoder_{name}") != getattr(config, f"decoder_{name}"):
            raise ZooError(
                f"the zoo's stacks have the same width and heads, and here encoder_{name} and decoder_{name} differ"
            )
    return {}


BOTH_STACKS = Field(
    _decoder_like_encoder,
    lambda words, model: {
        "decoder_attention_heads": words["arch.heads"],
        "decoder_ffn_dim": words["ffn.hidden"],
    },
)
