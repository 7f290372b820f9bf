"""Refused exports: the differing part is named, for every component in every exportable model."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

import zoo
from tests.helpers.components import Choice, choices
from zoo import config, hf, models, registry
from zoo.errors import ZooError
from zoo.hf.tables import FAMILIES

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
GROUPS = ("embed", "head", "norm", "residual", "block", "pos", "attn", "ffn")


def exchanged(model: str, group: str) -> Iterator[tuple[Choice, Any]]:
    """A small model of this name, without weights, with each component of a group that it can have
    in the place of its own.
    """
    name, *changes = model.split()
    base = config.compose([f"model={name}", "size=tiny", *changes])
    for choice in choices(group):
        made = copy.deepcopy(base)
        known = registry.entry(group, choice["name"]).defaults()
        made[group] = {key: value for key, value in made[group].items() if key in known} | choice
        try:
            yield choice, models.build(made, device="meta")
        except ZooError:
            continue  # what the zoo itself refuses is tested elsewhere


def refusal(model: Any) -> str | None:
    try:
        hf.counterpart(model)
    except ZooError as refused:
        return str(refused)
    return None


def named(message: str) -> dict[str, set[str]]:
    """The classes that a refusal offers as the closest, the first first, and the groups that it
    names for each.
    """
    offered = re.findall(r"(?:the closest, |; )(\w+),? lacks ([^;]*)", message)
    assert offered, message
    return {
        name: {
            re.split(r"[.= ]", stand)[0] for stand in re.sub(r" \(.*?\)", "", stands).split(", ")
        }
        for name, stands in offered
    }


@pytest.mark.parametrize("family", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_refusal_names_only_the_differing_part(family: str) -> None:
    """Of each group the first that is refused; the others are in the slow test."""
    refused = set()
    for group in GROUPS:
        message = next(
            (
                message
                for _, model in exchanged(FAMILIES[family].model, group)
                if (message := refusal(model))
            ),
            None,
        )
        if message:
            assert named(message) == {family: {group}}
            refused.add(group)
    assert {"norm", "residual", "block", "pos", "ffn"} <= refused


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("group", GROUPS)
def test_refusal_names_only_the_differing_part_for_every_family(family: str, group: str) -> None:
    for choice, model in exchanged(FAMILIES[family].model, group):
        if message := refusal(model):
            assert {group} in named(message).values(), (
                choice
            )  # there can be another class as close, with another part


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2 block=parallel", "closest, GPT2LMHeadModel, lacks block=parallel$"),
        (
            "llama3_8b ffn=gelu attn.sinks=true",
            "closest, LlamaForCausalLM, lacks ffn=gelu, attn.sinks=True$",
        ),
        ("llama3_8b attn.sinks=true", "closest, LlamaForCausalLM, lacks attn.sinks=True$"),
        ("gpt2 attn=gqa", "closest, GPT2LMHeadModel, lacks attn.kv_heads=2$"),
        ("roberta_base head.norm.eps=0.1", "closest, RobertaForMaskedLM, lacks head.norm.eps=0.1$"),
        (
            "bart_base arch.cross.kv_heads=1 arch.cross=gqa",
            "closest, BartForConditionalGeneration, lacks arch.cross",
        ),
        ("gpt2 arch.pattern=[{norm:rms},{}]", "closest, GPT2LMHeadModel, lacks arch.pattern$"),
    ],
)
def test_refusal_names_the_differing_options(words: str, message: str) -> None:
    model, *changes = words.split()
    with pytest.raises(ZooError, match=message):
        hf.counterpart(zoo.build(model, "size=tiny", *changes))


@pytest.mark.parametrize(
    ("model", "arch", "closest"),
    [
        ("gpt2", "encoder", "Bert"),
        ("bert_base", "decoder", "CausalLM|LMHead"),
        ("t5_small", "decoder", "CausalLM|LMHead"),
        ("llama3_8b", "encoder_decoder", "ConditionalGeneration"),
    ],
)
def test_refusal_offers_only_classes_of_the_same_architecture(
    model: str, arch: str, closest: str
) -> None:
    message = refusal(zoo.build(model, "size=tiny", f"arch={arch}"))
    assert message is not None
    assert all(re.search(closest, name) for name in named(message))
