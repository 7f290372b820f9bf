"""What the runs of a study allow to be said: arms against a baseline, paired by seed, with the errors over the family held."""

from ablations.stats.comparison import (
    FEW_DOCUMENTS,
    FEWEST,
    POWER,
    Array,
    Comparison,
    Effect,
    compare,
    equivalence_test,
    holm,
    paired_t,
    seeds_needed,
    t_power,
    t_test,
)

__all__ = [
    "FEWEST",
    "FEW_DOCUMENTS",
    "POWER",
    "Array",
    "Comparison",
    "Effect",
    "compare",
    "equivalence_test",
    "holm",
    "paired_t",
    "seeds_needed",
    "t_power",
    "t_test",
]
