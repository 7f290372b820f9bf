"""Factorials, ladders, documents and plans, by hand and on noise of which the truth is known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.power import ttest_power

from ablations import stats
from ablations.outcomes import Outcome
from ablations.stats import t_power
from zoo.errors import ZooError


def design(
    signs: Any, seeds: int = 5, noise: float = 0.1, **weights: float
) -> tuple[list[Outcome], dict[str, dict[str, str]]]:
    """Runs of a two-level design of -1 and 1 rows, with effects named as `a` or `ab`, and levels
    by arm.
    """
    generator = np.random.default_rng(0)
    factors, runs, levels = "abcdefg"[: len(signs[0])], [], {}
    for row in signs:
        at = dict(zip(factors, row, strict=True))
        arm = "".join(name for name in factors if at[name] > 0) or "base"
        levels[arm] = {name: "on" if at[name] > 0 else "off" for name in factors}
        # +-1/2 a factor, so that a weight is the effect, and an interaction's the difference of
        # differences
        mean = sum(
            weight * math.prod(at[name] / 2 for name in word) for word, weight in weights.items()
        )
        runs += [
            Outcome(arm, seed, 5 + mean + seed / 3 + noise * generator.standard_normal())
            for seed in range(seeds)
        ]
    return runs, levels


def test_a_factorial_has_main_effects_and_interactions() -> None:
    runs, levels = design(list(itertools.product([-1, 1], repeat=3)), a=1.0, b=-0.5, ab=0.8)
    found = {one.name: one for one in stats.factorial(runs, levels).effects}
    truth = {"a=on": 1, "b=on": -0.5, "c=on": 0, "a=on:b=on": 0.8, "a=on:c=on": 0, "b=on:c=on": 0}
    assert found.keys() == truth.keys()
    for name, value in truth.items():
        assert found[name].low < value < found[name].high
        assert ((found[name].p_holm or 0) < 0.05) == (value != 0)


def test_a_main_effect_is_the_mean_of_one_level_less_that_of_the_other() -> None:
    """Seeds are blocks: what they add to every arm is no noise, and three levels are each
    against the first.
    """
    levels = {f"{one}{two}": {"norm": one, "ffn": two} for one in "xyz" for two in "pq"}
    values = {
        arm: np.random.default_rng(number).standard_normal(4) for number, arm in enumerate(levels)
    }
    runs = [
        Outcome(arm, seed, value + 100 * seed)
        for arm, row in values.items()
        for seed, value in enumerate(row)
    ]
    found = {one.name: one for one in stats.factorial(runs, levels).effects}
    mean = {arm: row.mean() for arm, row in values.items()}
    expected = (mean["yp"] + mean["yq"] - mean["xp"] - mean["xq"]) / 2
    assert found["norm=y"].value == pytest.approx(expected)
    assert found["norm=z:ffn=q"].value == pytest.approx(
        mean["zq"] - mean["zp"] - mean["xq"] + mean["xp"]
    )
    assert found["norm=y"].high < 5


def test_effects_are_those_of_least_squares_with_the_seeds_as_blocks() -> None:
    """The estimates of statsmodels' least squares over all runs; the intervals of scipy's t over
    what it finds in each seed.
    """
    runs, levels = design(list(itertools.product([-1, 1], repeat=3)), a=1.0, ab=0.8)
    names = {
        "a=on": ["a"],
        "b=on": ["b"],
        "c=on": ["c"],
        "a=on:b=on": ["a", "b"],
        "a=on:c=on": ["a", "c"],
        "b=on:c=on": ["b", "c"],
    }
    signs = np.array(
        [
            [
                math.prod((levels[run.arm][factor] == "on") - 0.5 for factor in factors)
                for factors in names.values()
            ]
            for run in runs
        ]
    )
    seeds, values = np.array([run.seed for run in runs]), np.array([run.value for run in runs])
    whole = OLS(values, np.column_stack([signs, *(seeds == seed for seed in range(5))])).fit()
    each = np.array(
        [
            OLS(values[seeds == seed], np.column_stack([signs[seeds == seed], np.ones(8)]))
            .fit()
            .params
            for seed in range(5)
        ]
    )
    for row, one in enumerate(stats.factorial(runs, levels).effects):
        assert one.name == list(names)[row]
        assert one.value == pytest.approx(whole.params[row])
        test = scipy_stats.ttest_1samp(each[:, row], 0.0)
        assert (one.low, one.high, one.p) == pytest.approx(
            (*test.confidence_interval(), test.pvalue)
        )


def test_simple_effects_are_within_each_level_of_each_other_factor() -> None:
    """By hand, of three levels and two, in a third factor's mean; and by statsmodels, of the
    model without an average.
    """
    levels = {
        f"{one}{two}{three}": {"norm": one, "ffn": two, "init": three}
        for one in "xyz"
        for two in "pq"
        for three in "mn"
    }
    values = {
        arm: np.random.default_rng(number).standard_normal(5) for number, arm in enumerate(levels)
    }
    runs = [
        Outcome(arm, seed, value + 100 * seed)
        for arm, row in values.items()
        for seed, value in enumerate(row)
    ]
    found = {one.name: one for one in stats.factorial(runs, levels).simple}
    assert len(found) == 2 * 2 * 2 + 3 + 2 + 3 + 2
    for one, two in itertools.product("yz", "pq"):
        steps = [values[one + two + three] - values["x" + two + three] for three in "mn"]
        test = scipy_stats.ttest_1samp(np.mean(steps, axis=0), 0.0)
        effect = found[f"norm={one} at ffn={two}"]
        assert (effect.value, effect.p) == pytest.approx((np.mean(steps), test.pvalue))
        assert (effect.low, effect.high) == pytest.approx(tuple(test.confidence_interval()))
    within = [run for run in runs if levels[run.arm]["norm"] == "z"]
    at = np.array(
        [[levels[run.arm]["ffn"] == "q", 1, levels[run.arm]["init"] == "n"] for run in within],
        float,
    )
    fit = OLS([run.value for run in within], at).fit()
    assert found["ffn=q at norm=z"].value == pytest.approx(fit.params[0])


def test_an_interaction_is_of_the_main_effects_that_are_not_to_be_read_alone() -> None:
    found = stats.factorial(*design(list(itertools.product([-1, 1], repeat=3)), c=0.5, ab=0.8))
    assert [(one.name, found.parts[one.name]) for one in found.interacting()] == [
        ("a=on:b=on", (("a", "on"), ("b", "on")))
    ]
    off, on = found.within("a=on:b=on")
    assert (off.name, on.name) == ("a=on at b=off", "a=on at b=on")
    assert off.high < 0 < on.low, "of which the main effect, of about 0, says nothing"
    assert abs(found.effects[0].value) < 0.1
    assert (
        stats.factorial(
            *design(list(itertools.product([-1, 1], repeat=3)), a=1.0, b=1.0)
        ).interacting()
        == ()
    )


def test_a_noisy_combination_makes_no_effects_of_noise() -> None:
    """One cell of two by two with four times the sd; pooled over the cells, the error has
    degrees that it does not have.
    """
    repeats, seeds = 6000, 5
    cells = np.random.default_rng(0).standard_normal((repeats, seeds, 4)) * [1, 1, 1, 4]
    contrast = np.array([1, -1, -1, 1]) / 2
    p = scipy_stats.ttest_1samp(cells @ contrast, 0.0, axis=1).pvalue
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)
    assert np.mean(p <= 0.05) < limit
    left = (
        cells
        - cells.mean(1, keepdims=True)
        - cells.mean(2, keepdims=True)
        + cells.mean((1, 2), keepdims=True)
    )
    df = (seeds - 1) * 3
    pooled = np.sqrt((left**2).sum((1, 2)) / df / seeds)
    assert (
        np.mean(2 * scipy_stats.t.sf(abs((cells @ contrast).mean(1)) / pooled, df) <= 0.05) > limit
    )
    levels = {f"{one}{two}": {"a": one, "b": two} for one in "xy" for two in "pq"}
    for study, expected in zip(cells[:3], p[:3], strict=True):
        runs = [
            Outcome(arm, seed, study[seed, at])
            for at, arm in enumerate(levels)
            for seed in range(seeds)
        ]
        assert stats.factorial(runs, levels).effects[2].p == pytest.approx(expected)


def test_an_effect_without_variance_has_no_interval_and_is_named() -> None:
    levels = {f"{one}{two}": {"a": one, "b": two} for one in "xy" for two in "pq"}
    rows = {"xp": [1.0, 2.0, 4.0], "xq": [1.5, 2.7, 4.1], "yp": [3.0] * 3, "yq": [3.0] * 3}
    runs = [
        Outcome(arm, seed, value, stuck=arm[0] == "y")
        for arm, row in rows.items()
        for seed, value in enumerate(row)
    ]
    found = stats.factorial(runs, levels, cap=3.0)
    assert found.constant == ("b=q at a=y",)
    assert [one.name for one in found.simple] == ["a=y at b=p", "a=y at b=q", "b=q at a=x"]
    assert [one.capped for one in found.simple] == [True, True, False]


def test_seeds_that_did_not_end_in_every_arm_are_left_out() -> None:
    runs, levels = design(list(itertools.product([-1, 1], repeat=2)), a=1.0)
    missing = [run for run in runs if (run.arm, run.seed) not in [("a", 1), ("b", 3)]]
    found = stats.factorial(missing, levels)
    assert found.seeds == (0, 2, 4)
    whole = stats.factorial([run for run in runs if run.seed in found.seeds], levels)
    assert found == whole


def test_a_fraction_says_what_it_cannot_tell_apart() -> None:
    """Resolution IV keeps main effects clear, resolution III does not."""
    half = [(*row, math.prod(row)) for row in itertools.product([-1, 1], repeat=3)]
    found = stats.factorial(*design(half, a=1.0))
    names = [one.name for one in found.effects]
    assert found.simple == ()
    assert found.parts["a=on:b=on = c=on:d=on"] == (
        ("a", "on"),
        ("b", "on"),
        ("c", "on"),
        ("d", "on"),
    )
    assert found.within("a=on:b=on = c=on:d=on") == ()
    assert names[:4] == ["a=on", "b=on", "c=on", "d=on"]
    assert "a=on:b=on = c=on:d=on" in names
    assert len(names) == 7
    with pytest.raises(ZooError, match="cannot tell the effect of c=off from a=on:b=on"):
        stats.factorial(
            *design([(*row, math.prod(row)) for row in itertools.product([-1, 1], repeat=2)])
        )


def test_what_is_no_factorial_is_refused() -> None:
    runs, levels = design(list(itertools.product([-1, 1], repeat=2)))
    for given, known, said in [
        (runs, {}, "no levels for a, ab, b, base"),
        ([], levels, "no runs"),
        ([run for run in runs if run.arm != "ab"], levels, "cannot tell all"),
        ([run for run in runs if run.arm in ("base", "a")], levels, "one level only"),
        ([run for run in runs if run.seed == 0], levels, "from chance"),
        ([Outcome(run.arm, run.seed, 1.0) for run in runs], levels, "same value"),
        ([Outcome(run.arm, run.seed, None) for run in runs], levels, "give cap"),
        ([Outcome(run.arm, run.seed, None, "failed") for run in runs], levels, "no run has ended"),
        (runs, levels | {"ab": {"a": "on"}}, "the same factors"),
    ]:
        with pytest.raises(ZooError, match=said):
            stats.factorial(given, known)


# Ladders


def sets(worth: Any, rungs: str = "abc", seeds: int = 5) -> dict[frozenset[str], list[float]]:
    generator = np.random.default_rng(1)
    every = [
        frozenset(group)
        for size in range(len(rungs) + 1)
        for group in itertools.combinations(rungs, size)
    ]
    return {group: list(worth(group) + 0.01 * generator.standard_normal(seeds)) for group in every}


def test_shapley_is_the_mean_step_over_all_orders() -> None:
    values = sets(lambda group: -len(group) - 0.5 * ({"a", "b"} <= group))
    found = {one.name: one for one in stats.shapley(values)}
    for rung in "abc":
        steps = []
        for order in itertools.permutations("abc"):
            before = frozenset(order[: order.index(rung)])
            steps.append(np.array(values[before | {rung}]) - np.array(values[before]))
        assert found[rung].value == pytest.approx(np.mean(steps))
        assert found[rung].notes == ()
    assert found["a"].low < -1.25 < found["a"].high
    whole = np.mean(values[frozenset("abc")]) - np.mean(values[frozenset()])
    assert sum(one.value for one in found.values()) == pytest.approx(whole), "the shares add up"


def test_one_order_of_a_ladder_decides() -> None:
    values = sets(lambda group: -len(group))
    ladder = {
        group: runs for group, runs in values.items() if group in ({*()}, {*"a"}, {*"ab"}, {*"abc"})
    }
    with pytest.raises(ZooError, match="the order decides: a"):
        stats.shapley(ladder)
    back = {frozenset("c"): values[frozenset("c")], frozenset("bc"): values[frozenset("bc")]}
    with pytest.raises(ZooError, match="the order decides"):
        stats.shapley(ladder | {frozenset("b"): values[frozenset("b")]})
    assert {one.notes for one in stats.shapley(ladder | back)} == {("over 2 of 6 orders",)}


def test_a_ladder_that_cannot_be_climbed_is_refused() -> None:
    values = sets(lambda group: -len(group))
    for given, said in [
        ({}, "without any"),
        ({frozenset("a"): [1.0, 2.0]}, "without any"),
        ({frozenset(): [1.0, 2.0], frozenset("ab"): [1.0, 2.0]}, "no order"),
        (values | {frozenset("a"): [1.0]}, "the same seeds"),
        ({group: runs[:1] for group, runs in values.items()}, "the same seeds"),
        (values | {frozenset("a"): [math.nan] * 5}, "give the cap"),
    ]:
        with pytest.raises(ZooError, match=said):
            stats.shapley(given)
    with pytest.raises(ZooError, match="no variance"):
        stats.shapley({frozenset(): [1.0, 2.0], frozenset("a"): [2.0, 3.0]})


# Documents


def test_documents_and_seeds_are_both_samples() -> None:
    """Intervals cover where seeds and documents both vary; over documents alone they do not,
    which is why.
    """
    generator = np.random.default_rng(2)
    covered = naive = 0
    for _ in range(400):
        seeds, both = 0.3 * generator.standard_normal((6, 1)), generator.standard_normal((6, 40))
        paired = seeds + generator.standard_normal((1, 40)) + both
        found = stats.documents(paired)
        covered += found.low < 0 < found.high
        each = paired.mean(0)
        naive += abs(each.mean()) < 2 * each.std(ddof=1) / math.sqrt(40)
    assert covered / 400 >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 400)
    assert naive < covered


def test_documents_are_clustered_as_statsmodels_does() -> None:
    generator = np.random.default_rng(3)
    paired = (
        generator.standard_normal((5, 1))
        + 2 * generator.standard_normal((1, 30))
        + generator.standard_normal((5, 30))
    )
    clusters = {"groups": np.indices(paired.shape).reshape(2, -1).T}
    fit = OLS(paired.ravel(), np.ones(paired.size)).fit(
        cov_type="cluster", cov_kwds=clusters, use_t=True
    )
    found = stats.documents(paired)
    assert (found.low, found.high) == pytest.approx(tuple(fit.conf_int()[0]))
    assert found.p == pytest.approx(fit.pvalues[0])


def test_documents_whose_means_agree_still_have_an_error() -> None:
    """The sum of variances would be negative here."""
    found = stats.documents([[1.0, -1.0], [-1.0, 1.0]])
    assert found.low < 0 < found.high


def test_one_seed_says_nothing_of_others() -> None:
    found = stats.documents(np.random.default_rng(0).standard_normal((1, 50)) + 2)
    assert found.low < 2 < found.high
    assert "one seed" in found.notes[0]


@pytest.mark.parametrize(
    ("paired", "said"),
    [
        (np.zeros((2, 3)), "same in every document"),
        (np.zeros(3), "with two documents"),
        (np.zeros((3, 1)), "with two documents"),
        (np.zeros((0, 3)), "with two documents"),
        (np.array([[1.0, math.nan]]), "not a finite number"),
    ],
)
def test_documents_that_say_nothing_are_refused(paired: Any, said: str) -> None:
    with pytest.raises(ZooError, match=said):
        stats.documents(paired)


# Plans, trials and compute


def needed_n(arms: int, sd: float, rho: float, effect: float, alpha: float = 0.05) -> int | None:
    """The fewest seeds, never below 5, at which `power` is .8."""
    n = np.arange(5, 1001)
    enough = [seeds for seeds in n if stats.power(int(seeds), arms, sd, rho, effect, alpha) >= 0.8]
    return int(enough[0]) if enough else None


def test_a_plan_finds_the_seeds_it_needs() -> None:
    n = needed_n(5, 0.01, 0.2, 0.02)
    assert n is not None
    assert stats.power(n, 5, 0.01, 0.2, 0.02) >= 0.8 > stats.power(n - 1, 5, 0.01, 0.2, 0.02)
    assert needed_n(1, 0.01, 0.0, 10.0) == 5
    assert needed_n(5, 1.0, 0.0, 1e-4) is None
    assert stats.power(8, 5, 1.0, 0.8, 1.0) > stats.power(8, 5, 1.0, 0.0, 1.0)
    for bad in ((0, 1.0, 0.0), (1, 0.0, 0.0), (1, 1.0, 1.0)):
        with pytest.raises(ZooError, match="at least one arm"):
            needed_n(*bad, 1.0)


def test_power_has_a_number_for_every_effect() -> None:
    """None is alpha, a huge one is certain; of many seeds it is that of the normal, else that of
    statsmodels.
    """
    alpha, n = 0.05, np.array([2, 5, 50])
    assert t_power(0.0, n, alpha) == pytest.approx(alpha)
    sizes = np.geomspace(1e-3, 1e6, 200)
    for seeds in n:
        powers = np.array([float(t_power(size, seeds, alpha / 7)) for size in sizes])
        assert np.isfinite(powers).all()
        assert (np.diff(powers) > -1e-9).all()
        assert powers[-1] == pytest.approx(1)
    for size in (0.1, 0.5, 1.0, 2.0):
        assert t_power(size, n, alpha) == pytest.approx(ttest_power(size, n, alpha))
        both = scipy_stats.norm.sf(scipy_stats.norm.isf(alpha / 2) - np.array([2, -2]) * size).sum()
        assert t_power(2 * size / 1e3, 10**6, alpha) == pytest.approx(both, rel=1e-4)
    assert stats.power(5, 7, 0.0102, 0.2, 0.5) == pytest.approx(1)
    assert needed_n(7, 0.0102, 0.2, 0.5) == 5


def test_the_expected_best_of_k_trials() -> None:
    scores = [3.0, 1.0, 2.0]
    every = [
        np.mean([min(picked) for picked in itertools.product(scores, repeat=k)]) for k in (1, 2, 3)
    ]
    assert stats.expected_best(scores) == pytest.approx(every)
    assert stats.expected_best(scores, lower_is_better=False)[0] == pytest.approx(2)
    for bad in ([], [math.nan], [[1.0]]):
        with pytest.raises(ZooError, match="finite scores"):
            stats.expected_best(bad)


def test_equivalent_compute_lies_between_schedules_that_were_run() -> None:
    curve = [(400.0, 2.0), (100.0, 3.0), (1600.0, 1.5)]
    assert stats.equivalent_compute(curve, 2.5) == pytest.approx(200)
    assert stats.equivalent_compute(curve, 1.5) == pytest.approx(1600)
    for loss in (3.01, 1.49, math.nan):
        with pytest.raises(ZooError, match="not extrapolated"):
            stats.equivalent_compute(curve, loss)
    for bad in ([], [(1.0, 2.0)], [(0.0, 2.0), (1.0, 1.0)], [(1.0, math.nan), (2.0, 1.0)]):
        with pytest.raises(ZooError, match="two points"):
            stats.equivalent_compute(bad, 1.0)
    with pytest.raises(ZooError, match="does not fall"):
        stats.equivalent_compute([*curve, (800.0, 2.1)], 2.0)
