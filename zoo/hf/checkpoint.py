"""Exports a run's checkpoint: model and tokenizer as transformers saves them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from zoo import models, registry
from zoo.checkpoints import weights as checkpoint_weights
from zoo.data.tokenizers import EOT
from zoo.errors import ZooError
from zoo.hf.convert import to_hf
from zoo.objectives import MASK_TOKEN, START_TOKEN
from zoo.utils import extras

PAD = "<|pad|>"
NEVER = -1e4  # a logit for what is never predicted, finite in float16, too


def export(checkpoint: str | Path, folder: Path) -> None:
    """Write a run's model and tokenizer as transformers saves them (safetensors).

    Its pipelines then do what the zoo does: documents start with end-of-text, which pads, too, as
    in the run; the objective's own tokens (mask, start, sentinels) have the ids that they were
    trained with. Raises ZooError for a folder that is not empty, and what to_hf raises.
    """
    extras.need("transformers", "zoo.hf")
    import transformers

    if folder.exists() and any(folder.iterdir()):
        raise ZooError(f"{folder} is not empty: choose another out=FOLDER")
    model, tokenizer, config = checkpoint_weights.load_model(checkpoint)
    objective = registry.build(
        "objective", config["objective"], tokenizer, config["loader"]["length"]
    )
    special_tokens, pad, hf_model = objective.special_tokens, EOT, to_hf(model)
    # A class with a padding token finds padding by its id, and counts positions from there.
    if hf_model.config.pad_token_id is not None:
        pad_id = tokenizer.vocab + objective.extra
        special_tokens, pad = {**special_tokens, PAD: pad_id}, PAD
        hf_model = to_hf(_with_padding(model, pad_id))
    roles = {"bos_token": EOT, "eos_token": EOT, "pad_token": pad}
    if model.family == "encoder":
        roles |= {"cls_token": EOT, "sep_token": EOT, "mask_token": MASK_TOKEN}
    known = {EOT: tokenizer.eot, **special_tokens}
    ids = {f"{role}_id": known[token] for role, token in roles.items() if token in known}
    if START_TOKEN in special_tokens:
        ids["decoder_start_token_id"] = special_tokens[START_TOKEN]
    hf_model.config.update(ids)
    if hf_model.can_generate():
        hf_model.generation_config.update(**ids)
    hf_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.to_library(special_tokens),
        model_max_length=model.limit or config["arch"]["length"],
        padding_side="left" if model.family == "decoder" else "right",
        clean_up_tokenization_spaces=False,
        extra_special_tokens=[token for token in special_tokens if token not in roles.values()],
        **roles,
    )
    hf_model.save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)


@torch.no_grad()
def _with_padding(model: Any, pad: int) -> Any:
    """The model with a padding token that no text has, and its positions moved behind the id."""
    config = copy.deepcopy(model.config)
    config["arch"]["vocab"] = max(config["arch"]["vocab"], pad + 1)
    config["pos"]["offset"] = pad + 1
    padded = models.build(config, device="meta").to_empty(device="cpu").eval()
    padded_weights = padded.state_dict()
    for name, weight in model.state_dict().items():
        target = padded_weights[name].zero_()
        if name.startswith("stack.positions."):
            target[-model.limit :] = weight[-model.limit :]
        else:
            target[: len(weight)] = weight
    if model.config["arch"]["vocab"] <= pad:
        padded.head.bias[pad] = NEVER
    return padded
