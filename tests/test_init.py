"""First values: the deviation each policy promises, and that nothing but seed, name, shape and
policy decides them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.components import (
    ARCH,
    BASE,
    Case,
    Choice,
    base,
    cases,
    choices,
    make,
    said,
    tokens,
)
from zoo import config, errors, models, optim, registry
from zoo.errors import ZooError
from zoo.launch import preflight
from zoo.launch.run_spec import RunSpec
from zoo.models import Decoder
from zoo.models.init import initialise
from zoo.nn.attention import MultiHead
from zoo.registry import register

WIDE = {"dim": 64, "layers": 2, "vocab": 100, "length": 50}


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def fresh(seed: int = 0, **parts: Any) -> Decoder:
    return models.build({"arch": ARCH} | base(**parts), seed=seed)


def check_deviation(name: str, values: Tensor, expected: float) -> None:
    """Five standard errors of a deviation and of a mean."""
    number = values.numel()
    assert values.std().item() == pytest.approx(expected, rel=5 * (2 * number) ** -0.5), name
    assert abs(values.mean().item()) < 5 * expected * number**-0.5, name


@cases("ffn", "attn", "head", "pos")
def test_fan_in(case: Case) -> None:
    """LeCun et al. 1998, section 4.6: variance 1/fan-in."""
    for name, values in parameters(make(arch=WIDE, **{case[0]: case[1]})).items():
        if values.ndim == 2:
            check_deviation(name, values, values.shape[1] ** -0.5)


@cases("ffn", "attn", "block", "residual")
def test_gpt2(case: Case) -> None:
    """Radford et al. 2019, section 2.3: .02, and 1/√N of it for the N = 2·layers projections
    into the stream.
    """
    model = make(arch=WIDE, init="gpt2", **{case[0]: case[1]})
    scaled, additions = 0, WIDE["layers"] * (1 if case == ("ffn", {"name": "none"}) else 2)
    for name, values in parameters(model).items():
        if values.ndim == 2:
            out = name.endswith(".out.weight")
            check_deviation(name, values, 0.02 / additions**0.5 if out else 0.02)
            scaled += out
    assert scaled >= additions, "every sublayer has a projection named `out`"


@cases()
def test_vectors_start_at_what_their_module_says(case: Case) -> None:
    """Norms at their constants and biases at zero: as the module itself sets them when it is
    made without a policy.
    """
    model = make(**{case[0]: case[1]})
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        constants: Any = getattr(module, "reset_parameters", None)
        keeps = constants and all(parameter.ndim < 2 for parameter in own.values())
        before = {
            name: parameter.detach().clone()
            for name, parameter in own.items()
            if parameter.ndim < 2
        }
        if keeps:
            constants()
        for name, value in before.items():
            assert torch.equal(value, own[name] if keeps else torch.zeros_like(value)), (
                f"{path}.{name}"
            )


@cases(*(group for group in BASE if group != "init"))
def test_what_two_variants_share_starts_equal(case: Case) -> None:
    one, other = parameters(make()), parameters(make(**{case[0]: case[1]}))
    shared = [
        name
        for name in one
        if name in other and one[name].shape == other[name].shape and one[name].ndim > 1
    ]
    for name in shared:
        assert torch.equal(one[name], other[name]), name
    assert "embed.weight" in shared
    if case[0] in ("norm", "pos", "ffn", "residual", "head"):
        assert "stack.blocks.1.attn.sublayer.qkv.weight" in shared


def test_projections_joined_in_one_product_start_as_they_would_alone() -> None:
    """Fewer KV heads change the joined matrix, but not the rows of the queries."""
    many, one = (
        parameters(fresh(attn=name))["stack.blocks.1.attn.sublayer.qkv.weight"]
        for name in ("mha", "mqa")
    )
    assert torch.equal(many[:16], one[:16])
    assert many.shape == (48, 16)
    assert one.shape == (16 + 2 * 4, 16)


def test_depth_adds_layers_and_changes_none() -> None:
    shallow, deep = parameters(make()), parameters(make(arch={"layers": 5}))
    assert all(torch.equal(values, deep[name]) for name, values in shallow.items())


@cases("init")
def test_every_matrix_has_a_stream_of_its_own(case: Case) -> None:
    model, other = (parameters(make(seed=seed, arch=WIDE, init=case[1])) for seed in (0, 1))
    matrices = {name: values.flatten() for name, values in model.items() if values.ndim > 1}
    for name, values in matrices.items():
        assert not torch.equal(values, other[name].flatten())
        for second, others in matrices.items():
            pair = (
                torch.stack([values[:3000], others[:3000]])
                if min(len(values), len(others)) >= 3000
                else None
            )
            if pair is not None and name != second:
                assert abs(torch.corrcoef(pair)[0, 1]) < 5 * 3000**-0.5, (name, second)


@cases("init")
def test_the_same_seed_gives_the_same_bits(case: Case) -> None:
    first, second = parameters(fresh(init=case[1])), parameters(fresh(init=case[1]))
    assert all(torch.equal(values, second[name]) for name, values in first.items())


def test_made_on_the_meta_device_or_not() -> None:
    here: Decoder = registry.build("arch", ARCH, BASE)
    initialise(here, "fan_in", 0)
    there = parameters(fresh())
    assert all(torch.equal(values, there[name]) for name, values in parameters(here).items())


def test_global_randomness_is_neither_used_nor_moved() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = parameters(fresh())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    torch.manual_seed(99)
    assert all(torch.equal(values, first[name]) for name, values in parameters(fresh()).items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_rounds_the_same_values(dtype: torch.dtype) -> None:
    expected = parameters(fresh())
    torch.set_default_dtype(dtype)
    try:
        actual = parameters(fresh())
    finally:
        torch.set_default_dtype(torch.float32)
    for name, values in actual.items():
        assert values.dtype == dtype, name
        torch.testing.assert_close(values, expected[name].to(dtype), msg=name)


def test_another_default_device_changes_nothing() -> None:
    """As in a notebook that says torch.set_default_device("cuda"); the meta device stands in for
    it.
    """
    expected = parameters(fresh())
    with torch.device("meta"):
        actual = parameters(fresh())
    for name, values in actual.items():
        assert values.device.type == "cpu", name
        assert torch.equal(values, expected[name]), name


class Table(nn.Module):
    """Known by nobody but these tests: a norm with a constant in a buffer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(dim) + 1.0, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table


