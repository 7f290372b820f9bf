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
NEVER = -1e4  # a logit for what is never said, finite in 16 bits, too


def export(checkpoint: Any, folder: Path) -> None:
    """Write a run's model and tokenizer as transformers saves them (safetensors), so that its pipelines do what the zoo does.

    Documents start with end-of-text, which pads, too, as in the run; what the objective needs beside the text's tokens (mask,
    start, sentinels) has the ids that it was trained with. Raises ZooError for a folder that holds something, and what to_hf
    raises.
    """
    extras.need("transformers", "zoo.hf")
    import transformers

    if folder.exists() and any(folder.iterdir()):
        raise ZooError(f"{folder} is not empty: choose another out=FOLDER")
    model, tokenizer, config = checkpoint_weights.load_model(checkpoint)
    objective = registry.build(
        "objective", config["objective"], tokenizer, config["loader"]["length"]
    )
    named, pad, theirs = objective.special_tokens, EOT, to_hf(model)
    if (
        theirs.config.pad_token_id is not None
    ):  # it knows padding by its id, and counts positions from there
        named, pad = {**named, PAD: tokenizer.vocab + objective.extra}, PAD
        theirs = to_hf(_with_padding(model, named[PAD]))
    roles = {"bos_token": EOT, "eos_token": EOT, "pad_token": pad}
    if model.family == "encoder":
        roles |= {"cls_token": EOT, "sep_token": EOT, "mask_token": MASK_TOKEN}
    known = {EOT: tokenizer.eot, **named}
    ids = {f"{role}_id": known[token] for role, token in roles.items() if token in known}
    if START_TOKEN in named:
        ids["decoder_start_token_id"] = named[START_TOKEN]
    theirs.config.update(ids)
    if theirs.can_generate():
        theirs.generation_config.update(**ids)
    written = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.to_library(named),
        model_max_length=model.limit or config["arch"]["length"],
        padding_side="left" if model.family == "decoder" else "right",
        clean_up_tokenization_spaces=False,
        extra_special_tokens=[token for token in named if token not in roles.values()],
        **roles,
    )
    theirs.save_pretrained(folder)
    written.save_pretrained(folder)


@torch.no_grad()
def _with_padding(model: Any, pad: int) -> Any:
    """The same model with a token that no text has, and with its positions behind as many rows that nobody reads."""
    config = copy.deepcopy(model.config)
    config["arch"]["vocab"], config["pos"]["offset"] = (
        max(config["arch"]["vocab"], pad + 1),
        pad + 1,
    )
    wider = models.build(config, device="meta").to_empty(device="cpu").eval()
    weights = wider.state_dict()
    for name, rows in model.state_dict().items():
        behind = name.startswith("stack.positions.")
        place = slice(-model.limit, None) if behind else slice(None, len(rows))
        weights[name].zero_()[place] = rows[-model.limit :] if behind else rows
    if model.config["arch"]["vocab"] <= pad:
        wider.head.bias[pad] = NEVER
    return wider
