"""Converts weights between the zoo's models and those of transformers, by the tables of names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo import errors, registry
from zoo.checkpoints import weights as checkpoint_weights
from zoo.errors import ZooError
from zoo.hf.closest import counterpart, family_of, read, untie
from zoo.hf.folder import load
from zoo.utils import extras


def from_hf(source: Any) -> Any:
    """A zoo model with the weights of a transformers model, or of a folder or name that transformers loads (safetensors only).

    Raises ZooError for a model class, an option or a weight that the zoo has no counterpart of.
    """
    extras.need("transformers", "zoo.hf")
    theirs: Any = source if isinstance(source, nn.Module) else load(source)
    family = family_of(theirs)
    config = read(family, theirs)
    weights, dtype = _own(theirs), next(theirs.parameters()).dtype
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    model.config, model.token_ids = config, _token_ids(theirs)
    for ours, names in _rows(family.weights, model, weights):
        if missing := [name for name in names if name.rstrip("ᵀ") not in weights]:
            raise ZooError(
                f"{theirs.config.model_type}: the weights lack {missing[0]}, the zoo's {ours[0][0]}"
            )
        given = torch.cat(
            [_as_rows(weights.pop(name.rstrip("ᵀ")), name.endswith("ᵀ")) for name in names]
        )
        wanted = [
            _as_rows(tensor) for _, tensor in ours
        ]  # views, so that what is written there is in the model
        if given.shape != (sum(len(tensor) for tensor in wanted), *wanted[0].shape[1:]):
            raise ZooError(
                f"{names[0]} is {tuple(given.shape)}, and the zoo's {ours[0][0]} needs other shapes"
            )
        for tensor, rows in zip(
            wanted, given.split([len(tensor) for tensor in wanted]), strict=True
        ):
            tensor.copy_(rows)
    for name in family.buffers:
        if weights.pop(name, torch.zeros(())).any():
            raise ZooError(f"{name} is not zero, and the zoo has nothing like it")
    if weights:
        raise ZooError(
            f"{theirs.config.model_type}: the zoo has no counterpart of {', '.join(sorted(weights)[:3])}"
        )
    checkpoint_weights.refuse_not_finite(
        checkpoint_weights.parameters(model),
        theirs.config.name_or_path or f"the {type(theirs).__name__}",
    )
    return model


def to_hf(model: Any) -> Any:
    """The transformers model that computes what this zoo model does, with its weights, in eval mode.

    Raises ZooError where there is none, naming what stands in the way for the closest one.
    """
    checkpoint_weights.refuse_not_finite(checkpoint_weights.parameters(model), "the model")
    _, family, theirs = counterpart(model)
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    weights = {}
    for ours, names in _rows(family.weights, model, shapes):
        whole = torch.cat([_as_rows(tensor) for _, tensor in ours])
        if missing := [name for name in names if name.rstrip("ᵀ") not in shapes]:
            raise ZooError(
                f"{type(theirs).__name__} has no weight {missing[0]}, which the model's {ours[0][0]} would be"
            )
        likes = [
            _as_rows(torch.empty(shapes[name.rstrip("ᵀ")], device="meta"), name.endswith("ᵀ"))
            for name in names
        ]
        for name, rows in zip(names, whole.split([len(like) for like in likes]), strict=True):
            plain = name.rstrip("ᵀ")
            weights[plain] = (
                (rows.T if plain != name and len(shapes[plain]) > 1 else rows)
                .reshape(shapes[plain])
                .clone()
            )
    vars(theirs.config).update(model.token_ids.get("config", {}))
    theirs = type(theirs)(theirs.config).to(next(model.parameters()).dtype)
    for part, ids in model.token_ids.items():
        vars(getattr(theirs, part)).update(ids)
    if "head.weight" in dict(model.named_parameters()):
        untie(theirs)
    result = theirs.load_state_dict(weights, strict=False)
    once = _own(theirs)  # without the other names of a tied weight
    if (
        lost := [key for key in result.missing_keys if key in once and key not in family.buffers]
        + result.unexpected_keys
    ):
        raise ZooError(
            f"{type(theirs).__name__}: the zoo has no weight that is {', '.join(lost[:3])}"
        )
    _check_same(model, theirs.eval())
    return theirs


def _token_ids(theirs: Any) -> dict[str, dict[str, Any]]:
    """Which tokens start, end, pad and are forced, as the configuration of the model and that of its generation say."""
    parts = ["config", "generation_config"] if theirs.can_generate() else ["config"]
    return {
        part: {
            name: value
            for name, value in vars(getattr(theirs, part)).items()
            if name.endswith("_token_id")
        }
        for part in parts
    }


@torch.no_grad()
def _check_same(model: Any, theirs: Any) -> None:
    """The last net: on a few tokens both must say the same, or what was written is not the model."""
    training = model.training
    vocab = model.config["arch"]["vocab"]
    tokens = 3 + torch.arange(min(12, model.limit or 12))[None] % max(
        1, vocab - 3
    )  # none that could mean padding
    two = {"decoder_input_ids": tokens} if model.family == "encoder_decoder" else {}
    try:
        output = theirs(input_ids=tokens, **two)
    except RuntimeError as error:
        raise ZooError(
            f"{type(theirs).__name__} cannot run what this model does: {errors.first_line(error)}"
        ) from error
    model.eval()
    logits = "logits" in output
    ours = model(tokens, *two.values()) if logits else model.hidden(tokens)
    model.train(training)
    expected = output.logits if logits else output.last_hidden_state
    off = ((ours - expected).float().norm() / expected.float().norm().clamp(min=1e-9)).item()
    if not off < (1e-3 if ours.dtype == torch.float32 else 0.1):
        raise ZooError(
            f"{type(theirs).__name__} does not compute what this model does (it is {off:.1%} off): not exported"
        )


def _own(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights and saved buffers, each once, however many names share it."""
    seen: dict[int, str] = {}
    for name, tensor in theirs.state_dict(keep_vars=True).items():
        seen.setdefault(id(tensor), name)
    kept = set(seen.values())
    return {name: tensor.detach() for name, tensor in theirs.state_dict().items() if name in kept}


