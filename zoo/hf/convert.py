"""Converts weights between the zoo's models and those of transformers, by the tables of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo import errors, registry
from zoo.checkpoints import weights as checkpoint_weights
from zoo.errors import ZooError
from zoo.hf.closest import counterpart, untie
from zoo.hf.folder import load
from zoo.hf.names import TRANSPOSED, as_rows, matched, plain_name
from zoo.hf.reading import family_of, read_config
from zoo.utils import extras


def from_hf(source: Any) -> Any:
    """A zoo model with the weights of a transformers model.

    `source` is the model, or a folder or name that transformers loads (safetensors only). Raises
    ZooError for a model class, an option or a weight that the zoo has no counterpart of.
    """
    extras.need("transformers", "zoo.hf")
    hf_model: Any = source if isinstance(source, nn.Module) else load(source)
    model_type = hf_model.config.model_type
    family = family_of(hf_model)
    config = read_config(family, hf_model)
    weights, dtype = _each_once(hf_model), next(hf_model.parameters()).dtype
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    model.config, model.token_ids = config, _token_ids(hf_model)
    for ours, names in matched(family.weights, model, weights):
        if missing := [name for name in names if plain_name(name) not in weights]:
            raise ZooError(
                f"{model_type}: the weights lack {missing[0]}, the zoo's {next(iter(ours))}"
            )
        _fill(ours, names, [weights.pop(plain_name(name)) for name in names])
    for name in family.zero_buffers:
        if weights.pop(name, torch.zeros(())).any():
            raise ZooError(f"{name} is not zero, and the zoo has no counterpart of it")
    if weights:
        unmatched = ", ".join(sorted(weights)[:3])
        raise ZooError(f"{model_type}: the zoo has no counterpart of {unmatched}")
    origin = hf_model.config.name_or_path or f"the {type(hf_model).__name__}"
    checkpoint_weights.refuse_not_finite(checkpoint_weights.parameters(model), origin)
    return model


def _fill(ours: Mapping[str, Tensor], names: list[str], weights: list[Tensor]) -> None:
    """Copy the rows of transformers' weights into the zoo's, in order."""
    pairs = zip(weights, names, strict=True)
    source = torch.cat([as_rows(weight, name.endswith(TRANSPOSED)) for weight, name in pairs])
    targets = [as_rows(tensor) for tensor in ours.values()]  # views of the model's weights
    counts = [len(target) for target in targets]
    if source.shape != (sum(counts), *targets[0].shape[1:]):
        raise ZooError(
            f"{names[0]} is {tuple(source.shape)}, and the zoo's {next(iter(ours))} needs other"
            " shapes"
        )
    for target, rows in zip(targets, source.split(counts), strict=True):
        target.copy_(rows)


def to_hf(model: Any) -> Any:
    """The transformers model that computes what this zoo model does, with its weights, in eval
    mode.

    Raises ZooError where there is none, naming what the closest one lacks.
    """
    checkpoint_weights.refuse_not_finite(checkpoint_weights.parameters(model), "the model")
    _, family, hf_model = counterpart(model)
    class_name = type(hf_model).__name__
    shapes = {name: tensor.shape for name, tensor in hf_model.state_dict().items()}
    weights: dict[str, Tensor] = {}
    for ours, names in matched(family.weights, model, shapes):
        if missing := [name for name in names if plain_name(name) not in shapes]:
            raise ZooError(
                f"{class_name} has no weight {missing[0]}, which the model's {next(iter(ours))}"
                " would be"
            )
        weights |= _split(ours, names, shapes)
    vars(hf_model.config).update(model.token_ids.get("config", {}))
    hf_model = type(hf_model)(hf_model.config).to(next(model.parameters()).dtype)
    for part, ids in model.token_ids.items():
        vars(getattr(hf_model, part)).update(ids)
    if "head.weight" in dict(model.named_parameters()):
        untie(hf_model)
    result = hf_model.load_state_dict(weights, strict=False)
    needed = _each_once(hf_model).keys() - set(family.zero_buffers)
    missing = [key for key in result.missing_keys if key in needed]
    if unmatched := missing + result.unexpected_keys:
        raise ZooError(f"{class_name}: the zoo has no weight that is {', '.join(unmatched[:3])}")
    _check_same(model, hf_model.eval())
    return hf_model


def _split(
    ours: Mapping[str, Tensor], names: list[str], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The zoo's weights, one below the other, cut into those of transformers."""
    rows = torch.cat([as_rows(tensor) for tensor in ours.values()])
    counts = []
    for name in names:
        like = torch.empty(shapes[plain_name(name)], device="meta")
        counts.append(len(as_rows(like, name.endswith(TRANSPOSED))))
    weights = {}
    for name, part in zip(names, rows.split(counts), strict=True):
        shape = shapes[plain_name(name)]
        if name.endswith(TRANSPOSED) and len(shape) > 1:
            part = part.T
        weights[plain_name(name)] = part.reshape(shape).clone()
    return weights


def _token_ids(hf_model: Any) -> dict[str, dict[str, Any]]:
    """The ids of start, end, padding and forced tokens, by the configuration that holds them."""
    parts = ["config", "generation_config"] if hf_model.can_generate() else ["config"]
    ids = {}
    for part in parts:
        settings = vars(getattr(hf_model, part))
        ids[part] = {name: value for name, value in settings.items() if name.endswith("_token_id")}
    return ids


@torch.no_grad()
def _check_same(model: Any, hf_model: Any) -> None:
    """Check, last of all, that both compute the same on a few tokens."""
    class_name, training = type(hf_model).__name__, model.training
    vocab = model.config["arch"]["vocab"]
    # None of these ids could mean padding.
    tokens = 3 + torch.arange(min(12, model.limit or 12))[None] % max(1, vocab - 3)
    decoder = {"decoder_input_ids": tokens} if model.family == "encoder_decoder" else {}
    try:
        output = hf_model(input_ids=tokens, **decoder)
    except RuntimeError as error:
        raise ZooError(
            f"{class_name} cannot run what this model does: {errors.first_line(error)}"
        ) from error
    model.eval()
    if "logits" in output:
        ours, expected = model(tokens, *decoder.values()), output.logits
    else:
        ours, expected = model.hidden(tokens), output.last_hidden_state
    model.train(training)
    off = ((ours - expected).float().norm() / expected.float().norm().clamp(min=1e-9)).item()
    if not off < (1e-3 if ours.dtype == torch.float32 else 0.1):
        raise ZooError(
            f"{class_name} does not compute what this model does (it is {off:.1%} off): not"
            " exported"
        )


def _each_once(hf_model: nn.Module) -> dict[str, Tensor]:
    """The weights and saved buffers, each by the first of the names that share it."""
    first_names: dict[int, str] = {}
    for name, tensor in hf_model.state_dict(keep_vars=True).items():
        first_names.setdefault(id(tensor), name)
    names = set(first_names.values())
    return {name: value.detach() for name, value in hf_model.state_dict().items() if name in names}
