"""Match budgets: solve for the width, or another option, that costs what the baseline costs.

Models are made on the meta device, where a cost is exact and takes milliseconds. A cost is nearly
linear in a width, so that a secant shows where to look.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from ablations.design import Arm, errors_of, with_overrides
from ablations.study import TOLERANCE, UNITS, Study
from zoo import cost, models
from zoo.config import Config
from zoo.errors import ZooError

Cost = dict[str, int]  # by budget


class Matched(NamedTuple):
    """An arm with its configuration and cost, after matching."""

    arm: Arm
    config: Config
    cost: Cost


def measured(config: Mapping[str, Any]) -> Cost:
    """What a run costs by each budget but seconds, which depend on the machine."""
    model = models.build(config, device="meta")
    flops = cost.BACKWARD_AND_FORWARD * cost.flops(model, config["loader"]["length"])
    tokens = _tokens(config)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "active": active(model),
        "flops_per_token": flops,
        "tokens": tokens,
        "training_flops": flops * tokens,
    }


def active(model: nn.Module) -> int:
    """Count the parameters that a token uses: without unchosen experts, tied ones once."""
    sizes: dict[int, int] = {}

    def walk(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            sizes[id(parameter)] = parameter.numel()
        for child in cost.active_children(module):
            walk(child)

    walk(model)
    return sum(sizes.values())


def match(study: Study, arms: Sequence[Arm], configs: Sequence[Config]) -> list[Matched]:
    """Match the arms to the budget of the first. Raises ZooError for an arm that has no match."""
    unmatched = []
    for arm, config in zip(arms, configs, strict=True):
        with errors_of(arm):
            unmatched.append(Matched(arm, config, measured(config)))
    if study.match in ("none", "seconds"):
        return unmatched
    for option in study.match_by:
        if not any(_has(config, option) for config in configs):
            raise ZooError(f"study {study.name}: match_by: no arm has {option}")
    target = unmatched[0].cost[UNITS[study.match]]
    matched = []
    for before in unmatched:
        with errors_of(before.arm):
            matched.append(_matched(study, before, target))
    return matched


def _matched(study: Study, before: Matched, target: int) -> Matched:
    """Solve for the option at which an arm costs `target`; an arm that is close enough stays."""
    unit = UNITS[study.match]
    if _relative(before.cost[unit], target) <= TOLERANCE:
        return before
    problem = f"{before.cost[unit]:,} {unit.replace('_', ' ')} against the baseline's {target:,}"
    option = _option(study, before, problem)
    config = copy.deepcopy(before.config)

    def cost_at(value: int) -> int:
        put(config, option, value)
        return _tokens(config) if unit == "tokens" else measured(config)[unit]

    start = _width(config, option)
    best = solve(cost_at, start, target, step(config, option))
    closest = cost_at(best)
    if _relative(closest, target) > TOLERANCE:
        raise ZooError(
            f"{problem}; the closest is {closest:,} at {option}={best}, more than 1 % away: give"
            " another match_by, or set match: none"
        )
    was = _get(before.config, option)  # None where it is left to the component
    change = f"{option}={best}" if was is None else f"{option} {was} → {best}"
    arm = with_overrides(before.arm, [f"{option}={best}"], change)
    return Matched(arm, config, measured(config))


def _option(study: Study, before: Matched, problem: str) -> str:
    """The option to solve for: the first that the arm has and does not set itself."""
    default = "trainer.max_steps" if study.match == "tokens" else "ffn.hidden"
    options = study.match_by or [default]
    for option in options:
        if not _has(before.config, option):
            continue
        if any(override.startswith(f"{option}=") for override in before.arm.differs):
            raise ZooError(
                f"{problem}, and its {option} is given: leave that out, or set match: none"
            )
        return option
    raise ZooError(
        f"{problem}, and it has no {' or '.join(options)} to match by: give match_by, or set"
        " match: none"
    )


def _relative(value: float, target: float) -> float:
    return abs(value - target) / target


def solve(cost_at: Callable[[int], int], start: int, target: int, step: int = 1) -> int:
    """The multiple of `step` at which a rising cost is closest to the target, by secants."""
    costs: dict[int, int] = {}
    trial: int | None = max(step, start // step * step)
    for _ in range(40):
        if trial is None or trial in costs:
            break
        costs[trial] = cost_at(trial)
        trial = _next_trial(costs, target, step)
    return min(costs, key=lambda trial: abs(costs[trial] - target))


def _next_trial(costs: Mapping[int, int], target: int, step: int) -> int | None:
    """Where to look next, or None where nothing closer to the target is left to find.

    The second trial is a quarter above the first. From then on it follows the secant through two
    points: the closest on either side of the target or, while every cost is on one side, the two
    closest. It bisects where the secant leads to a known point.
    """
    if target in costs.values():
        return None
    if len(costs) == 1:
        (first,) = costs
        return first + step * max(1, first // (4 * step))
    below = [trial for trial in costs if costs[trial] < target]
    above = [trial for trial in costs if costs[trial] > target]
    bracketed = bool(below and above)
    if bracketed:
        left, right = max(below), min(above)
        if right - left <= step:
            return None
    else:
        left, right = sorted(costs, key=lambda trial: abs(costs[trial] - target))[:2]
    if costs[left] == costs[right]:
        return None
    secant = left + (target - costs[left]) * (right - left) / (costs[right] - costs[left])
    trial = max(step, _nearest_multiple(secant, step))
    if bracketed and trial in costs:
        return (left + right) // (2 * step) * step
    return trial


def _nearest_multiple(value: float, step: int) -> int:
    return round(value / step) * step


def step(config: Mapping[str, Any], option: str) -> int:
    """What a width must be a multiple of."""
    if option == "arch.dim":
        return 2 * int(config["arch"]["heads"])  # an even head_dim, as RoPE needs pairs
    multiple_of = f"{option.rpartition('.')[0]}.multiple_of"
    return int(_get(config, multiple_of) or 1) if _has(config, multiple_of) else 1


def put(config: Config, option: str, value: Any) -> None:
    """Set one option in place."""
    *path, key = option.split(".")
    node: Any = config
    for name in path:
        node = node[name]
    node[key] = value


def _get(config: Mapping[str, Any], option: str) -> Any:
    node: Any = config
    for name in option.split("."):
        node = node[name]
    return node


def _has(config: Mapping[str, Any], option: str) -> bool:
    try:
        _get(config, option)
    except (KeyError, TypeError):
        return False
    return True


def _width(config: Mapping[str, Any], option: str) -> int:
    """The value of an option; where it is left to the component, the usual width."""
    value = _get(config, option)
    return int(value) if value is not None else 4 * int(config["arch"]["dim"])


def _tokens(config: Mapping[str, Any]) -> int:
    """The tokens of a run."""
    loader = config["loader"]
    return int(config["trainer"]["max_steps"] * loader["batch_size"] * loader["length"])