@pytest.mark.usefixtures("own_registry")
def test_a_buffer_holds_what_its_module_put_there() -> None:
    """Models are made on the meta device, where a constant of the constructor has no content."""
    register("norm", "table")(Table)
    try:
        model = fresh(norm="table")
    except errors.ZooError:
        return
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, torch.arange(16) + 1.0), name


@pytest.mark.parametrize("choice", choices("norm"), ids=said)
def test_a_norm_starts_neutral(choice: Choice) -> None:
    """Whatever it does beside, a fresh norm adds nothing of its own to zeros."""
    norm: Any = make(norm=choice).stack.norm
    assert torch.equal(norm(torch.zeros(3, 16)), torch.zeros(3, 16))


NARROW, WIDER = {"dim": 32, "heads": 4}, {"dim": 128, "heads": 4}
MUP = {"name": "mup", "dim": 32, "head_dim": 8}


@cases("attn", "ffn", "norm", "residual")
def test_mup_at_its_own_width_is_fan_in(case: Case) -> None:
    """The same values, rates and scales, so that what is known of a model at this width still
    holds.
    """
    usual = make(arch=NARROW, **{case[0]: case[1]})
    widths = [module.head_dim for module in usual.modules() if isinstance(module, MultiHead)]
    init = MUP | {"head_dim": next(iter(widths), 8)}
    ours = make(arch=NARROW, init=init, **{case[0]: case[1]})
    for name, values in parameters(usual).items():
        assert torch.equal(values, parameters(ours)[name]), name
    assert all(group["factor"] == 1 for group in optim.parameter_groups(ours, init))
    assert torch.equal(usual(tokens()), ours(tokens()))


@pytest.mark.parametrize("tied", [True, False])
def test_mup_is_the_papers(tied: bool) -> None:
    """Yang et al. 2022, table 8, and section 4 for attention; by their ratio to the narrow
    model, four times as wide.
    """
    head = {"name": "linear", "tied": tied}
    wide = make(arch=WIDER | {"vocab": 100}, init=MUP, pos="learned", ffn="moe", head=head)
    rates = {id(group["params"][0]): group["factor"] for group in optim.parameter_groups(wide, MUP)}
    for name, values in wide.named_parameters():
        hidden = "blocks" in name and values.ndim > 1
        assert rates[id(values)] == (1 / 4 if hidden else 1), name
        if values.ndim > 1:
            usual = values.shape[1] ** -0.5 if hidden else 32**-0.5
            check_deviation(name, values.detach(), usual / 2 if "router" in name else usual)
    scale = wide.stack.blocks[0].attn.sublayer.scale
    assert scale == pytest.approx(8**0.5 / 32), "1/d, and 1/√d where heads are 8 wide"
    hidden = torch.randn(3, 128)
    expected = hidden @ (wide.embed if tied else wide.head).weight.T / 4
    torch.testing.assert_close(wide.logits(hidden), expected)


def test_decay_a_step_does_not_depend_on_the_rates_factor() -> None:
    model = make(arch=WIDER, init=MUP)
    optimizer = registry.build(
        "optim",
        {"name": "adamw", "lr": 0.1, "weight_decay": 0.2},
        optim.parameter_groups(model, MUP),
    )
    assert {group["lr"] for group in optimizer.param_groups} == {0.1, 0.025}
    assert optimizer.param_groups[0]["lr"] == 0.1, "the first is the one that is shown"
    decays = [group["lr"] * group["weight_decay"] for group in optimizer.param_groups]
    assert decays == pytest.approx([0.02, 0.02, 0.0])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["attn.scale=1"], "leave attn.scale out"),
        (["head.scaled=true"], "head.scaled=false"),
        (["embed=scaled"], "embed=plain"),
        (["optim=muon"], "optim=adamw or lion"),
        (["optim=adafactor"], "optim=adamw or lion"),
        (["init.dim=0"], "at least 1"),
    ],
)
def test_what_mup_is_not_made_for_is_refused_before_a_run(words: list[str], told: str) -> None:
    words = ["init=mup", "arch.dim=256", "arch.layers=1", *words]
    with pytest.raises(ZooError, match=told):
        preflight.refuse_meaningless(RunSpec(config.compose(words)))
