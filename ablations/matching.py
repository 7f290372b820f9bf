"""Budgets that match: the width, or whatever option the study names, at which an arm costs what the baseline costs.

Models are made on the meta device, where a cost is exact and takes milliseconds. A cost is nearly a straight line in a width,
so that two points show where to look.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ablations.design import Arm, naming, with_words
from ablations.study import TOLERANCE, UNITS, Study
from zoo import cost, models
from zoo.config import Config
from zoo.errors import ZooError


def measured(config: Mapping[str, Any]) -> dict[str, int]:
    """What an arm costs by each budget; seconds are of the machine, and seen afterwards."""
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


def active(model: Any) -> int:
    """Parameters that a token passes through: all but those of the experts that it does not choose. Tied ones count once."""
    seen: dict[int, int] = {}

    def walk(module: Any) -> None:
        seen.update(
            {id(parameter): parameter.numel() for parameter in module.parameters(recurse=False)}
        )
        for child in cost.active_children(module):
            walk(child)

    walk(model)
    return sum(seen.values())


def match(
    study: Study, arms: Sequence[Arm], configs: Sequence[Config]
) -> tuple[list[Arm], list[Config], list[dict[str, int]]]:
    """The arms with what makes their budgets match, their configurations and costs. Raises ZooError where none is found."""
    costs: list[dict[str, int]] = []
    for arm, config in zip(arms, configs, strict=True):
        with naming(arm):
            costs.append(measured(config))
    if study.match in ("none", "seconds"):
        return list(arms), list(configs), costs
    unit = UNITS[study.match]
    options = study.match_by or (
        ["trainer.max_steps"] if study.match == "tokens" else ["ffn.hidden"]
    )
    for option in options if study.match_by else ():
        if not any(_has(config, option) for config in configs):
            raise ZooError(f"study {study.name}: match_by: no arm has {option}")
    target = costs[0][unit]
    done: list[tuple[Arm, Config, dict[str, int]]] = []
    for arm, config, costing in zip(arms, configs, costs, strict=True):
        if off(costing[unit], target) > TOLERANCE:
            with naming(arm):
                arm, config, costing = _matched(study, arm, config, costing, target, options)
        done.append((arm, config, costing))
    return (
        [arm for arm, _, _ in done],
        [config for _, config, _ in done],
        [costing for _, _, costing in done],
    )


def off(value: float, target: float) -> float:
    return abs(value - target) / target


def _matched(
    study: Study,
    arm: Arm,
    config: Config,
    before: dict[str, int],
    target: int,
    options: Sequence[str],
) -> tuple[Arm, Config, dict[str, int]]:
    unit = UNITS[study.match]
    told = f"{before[unit]:,} {unit.replace('_', ' ')} against the baseline's {target:,}"
    option = next((option for option in options if _has(config, option)), None)
    if option is None:
        raise ZooError(
            f"{told}, and it has no {' or '.join(options)} to match by: give match_by, or match: none"
        )
    if any(word.startswith(f"{option}=") for word in arm.differs):
        raise ZooError(f"{told}, and its {option} is given: leave that out, or say match: none")
    trial = copy.deepcopy(config)

    def at(value: int) -> dict[str, int]:
        put(trial, option, value)
        return {"tokens": _tokens(trial)} if unit == "tokens" else measured(trial)

    best = solve(
        lambda value: at(value)[unit], _value(config, option), target, step(config, option)
    )
    after = at(best)
    if off(after[unit], target) > TOLERANCE:
        raise ZooError(
            f"{told}; the closest is {after[unit]:,} at {option}={best}, more than 1 % away:"
            " give another match_by, or match: none"
        )
    before_it = _get(config, option)  # None where it is left to the component
    told = f"{option}={best}" if before_it is None else f"{option} {before_it} → {best}"
    return with_words(arm, [f"{option}={best}"], told), trial, measured(trial)


def solve(cost: Callable[[int], int], start: int, target: int, step: int = 1) -> int:
    """The multiple of `step` at which a rising cost is closest to the target, by the secants of what was seen."""
    seen: dict[int, int] = {}
    low = max(step, start // step * step)
    trial: int | None = low
    for _ in range(40):
        if trial is None or trial in seen:
            break
        seen[trial] = cost(trial)
        trial = (
            _next(seen, target, step) if len(seen) > 1 else low + step * max(1, low // (4 * step))
        )
    return min(seen, key=lambda trial: abs(seen[trial] - target))


def _next(seen: Mapping[int, int], target: int, step: int) -> int | None:
    """Where to look next: where the secant says; half-way between the closest on either side, where it was already."""
    under, over = (
        [trial for trial in seen if (seen[trial] > target) is above] for above in (False, True)
    )
    near, far = (
        (max(under), min(over))
        if under and over
        else sorted(seen, key=lambda trial: abs(seen[trial] - target))[:2]
    )
    if (
        seen[near] == seen[far]
        or target in seen.values()
        or (under and over and far - near <= step)
    ):
        return None
    trial = max(
        step,
        round((near + (target - seen[near]) * (far - near) / (seen[far] - seen[near])) / step)
        * step,
    )
    return (near + far) // (2 * step) * step if trial in seen and under and over else trial


def step(config: Mapping[str, Any], option: str) -> int:
    """What a width must be a multiple of."""
    if option == "arch.dim":
        return 2 * int(config["arch"]["heads"])  # each head needs as many, and rope needs pairs
    group = option.rpartition(".")[0]
    return (
        int(_get(config, f"{group}.multiple_of") or 1)
        if _has(config, f"{group}.multiple_of")
        else 1
    )


def put(config: Config, option: str, value: Any) -> None:
    """Change one option in place."""
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


def _value(config: Mapping[str, Any], option: str) -> int:
    """A width as it is; where it is left open, what it usually is."""
    value = _get(config, option)
    return int(value) if value is not None else 4 * int(config["arch"]["dim"])


def _tokens(config: Mapping[str, Any]) -> int:
    return int(
        config["trainer"]["max_steps"] * config["loader"]["batch_size"] * config["loader"]["length"]
    )
