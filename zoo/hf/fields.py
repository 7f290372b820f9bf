"""Converts options that are more than one attribute in transformers: RoPE scaling, windows, ties.

A field reads from a transformers model the zoo's options that it decides, and writes back the
attributes that transformers needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ZooError
from zoo.registry import resolve

Options = dict[str, Any]  # dotted options of the zoo
Attributes = dict[str, Any]  # of a transformers configuration


def _nothing(options: Options, model: Any) -> Attributes:
    return {}


@dataclass(frozen=True)
class Field:
    """Reads options from a transformers model and earlier options; writes attributes back."""

    read: Callable[[Any, Options], Options]
    write: Callable[[Options, Any], Attributes] = _nothing


def same(option: str, other: str) -> Field:
    """Two of the zoo's options that are one for transformers."""
    return Field(lambda hf_model, known: {option: known[other]})


# The options of the zoo's scalings, and transformers' names for them in rope_parameters.
ROPE_PARAMETERS = {
    "factor": "factor",
    "original": "original_max_position_embeddings",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "fast": "beta_fast",
    "slow": "beta_slow",
    "gain": "attention_factor",
}


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """The zoo's pos.scaling of transformers' rope_parameters."""
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
        return {
            "name": "yarn",
            "factor": factor,
            "original": original,
            "fast": rope.get("beta_fast") or 32.0,
            "slow": rope.get("beta_slow") or 1.0,
            "gain": _yarn_gain(rope, factor),
        }
    raise ZooError(f"the zoo has no counterpart of rotary positions with {dict(rope)}")


