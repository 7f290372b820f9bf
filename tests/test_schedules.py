"""Schedules, every one that is registered, and each against transformers' or its paper's
formula.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers.components import choices, said
from zoo import registry
from zoo.errors import ZooError
from zoo.optim.schedules import Schedule

transformers = pytest.importorskip("transformers")
STEPS, WARMUP = 100, 9


def made(name: str, **options: float | str) -> Schedule:
    return registry.build("schedule", {"name": name, **options}, STEPS)


@pytest.mark.parametrize("choice", choices("schedule"), ids=said)
def test_warm_up_starts_above_zero_and_reaches_the_full_rate(choice: dict[str, str]) -> None:
    factor = registry.build("schedule", choice | {"warmup": 10}, STEPS)
    warm = [factor(step) for step in range(11)]
    assert 0 < warm[0] < 0.2
    assert warm == sorted(warm)
    assert warm[10] == pytest.approx(1.0)
    assert all(0 < factor(step) <= 1 for step in range(STEPS)), "no step is wasted"
    assert all(0 <= factor(step) <= 1 for step in range(STEPS, 2 * STEPS))
    after = [factor(step) for step in range(10, 2 * STEPS)]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("choice", choices("schedule"), ids=said)
def test_a_warm_up_longer_than_the_run_only_rises(choice: dict[str, str]) -> None:
    factor = registry.build("schedule", choice | {"warmup": 500}, STEPS)
    values = [factor(step) for step in range(STEPS)]
    assert values == sorted(values)


@pytest.mark.parametrize("choice", choices("schedule"), ids=said)
def test_what_no_schedule_can_have_is_refused(choice: dict[str, str]) -> None:
    with pytest.raises(ZooError, match=r"schedule\.warmup must be at least 0"):
        registry.build("schedule", choice | {"warmup": -1}, STEPS)
    for word in ("final", "decay"):
        if word in registry.entry("schedule", choice["name"]).defaults():
            with pytest.raises(ZooError, match=rf"schedule\.{word} must be"):
                registry.build("schedule", choice | {word: 1.5}, STEPS)


def theirs(name: str, **options: float | str) -> list[float]:
    """The rates of one of transformers' schedules, after its warm-up, whose first rate is zero
    and ours above it.
    """
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    scheduler = getattr(transformers, f"get_{name}")(optimizer, num_warmup_steps=WARMUP, **options)
    rates = []
    for _ in range(STEPS):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates[WARMUP:]


def ours(name: str, **options: float | str) -> list[float]:
    factor = made(name, warmup=WARMUP, **options)
    return [factor(step) for step in range(WARMUP, STEPS)]


def test_those_that_transformers_has() -> None:
    whole = {"num_training_steps": STEPS}
    assert ours("constant") == pytest.approx(theirs("constant_schedule_with_warmup"))
    assert ours("linear") == pytest.approx(theirs("linear_schedule_with_warmup", **whole))
    assert ours("cosine", final=0.0) == pytest.approx(
        theirs("cosine_schedule_with_warmup", **whole)
    )
    parts = {
        "num_decay_steps": 20,
        "num_stable_steps": STEPS - WARMUP - 20,
        "warmup_type": "linear",
        "min_lr_ratio": 0.1,
    }
    for shape, name in {"linear": "linear", "sqrt": "1-sqrt"}.items():
        expected = theirs("wsd_schedule", decay_type=name, **parts)
        assert ours("wsd", decay=0.2, final=0.1, shape=shape) == pytest.approx(expected), shape


def test_the_inverse_square_root_is_the_papers() -> None:
    """Vaswani et al. 2017, equation 3: d^-.5·min(t^-.5, t·warmup^-1.5), with t from 1, over its
    own largest value.
    """
    factor, warm = made("inverse_sqrt", warmup=WARMUP), WARMUP + 1
    expected = [math.sqrt(warm) * min(t**-0.5, t * warm**-1.5) for t in range(1, STEPS + 1)]
    assert [factor(step) for step in range(STEPS)] == pytest.approx(expected)


def test_the_cosine_ends_where_it_is_told() -> None:
    factor = made("cosine", warmup=0, final=0.25)
    assert factor(0) == pytest.approx(1.0)
    assert factor(50) == pytest.approx((1 + 0.25) / 2)
    assert factor(100) == factor(1000) == pytest.approx(0.25)


def test_before_it_falls_the_stable_one_is_the_same_for_any_number_of_steps() -> None:
    short, long = (
        registry.build("schedule", {"name": "wsd", "warmup": 5}, steps) for steps in (100, 1000)
    )
    assert [short(step) for step in range(80)] == [long(step) for step in range(80)]
    assert short(90) < long(90) == 1
