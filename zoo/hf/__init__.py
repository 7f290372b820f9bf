"""Weights in and out of transformers: the same logits, or a refusal that says what has no counterpart.

    model = zoo.hf.from_hf("path/or/name")     # or a transformers model
    theirs = zoo.hf.to_hf(model)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo import catalogue, models, registry, storage
from zoo import config as configuration
from zoo.attention import MultiHead
from zoo.data.tokenizer import EOT
from zoo.hf.tables import FAMILIES, Family
from zoo.registry import ZooError, did_you_mean

UNSEEN = ("training", "checkpointing", "cost", "balance_loss", "z_loss", "bias_rate")  # no part of what is computed
MODEL = ("arch", "embed", "head", *models.LAYERED)


def from_hf(source: Any) -> Any:
    """A zoo model with the weights of a transformers model, or of a folder or name that transformers loads (safetensors only).

    Raises ZooError for a model class, an option or a weight that the zoo has no counterpart of.
    """
    theirs: Any = source if isinstance(source, nn.Module) else _loaded(source)
    family = _family_of(theirs)
    config = _read(family, theirs)
    weights, dtype = _own(theirs), next(theirs.parameters()).dtype
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    model.config = config
    for ours, names in _rows(family.weights, model, weights):
        if missing := [name for name in names if name.rstrip("ᵀ") not in weights]:
            raise ZooError(f"{theirs.config.model_type}: the weights lack {missing[0]}, the zoo's {ours[0][0]}")
        given = torch.cat([_as_rows(weights.pop(name.rstrip("ᵀ")), name.endswith("ᵀ")) for name in names])
        wanted = [_as_rows(tensor) for _, tensor in ours]  # views, so that what is written there is in the model
        if given.shape != (sum(len(tensor) for tensor in wanted), *wanted[0].shape[1:]):
            raise ZooError(f"{names[0]} is {tuple(given.shape)}, and the zoo's {ours[0][0]} needs other shapes")
        for tensor, rows in zip(wanted, given.split([len(tensor) for tensor in wanted]), strict=True):
            tensor.copy_(rows)
    for name in family.buffers:
        if weights.pop(name, torch.zeros(())).any():
            raise ZooError(f"{name} is not zero, and the zoo has nothing like it")
    if weights:
        raise ZooError(f"{theirs.config.model_type}: the zoo has no counterpart of {', '.join(sorted(weights)[:3])}")
    return model


def to_hf(model: Any) -> Any:
    """The transformers model that computes what this zoo model does, with its weights, in eval mode.

    Raises ZooError where there is none, naming what stands in the way for the closest one.
    """
    _, family, theirs = counterpart(model)
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    weights = {}
    for ours, names in _rows(family.weights, model, shapes):
        whole = torch.cat([_as_rows(tensor) for _, tensor in ours])
        if missing := [name for name in names if name.rstrip("ᵀ") not in shapes]:
            raise ZooError(f"{type(theirs).__name__} has no weight {missing[0]}, which the model's {ours[0][0]} would be")
        likes = [_as_rows(torch.empty(shapes[name.rstrip("ᵀ")], device="meta"), name.endswith("ᵀ")) for name in names]
        for name, rows in zip(names, whole.split([len(like) for like in likes]), strict=True):
            plain = name.rstrip("ᵀ")
            weights[plain] = (rows.T if plain != name and len(shapes[plain]) > 1 else rows).reshape(shapes[plain]).clone()
    theirs = type(theirs)(theirs.config).to(next(model.parameters()).dtype)
    if "head.weight" in dict(model.named_parameters()):
        _untie(theirs)
    result = theirs.load_state_dict(weights, strict=False)
    once = _own(theirs)  # without the other names of a tied weight
    if lost := [key for key in result.missing_keys if key in once and key not in family.buffers] + result.unexpected_keys:
        raise ZooError(f"{type(theirs).__name__}: the zoo has no weight that is {', '.join(lost[:3])}")
    _check_same(model, theirs.eval())
    return theirs


@torch.no_grad()
def _check_same(model: Any, theirs: Any) -> None:
    """The last net: on a few tokens both must say the same, or what was written is not the model."""
    training = model.training
    vocab = model.config["arch"]["vocab"]
    tokens = 3 + torch.arange(min(12, model.limit or 12))[None] % max(1, vocab - 3)  # none that could mean padding
    two = {"decoder_input_ids": tokens} if model.family == "encoder_decoder" else {}
    try:
        output = theirs(input_ids=tokens, **two)
    except RuntimeError as error:
        raise ZooError(f"{type(theirs).__name__} cannot run what this model does: {registry.first_line(error)}") from error
    model.eval()
    logits = "logits" in output
    ours = model(tokens, *two.values()) if logits else model.hidden(tokens)
    model.train(training)
    expected = output.logits if logits else output.last_hidden_state
    off = ((ours - expected).float().norm() / expected.float().norm().clamp(min=1e-9)).item()
    if not off < (1e-3 if ours.dtype == torch.float32 else 0.1):
        raise ZooError(f"{type(theirs).__name__} does not compute what this model does (it is {off:.1%} off): not exported")


def export(checkpoint: Any, folder: Path) -> None:
    """Write a run's model and tokenizer as transformers saves them (safetensors).

    Raises ZooError for a folder that holds something, and what to_hf raises.
    """
    import transformers

    if folder.exists() and any(folder.iterdir()):
        raise ZooError(f"{folder} is not empty: choose another out=FOLDER")
    model, tokenizer, _ = storage.load_model(checkpoint)
    theirs = to_hf(model)
    for config in (theirs.config, theirs.generation_config):
        config.bos_token_id = config.eos_token_id = tokenizer.eot
    written = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.library(), bos_token=EOT, eos_token=EOT,
                                                   model_max_length=model.limit or model.config["arch"]["length"])
    theirs.save_pretrained(folder)
    written.save_pretrained(folder)


def _loaded(path: Any) -> nn.Module:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        (name,) = config.architectures
        return getattr(transformers, name).from_pretrained(path, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError, AttributeError) as error:
        raise ZooError(f"{path}: transformers cannot load it: {registry.first_line(error)}") from error


def _family_of(theirs: Any) -> Family:
    name, config = type(theirs).__name__, theirs.config
    variants = [family for key, family in FAMILIES.items() if key.split()[0] == name]
    if not variants:
        raise ZooError(f"{name} has no counterpart in the zoo{did_you_mean(name, [key for key in FAMILIES if ' ' not in key])}")
    others = [{word: value for word, value in family.fixed.items() if getattr(config, word, value) != value}
              for family in variants]
    for family, other in zip(variants, others, strict=True):
        if not other:
            return family
    word, value = next(iter(others[0].items()))
    given = getattr(config, word)
    raise ZooError(f"{config.model_type} with {word}={given!r} has no counterpart in the zoo, only with {value!r}")


def _read(family: Family, theirs: Any) -> dict[str, Any]:
    """The zoo's configuration of a transformers model."""
    words: dict[str, Any] = {key: getattr(theirs.config, name) for key, name in family.numbers.items()
                             if hasattr(theirs.config, name)}
    for field in family.fields:
        words |= field.read(theirs, words)
    config = configuration.compose([f"model={family.model.split()[0]}", *family.model.split()[1:]])
    for word, value in words.items():
        *path, last = word.split(".")
        node = config
        for key in path:
            if isinstance(node[key], str):
                node[key] = {"name": node[key]}
            node = node[key]
        node[last] = value
    for group in MODEL:
        config[group] = registry.resolve(group, config[group])
    return config