def _yarn_gain(rope: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies q and k by, as transformers derives it where it is not given."""
    gain: float | None = rope.get("attention_factor")
    if gain is not None:
        return gain
    numerator, denominator = rope.get("mscale"), rope.get("mscale_all_dim")
    if not (numerator and denominator):
        numerator, denominator = 1.0, 0.0
    growth = 0.1 * math.log(factor)
    return (growth * numerator + 1) / (growth * denominator + 1)


def _rope_parameters(options: Options) -> Attributes:
    """The zoo's pos=rope as transformers' rope_parameters."""
    choice = options["pos.scaling"]
    scaling = resolve("scaling", choice) if choice else {"name": "default"}
    if options["pos.fraction"] != 1:
        raise ZooError("pos.fraction (transformers' classes rotate the whole head)")
    if scaling["name"] not in ("default", "linear", "llama3", "yarn"):
        raise ZooError(f"pos.scaling={scaling['name']}")
    rope: dict[str, Any] = {"rope_theta": options["pos.base"], "rope_type": scaling["name"]}
    for key, value in scaling.items():
        if key != "name":
            rope[ROPE_PARAMETERS[key]] = value
    return rope


def _read_rope(hf_model: Any, known: Options) -> Options:
    rope = hf_model.config.rope_parameters
    if rope.get("partial_rotary_factor", 1.0) != 1:
        raise ZooError(
            "rotary positions of a part of the head are not read: these classes rotate the whole"
            " head"
        )
    return {
        "pos.base": float(rope["rope_theta"]),
        "pos.scaling": _scaling(rope),
        "pos.fraction": 1.0,
    }


def _windows(model: Any) -> tuple[list[str], int | None]:
    """Each layer's kind as transformers calls it, and the window of the local ones."""
    windows = []
    for block in model.stack.blocks:
        windows.append(next(part.window for part in block.modules() if hasattr(part, "window")))
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise ZooError(
            f"attn.window (transformers has one per model, and this one has {sorted(sizes)})"
        )
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return kinds, next(iter(sizes), None)


def _read_windows(hf_model: Any, known: Options) -> Options:
    kinds, size = hf_model.config.layer_types, hf_model.config.sliding_window
    return {
        "arch.pattern": [
            {"attn": {"window": size}} if kind == "sliding_attention" else {} for kind in kinds
        ],
        "arch.first": [],
        "attn.window": None,
    }


def _write_windows(options: Options, model: Any) -> Attributes:
    kinds, size = _windows(model)
    return {"layer_types": kinds, "sliding_window": size, "use_sliding_window": size is not None}


def _read_local_rope(hf_model: Any, known: Options) -> Options:
    """ModernBERT's: local layers have a window and another RoPE base."""
    config = hf_model.config
    near = config.rope_parameters["sliding_attention"]
    far = config.rope_parameters["full_attention"]
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


def _write_local_rope(options: Options, model: Any) -> Attributes:
    kinds, size = _windows(model)
    rope = {}
    for kind, which in zip(kinds, model.stack.position_of, strict=True):
        rope[kind] = {"rope_type": "default", "rope_theta": model.stack.positions[which].base}
    attributes = {"layer_types": kinds, "rope_parameters": rope}
    return attributes | ({"local_attention": 2 * (size - 1)} if size else {})


def _read_tied_scaled(hf_model: Any, known: Options) -> Options:
    return {
        "head.tied": hf_model.lm_head.weight is hf_model.shared.weight,
        "head.scaled": bool(hf_model.config.scale_decoder_outputs),
    }


def _write_tied_scaled(options: Options, model: Any) -> Attributes:
    # By tie_word_embeddings, transformers' T5 means that it scales the decoder's outputs.
    return {"tie_word_embeddings": options["head.scaled"]}


def _write_query_scalar(options: Options, model: Any) -> Attributes:
    scalar = options["attn.scale"] ** -2
    exact = round(scalar) if math.isclose(scalar, round(scalar)) else scalar
    return {"query_pre_attn_scalar": exact}


def _read_latent(hf_model: Any, known: Options) -> Options:
    """DeepSeek's: YaRN also scales the scores; first layers are dense; shared experts are one."""
    config, rope = hf_model.config, hf_model.config.rope_parameters
    scale = (known["attn.nope_dim"] + known["attn.rope_dim"]) ** -0.5
    growth = 0.1 * (rope.get("mscale_all_dim") or 0) * math.log(rope.get("factor") or 1) + 1
    dense = {"ffn": {"name": "swiglu", "hidden": config.intermediate_size}}
    shared = None
    if config.n_shared_experts:
        hidden = config.n_shared_experts * config.moe_intermediate_size
        shared = {"name": "swiglu", "hidden": hidden}
    return {
        "attn.scale": scale * growth**2,
        "pos.pairing": "interleaved" if getattr(config, "rope_interleave", True) else "half",
        "arch.first": [dense] * config.first_k_dense_replace,
        "ffn.shared": shared,
    }


def _write_latent(options: Options, model: Any) -> Attributes:
    rope, blocks = _rope_parameters(options), list(model.stack.blocks)
    root = math.sqrt(options["attn.nope_dim"] + options["attn.rope_dim"])
    growth = math.sqrt(options["attn.scale"] * root) - 1
    if abs(growth) > 1e-9:
        rope["mscale"] = rope["mscale_all_dim"] = growth / (0.1 * math.log(rope["factor"]))
    dense = [block for block in blocks if not hasattr(block.ffn.sublayer, "experts")]
    hidden, shared = options["ffn.expert.hidden"], blocks[-1].ffn.sublayer.shared
    return {
        "rope_parameters": rope,
        "first_k_dense_replace": len(dense),
        "intermediate_size": dense[0].ffn.sublayer.out.in_features if dense else hidden,
        "n_shared_experts": shared.out.in_features // hidden if shared else None,
        "rope_interleave": options["pos.pairing"] == "interleaved",
    }


def _read_groups(hf_model: Any, known: Options) -> Options:
    limited = hf_model.config.topk_method == "group_limited_greedy"
    return {
        "ffn.groups": hf_model.config.n_group if limited else 1,
        "ffn.top_groups": hf_model.config.topk_group if limited else 1,
    }


def _write_groups(options: Options, model: Any) -> Attributes:
    return {
        "topk_method": "group_limited_greedy" if options["ffn.groups"] > 1 else "greedy",
        "n_group": options["ffn.groups"],
        "topk_group": options["ffn.top_groups"],
    }


def _read_padded_positions(hf_model: Any, known: Options) -> Options:
    """RoBERTa's: positions count from behind the id of padding."""
    offset = hf_model.config.pad_token_id + 1
    length = hf_model.config.max_position_embeddings - offset
    return {"pos.offset": offset, "arch.length": length}


def _write_padded_positions(options: Options, model: Any) -> Attributes:
    return {
        "pad_token_id": options["pos.offset"] - 1,
        "max_position_embeddings": options["arch.length"] + options["pos.offset"],
    }


def _read_both_stacks(hf_model: Any, known: Options) -> Options:
    config = hf_model.config
    for name in ("attention_heads", "ffn_dim"):
        if getattr(config, f"encoder_{name}") != getattr(config, f"decoder_{name}"):
            raise ZooError(
                "the zoo's stacks have the same width and heads, and here"
                f" encoder_{name} and decoder_{name} differ"
            )
    return {}


def _write_both_stacks(options: Options, model: Any) -> Attributes:
    return {
        "decoder_attention_heads": options["arch.heads"],
        "decoder_ffn_dim": options["ffn.hidden"],
    }


ROPE = Field(_read_rope, lambda options, model: {"rope_parameters": _rope_parameters(options)})
LATENT = Field(_read_latent, _write_latent)
GROUPS = Field(_read_groups, _write_groups)
WINDOWS = Field(_read_windows, _write_windows)
LOCAL_ROPE = Field(_read_local_rope, _write_local_rope)
QUERY_SCALAR = Field(
    lambda hf_model, known: {"attn.scale": hf_model.config.query_pre_attn_scalar**-0.5},
    _write_query_scalar,
)
TIED_SCALED = Field(_read_tied_scaled, _write_tied_scaled)
PADDED_POSITIONS = Field(_read_padded_positions, _write_padded_positions)
BOTH_STACKS = Field(_read_both_stacks, _write_both_stacks)
