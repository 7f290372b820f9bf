"""The named models: their sizes to the unit, as published and by transformers, and that each is
made of what it says.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

import zoo
from zoo import config, cost, hf, models
from zoo.config import model_usage
from zoo.errors import ZooError

NAMES = config.menu()["model"]
# Vaswani 2017 and its successors, as transformers counts them from their published configurations
TOTALS = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "bert_base head=pooler": 109_482_240,
    "bert_large head=pooler": 335_141_888,
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "bart_base": 139_420_416,
    "llama_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "mistral_7b": 7_241_732_096,
    "mixtral_8x7b": 46_702_792_704,
    "deepseek_v3": 671_026_404_352,
    "gpt2 head.tied=false": 163_037_184,
}
UNKNOWN = {
    "gpt",
    "bert",
    "t5",
    "transformer_base",
    "transformer_big",
}  # which transformers has no class for


@functools.cache
def meta(name: str, *words: str) -> Any:
    return models.build(config.compose([f"model={name}", *words]), device="meta")


def total(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


LARGEST = pytest.mark.slow  # seconds each, to make tens of thousands of experts without content


def named(names: Any) -> list[Any]:
    """Their names, the largest in the slow group."""
    return [pytest.param(name, marks=[LARGEST] * (name == "deepseek_v3")) for name in names]


@pytest.mark.parametrize("words", named(TOTALS))
def test_its_size_is_the_published_one(words: str) -> None:
    assert total(meta(*words.split())) == TOTALS[words]


@LARGEST
def test_the_bias_of_deepseek_v3s_routers_is_no_parameter() -> None:
    assert sum(buffer.numel() for buffer in meta("deepseek_v3").buffers()) == 14_848


def test_the_transformer_of_2017_is_about_the_size_of_its_paper() -> None:
    assert total(meta("transformer_base")) == pytest.approx(65e6, rel=0.04)
    assert total(meta("transformer_big")) == pytest.approx(213e6, rel=0.01)


@pytest.mark.parametrize("name", named(name for name in NAMES if name not in UNKNOWN))
def test_its_size_is_that_of_its_class_in_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    model = meta(name)
    _, _, theirs = hf.counterpart(model)
    assert total(model) == total(theirs)


@pytest.mark.parametrize("name", named(NAMES))
def test_its_file_says_what_it_is_and_how_large(name: str) -> None:
    text = (config.CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8")
    assert re.search(r"^# .*\b(19|20)\d\d\b", text, re.MULTILINE), "a paper and its year"
    said = [
        int(number.replace(",", ""))
        for number in re.findall(r"([\d,]{9,}) (?:parameters|with this one)", text)
    ]
    assert not said or total(meta(name)) in said


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_knows_its_parts(name: str) -> None:
    """Read from the files, as composing would have it."""
    users, composed = model_usage.users(), config.compose([f"model={name}"])
    for group, choice in config.choices(composed).items():
        used = users.get((group, choice), NAMES)  # of what all of them use it names none
        assert name in used or group in ("data", "tokenizer"), (group, choice)


@pytest.mark.parametrize("name", NAMES)
def test_a_toy_of_it_is_small_and_of_the_same_parts(name: str) -> None:
    composed, toy = (
        config.compose([f"model={name}"]),
        config.compose([f"model={name}", "size=tiny"]),
    )
    assert config.choices(composed) == config.choices(toy)
    assert total(models.build(toy, device="meta")) < 1_000_000
    assert config.compose([f"model={name}", "size=tiny", "arch.dim=96"])["arch"]["dim"] == 96


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3_8b", ["norm=layer"]),
        ("gpt2", ["ffn=swiglu"]),
        ("llama3_8b", ["attn=mha"]),
        ("bert_base", ["head=linear"]),
        ("t5_small", ["pos=rope", "ffn=moe"]),
        ("mixtral_8x7b", ["ffn=swiglu"]),
        ("deepseek_v3", ["attn=gqa", "arch.first=[]"]),
    ],
)
def test_any_part_can_be_exchanged(name: str, words: list[str]) -> None:
    composed = config.compose([f"model={name}", "size=tiny", *words])
    chosen = dict(word.split("=") for word in words if "." not in word)
    assert {group: config.choices(composed)[group] for group in chosen} == chosen
    models.build(composed, device="meta")


def test_what_the_command_line_says_of_a_part_is_never_left_out() -> None:
    with pytest.raises(ZooError, match="attn=mha has no option 'kv_heads'"):
        config.compose(["model=llama3_8b", "attn=mha", "attn.kv_heads=2"])


def test_the_largest_costs_seconds() -> None:
    told = cost.of(config.compose(["model=llama3_405b"]))
    assert told["parameters"] == TOTALS["llama3_405b"]
    # 2 tensors x 126 layers x 8 heads x 128 numbers x 4 bytes, each token
    assert told["kv_cache_bytes_per_token"] == 2 * 126 * 8 * 128 * 4


def test_zoo_build_shrinks_too() -> None:
    assert total(zoo.build("llama3_8b", "size=tiny")) < 1_000_000