def counterpart(model: Any) -> tuple[str, Family, Any]:
    """The class of transformers whose configuration, read back, makes the same model."""
    import transformers

    words, anatomy = _words(model), _anatomy(model)
    stands: dict[str, list[str]] = {}  # what stands in the way, by class
    for name, family in FAMILIES.items():
        parts = catalogue.parts(family.model.split()[0])
        parting = [f"{group}={words[f'{group}.name']}" for group in ("arch", "norm", "residual", "pos", "ffn")
                 if (group, words[f"{group}.name"]) not in parts]
        if parting:
            stands[name] = [*parting, *[""] * len(anatomy)]  # further away than any with the same parts
            continue
        try:
            values = {attribute: words[word] for word, attribute in family.numbers.items() if word in words}
            for field in family.fields:
                values |= field.write(words, model)
            with torch.device("meta"):
                config_class = getattr(transformers, family.config)
                known = vars(config_class())  # what the class does not know it would keep, and not heed
                config = config_class(**{**family.fixed, **{key: value for key, value in values.items() if key in known}})
                for token in ("pad", "bos", "eos", "cls", "sep"):  # their defaults are of the vocabulary they were made for
                    if (getattr(config, f"{token}_token_id", None) or 0) >= words["arch.vocab"]:
                        setattr(config, f"{token}_token_id", None)
                theirs = getattr(transformers, name.split()[0])(config)
                if "head.weight" in dict(model.named_parameters()):
                    _untie(theirs)
                read = _read(family, theirs)
                other = _anatomy(registry.build("arch", read["arch"], read))
        except Exception as error:  # transformers' classes refuse each in its own way what they are not made for
            stands[name] = [registry.first_line(error), *[""] * (len(anatomy) // 2)]
            continue
        stands[name] = [key for key in sorted({*anatomy, *other}) if not _same(anatomy.get(key), other.get(key))]
        if not stands[name]:
            return name, family, theirs
    closest = min(stands, key=lambda name: len(stands[name]))
    raise ZooError(f"transformers has no model like this one: what stands in the way of the closest, {closest}, is"
                   f" {', '.join(filter(None, stands[closest][:4]))}")


def _same(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-9) if both else one == other


def _untie(theirs: Any) -> None:
    theirs.lm_head.weight = nn.Parameter(torch.empty_like(theirs.lm_head.weight))


def _words(model: Any) -> dict[str, Any]:
    """The configuration's words, dotted, with what the parts made of those that were left open."""
    flat: dict[str, Any] = {}

    def put(prefix: str, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            flat[f"{prefix}{key}"] = value
            if isinstance(value, Mapping):
                put(f"{prefix}{key}.", value)

    put("", {group: registry.resolve(group, model.config[group]) for group in MODEL})
    blocks = model.stacks[0].blocks
    attention = next((module for module in blocks[-1].modules() if isinstance(module, MultiHead)), None)
    if attention is not None:
        flat |= {"attn.head_dim": attention.width, "attn.scale": attention.scale, "attn.kv_heads": attention.kv_heads}
    for path, module in blocks[-1].named_modules():  # the last layer, as the first may be dense in a mixture
        if path.startswith(("ffn.", "both.sublayer.ffn")) and ".shared" not in path and hasattr(module, "out"):
            flat["ffn.expert.hidden" if ".experts." in path else "ffn.hidden"] = module.out.in_features
    if flat.get("arch.decoder_layers", 1) is None:
        flat["arch.decoder_layers"] = flat["arch.layers"]
    return flat


def _anatomy(model: nn.Module) -> dict[str, Any]:
    """All that decides what a model computes, but for the weights: its modules' kinds and constants, the weights' shapes."""
    found: dict[str, Any] = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for path, module in model.named_modules():
        found[path] = type(module).__name__
        for key, value in vars(module).items():
            if isinstance(value, int | float | str | tuple | None) and key not in UNSEEN and not key.startswith("_"):
                found[f"{path}.{key}"] = value
            elif key == "act":
                found[f"{path}.{key}"] = repr(value)
            elif key == "scaling":
                found[f"{path}.{key}"] = (type(value).__name__, *getattr(value, "__dict__", {}).items())
    return found


def _own(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights and saved buffers, each once, however many names share it."""
    seen: dict[int, str] = {}
    for name, tensor in theirs.state_dict(keep_vars=True).items():
        seen.setdefault(id(tensor), name)
    kept = set(seen.values())
    return {name: tensor.detach() for name, tensor in theirs.state_dict().items() if name in kept}


def _rows(table: str, model: nn.Module, known: Collection[str]) -> Iterator[tuple[list[tuple[str, Tensor]], list[str]]]:
    """For each weight of the model, together with those that share transformers' one, the names that transformers has."""
    left = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}
    for line in filter(None, map(str.strip, table.splitlines())):
        ours, theirs = line.split()
        pattern = re.escape(ours).replace(r"\*", r"(?P<layer>\d+)").replace("@", "(?P<kind>weight|bias)").replace(r"\#", r"\d+")
        pattern = re.sub(r"\\{(.*?)\\}", lambda words: f"({words[1].replace(',', '|')})", pattern)
        groups: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}
        for name in left:
            if match := re.fullmatch(pattern, name):
                found = match.groupdict()
                groups.setdefault((found.get("layer", ""), found.get("kind", "")), []).append((name, left[name]))
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
    words = [[template.replace(choice[0], word) for word in either.split("|")] for either in choice[1].split(",")]
    return [next((name for name in names if name in known), names[0]) for names in words]


def _as_rows(tensor: Tensor, transposed: bool = False) -> Tensor:
    """(..., columns) -> (rows, columns), and a vector as one column."""
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)
    return tensor.T if transposed else tensor.flatten(0, -2)
