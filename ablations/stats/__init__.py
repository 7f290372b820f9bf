"""What the runs of a study allow to be said, as functions of numbers: they read no file and know no
model.
"""

from ablations.stats.comparison import FEW_DOCUMENTS, FEWEST, compare
from ablations.stats.documents import documents
from ablations.stats.effect import Comparison, Effect
from ablations.stats.estimates import Estimate
from ablations.stats.factorial import Factorial, factorial
from ablations.stats.paired_tests import (
    POWER,
    Array,
    equivalence_test,
    holm,
    paired_t,
    seeds_needed,
    sign_flip,
    t_power,
    t_test,
)
from ablations.stats.planning import equivalent_compute, expected_best, power
from ablations.stats.shapley import shapley

__all__ = [
    "FEWEST",
    "FEW_DOCUMENTS",
    "POWER",
    "Array",
    "Comparison",
    "Effect",
    "Estimate",
    "Factorial",
    "compare",
    "documents",
    "equivalence_test",
    "equivalent_compute",
    "expected_best",
    "factorial",
    "holm",
    "paired_t",
    "power",
    "seeds_needed",
    "shapley",
    "sign_flip",
    "t_power",
    "t_test",
]
