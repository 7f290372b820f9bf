"""Writes table.tex: the arms as a tabular for a paper."""

from __future__ import annotations

from ablations.outcomes import MARK
from ablations.report import wording
from ablations.report.arms import arm_columns, arm_rows
from ablations.results import Results, budgets
from ablations.stats import Comparison


def latex_table(results: Results, compared: Comparison | None) -> str:
    """A tabular of the arms for a paper, in booktabs' rules, with what must be said beside it below
    the last one.
    """
    keep = [0, 1, 2, 3, 4, 6, 9]
    rows = [
        [row[column] for column in keep]
        for row in [arm_columns(results), *arm_rows(results, compared)]
    ]
    body = [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    said = {arm: budgets.remark(results, arm) for arm in results.arms if arm != results.baseline}
    notes = [
        *filter(None, [results.table.note]),
        *(f"{arm}: {remark}" for arm, remark in said.items() if remark),
        *(wording.doubts(compared) if compared else []),
        *wording.warnings(results, compared),
        *wording.integrity(results),
    ]
    below = [
        rf"\multicolumn{{{len(keep)}}}{{p{{\linewidth}}}}{{\footnotesize {_tex(note)}}} \\"
        for note in notes
    ]
    return (
        "\n".join(
            [
                r"\begin{tabular}{l" + "r" * (len(keep) - 2) + "l}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                *below,
                r"\end{tabular}",
            ]
        )
        + "\n"
    )


def _tex(cell: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "−": "$-$",
        "…": r"\dots",
        "–": "--",
        "<": "$<$",
        MARK: r"\dag{}",
        "→": r"$\to$",
        "×": r"$\times$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
    return "".join(special.get(mark, mark) for mark in cell)
