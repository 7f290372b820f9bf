"""Every registered component passes the checks of its group, and one that does not is told what
it lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.components import BASE, Case, choices, said
from zoo import check as command
from zoo import conformance, registry
from zoo.errors import ZooError
from zoo.registry import register

SOURCES = ("data", "tokenizer")  # whose defaults are slow or need a path: tests/data has them
GROUPS = [group for group in conformance.CHECKS if group not in SOURCES]
CHECKED = [
    pytest.param(check, (group, choice), id=f"{check.__name__}-{said((group, choice))}")
    for group in GROUPS
    for check in conformance.CHECKS[group]
    for choice in choices(group)
]


@pytest.mark.parametrize(("check", "case"), CHECKED)
def test_a_component_does_what_its_group_asks(check: conformance.Check, case: Case) -> None:
    check(case)


@pytest.mark.parametrize("choice", choices("tokenizer"), ids=said)
def test_a_tokenizer_does_what_its_group_asks(choice: dict[str, Any]) -> None:
    assert [result for result in conformance.conform("tokenizer", choice) if result.found] == []


def test_a_source_of_text_does_what_its_group_asks(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"{number} words", encoding="utf-8")
    choice = {"name": "text", "path": str(tmp_path), "val_fraction": 0.2, "test_fraction": 0.2}
    assert [result for result in conformance.conform("data", choice) if result.found] == []


def test_every_group_of_a_run_has_checks() -> None:
    assert set(conformance.CHECKS) == {*BASE, "optim", "schedule", "objective", "tokenizer", "data"}
    assert all(check.__doc__ for checks in conformance.CHECKS.values() for check in checks)
    with pytest.raises(ZooError, match="no checks for arch; there are for attn,"):
        list(conformance.conform("arch", {"name": "decoder"}))


class Norm(nn.Module):
    """A norm that is right, for others to spoil."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Unused(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class OverTime(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-2, keepdim=True)) * self.weight


class Counting(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.weight


class Undeclared(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 0 * (x @ x.transpose(-1, -2)).sum()


class Overflowing(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1e30).to(x.dtype) ** 2 * self.weight


class Forgetful(Norm):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.register_buffer("noise", torch.rand(dim), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.noise


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    ("spoilt", "failing", "sentence"),
    [
        (Unused, "every_parameter_gets_a_gradient", "norm.weight is zero"),
        (OverTime, "causal_gradients", "token 0 sees the later tokens [1, 2"),
        (OverTime, "cached_is_full", ""),
        (OverTime, "padding_changes_nothing", ""),
        (OverTime, "documents_stay_apart", ""),
        (Counting, "pure_forward", "calls"),
        (Undeclared, "declared_flops", "FLOPs are declared and"),
        (Undeclared, "same_in_any_batch", None),
        (Overflowing, "shapes", "not finite"),
    ],
)
def test_a_component_that_breaks_a_promise_fails_that_check(
    spoilt: type[Norm], failing: str, sentence: str | None
) -> None:
    name = spoilt.__name__.lower()  # of its own, as models are built once per configuration
    register("norm", name, "spoilt")(spoilt)
    found = {result.name: result.found for result in conformance.conform("norm", {"name": name})}
    if sentence is None:
        assert found[failing] is None
    else:
        assert found[failing] is not None
        assert sentence in str(found[failing])


@pytest.mark.usefixtures("own_registry")
def test_a_component_that_is_right_passes() -> None:
    register("norm", "right", "right")(Norm)
    assert [
        result for result in conformance.conform("norm", {"name": "right"}) if result.found
    ] == []


Check = Callable[..., str]


@pytest.fixture
def check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Check:
    """The command line in this process; gives what it prints, or what it ends with."""

    def check(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["zoo.check", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        try:
            command.main()
            ended = ""
        except SystemExit as ending:
            ended = f"\n{ending.code}"
        return capsys.readouterr().out + ended

    monkeypatch.chdir(tmp_path)
    return check


def test_the_command_says_that_all_checks_hold(check: Check) -> None:
    assert "schedule=wsd: 1 of 1 checks hold" in check("schedule=wsd", "schedule.warmup=3")


@pytest.mark.usefixtures("own_registry")
def test_a_feed_forward_that_takes_no_context_is_told_so(check: Check, tmp_path: Path) -> None:
    source = """
from torch import nn
from zoo.registry import register


@register("ffn", "no_context")
class Mine(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x)
"""
    (tmp_path / "my_parts.py").write_text(source, encoding="utf-8")
    said = check("ffn=no_context", "--module", "my_parts.py")
    assert "its forward must take (x, context), not (x)" in said
    assert said.endswith("\n1")
    del sys.modules["my_parts"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nrom=rms"], "unknown group 'nrom'"),
        (["norm=rsm"], "unknown norm 'rsm'"),
        (["norm=rms", "norm.epss=1"], "norm=rms has no option 'epss'"),
        (["norm=rms", "ffn.hidden=1"], "only options of norm can follow"),
        (["norm=rms", "--module", "gone.py"], "there is no such file"),
        (["norm=rms", "--module", "no_such_module"], "No module named 'no_such_module'"),
    ],
)
def test_what_cannot_be_checked_is_refused(words: list[str], sentence: str, check: Check) -> None:
    assert sentence in check(*words)
    assert "norm=mine" not in registry.entries("norm")
