"""What is measured of a run: the unit of each metric, which way it is better, and what a run counts
as that learned nothing.

The one place that knows: a study is judged, tuned, drawn and told by what stands here, and by no
part of a metric's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zoo import registry
from zoo.errors import ZooError, did_you_mean

Summary = Mapping[str, Any]  # the content of a run's summary.json
HUGE = 1e100  # beyond which a value is no number, nor is its square


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    better: (
        Literal["lower", "higher"] | None
    )  # None where neither is, so that no arm can be better by it
    unigram: Callable[[Summary], float | None] | None = (
        None  # what a model has that knows no more than each token's frequency
    )
    diverged: float | None = (
        None  # what a run counts as that diverged, where there is no unigram model to compare with
    )
    share: bool = False  # whether it is a share of one already, of which per cent would be misread

    @property
    def lower_is_better(self) -> bool:
        return self.better == "lower"


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else a summary may hold there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if abs(value) < HUGE else None  # which not-a-number is not


def unigram_nats(summary: Summary) -> float | None:
    """The loss of the unigram model on a run's validation text; None where the run's loss is not
    over such a text.
    """
    return number(summary.get("unigram_nats", (summary.get("data") or {}).get("unigram_nats")))


def _perplexity(summary: Summary) -> float | None:
    nats = unigram_nats(summary)
    return None if nats is None else math.exp(min(nats, 700))


def _bits_per_byte(summary: Summary) -> float | None:
    nats, text = (
        unigram_nats(summary),
        ((summary.get("data") or {}).get("splits") or {}).get("val") or {},
    )
    tokens, size = number(text.get("tokens")), number(text.get("bytes"))
    return nats / math.log(2) * tokens / size if nats is not None and tokens and size else None


EVALUATED = (  # by an evaluation, in this order
    Metric("val/loss", "nats per token", "lower", unigram=unigram_nats),
    Metric("val/perplexity", "units of perplexity", "lower", unigram=_perplexity),
    Metric("val/bits_per_byte", "bits per byte", "lower", unigram=_bits_per_byte),
    Metric("val/accuracy", "units of accuracy", "higher", diverged=0.0, share=True),
)
TRAINED = (  # of the last row of metrics.csv
    Metric("train/loss", "nats per token", "lower"),
    Metric("train/lr", "learning rate", None),
    Metric("train/tokens_per_second", "tokens per second", "higher"),
)
METRICS = {metric.name: metric for metric in (*EVALUATED, *TRAINED)}


def known() -> dict[str, Metric]:
    """Every metric by its name: those of the zoo, and those that other packages declare in the
    group `metric`.
    """
    names = registry.entries("metric")
    return METRICS | {name: registry.build("metric", name) for name in names}


def of(name: str) -> Metric:
    """The metric of this name. Raises ZooError where there is none, or none by which an arm
    could be better.
    """
    metrics = known()
    judging = [metric.name for metric in metrics.values() if metric.better is not None]
    if name not in metrics:
        raise ZooError(f"metric={name}: no run measures it{did_you_mean(name, judging)}")
    if metrics[name].better is None:
        raise ZooError(
            f"metric={name}: neither more nor less of it is better: choose one of"
            f" {', '.join(judging)}"
        )
    return metrics[name]