def _rows(
    table: str, model: nn.Module, known: Collection[str]
) -> Iterator[tuple[list[tuple[str, Tensor]], list[str]]]:
    """For each weight of the model, together with those that share transformers' one, the names that transformers has."""
    left = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}
    for line in filter(None, map(str.strip, table.splitlines())):
        ours, theirs = line.split()
        pattern = (
            re.escape(ours)
            .replace(r"\*", r"(?P<layer>\d+)")
            .replace("@", "(?P<kind>weight|bias)")
            .replace(r"\#", r"\d+")
        )
        pattern = re.sub(r"\\{(.*?)\\}", lambda words: f"({words[1].replace(',', '|')})", pattern)
        groups: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}
        for name in left:
            if match := re.fullmatch(pattern, name):
                found = match.groupdict()
                groups.setdefault((found.get("layer", ""), found.get("kind", "")), []).append(
                    (name, left[name])
                )
        for (layer, kind), members in groups.items():
            for name, _ in members:
                del left[name]
            yield members, _names(theirs.replace("*", layer).replace("@", kind), known)
    if left:
        raise ZooError(f"transformers has no counterpart of {', '.join(list(left)[:3])}")


def _names(template: str, known: Collection[str]) -> list[str]:
    """`a.{b,c|d}.e` -> a.b.e, a.c.e, or a.d.e where that is what there is."""
    if not (choice := re.search(r"{(.*?)}", template)):
        return [template]
    words = [
        [template.replace(choice[0], word) for word in either.split("|")]
        for either in choice[1].split(",")
    ]
    return [next((name for name in names if name in known), names[0]) for names in words]


def _as_rows(tensor: Tensor, transposed: bool = False) -> Tensor:
    """(..., columns) -> (rows, columns), and a vector as one column."""
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)
    return tensor.T if transposed else tensor.flatten(0, -2)
