"""Tables for people: no word is broken, and what has no room is left out, in the order that a table states.

On a terminal a table fits its width: cells fold between words, then the columns that can be spared go, and only where not even
the others fit is the first column, of names, cut. Elsewhere nothing is folded: whoever reads a pipe folds for himself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

WIDE = 10_000  # columns, where no terminal says how many there are
NARROWEST = 8  # of a name that has to be cut


def console(file: IO[str] | None = None) -> Console:
    """Where to print: as wide as the terminal, or without an end where there is none, unless COLUMNS says how wide it is."""
    found = Console(file=file)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(file=file, width=WIDE)


def show(table: Table, where: Console | None = None, spare: Sequence[str] = ()) -> None:
    """Print a table with its title and caption; says which columns of `spare` (headings, first first) had no room."""
    where = where or console()
    title, caption = table.title, table.caption
    table.title = table.caption = None  # which would fold at the width of the table
    if title:
        where.print(title, style="italic", soft_wrap=True)
    gone = fit(table, where, spare)
    where.print(table)
    if caption:
        where.print(caption, style="dim")
    if gone:
        where.print(Text(f"no room for: {', '.join(gone)}", style="dim"))


def fit(table: Table, where: Console, spare: Sequence[str] = ()) -> list[str]:
    """Give a table's columns widths at which no word is broken, without those of `spare` for which there is no room."""
    gone = []
    for heading in spare:
        if _least(table, where) <= where.width:
            break
        table.columns[:] = [column for column in table.columns if str(column.header) != heading]
        gone.append(heading)
    needs = [_needs(column, where) for column in table.columns]
    room = where.width - _padding(table)
    if sum(need.maximum for need in needs) <= room:
        return gone
    left = room - sum(need.minimum for need in needs)
    spare_room = max(left, 0)
    shortest_first = sorted(zip(needs, table.columns, strict=True), key=lambda pair: pair[0].span)
    for done, (need, column) in enumerate(shortest_first):  # so that long cells fold before labels
        more = min(need.span, spare_room // (len(needs) - done))
        column.width = need.minimum + more
        spare_room -= more
    if left < 0:
        first = table.columns[0]
        first.width, first.overflow = max((first.width or 0) + left, NARROWEST), "fold"
    return gone


def _needs(column: Column, where: Console) -> Measurement:
    """The widths at which no word, and no line, of a column is broken."""
    wide = where.options.update(max_width=WIDE)
    found = [Measurement.get(where, wide, cell) for cell in [column.header, *column.cells]]
    most = max(each.maximum for each in found)
    return Measurement(most if column.no_wrap else max(each.minimum for each in found), most)


def _padding(table: Table) -> int:
    _, right, _, left = table.padding
    return (left + right) * len(table.columns)


def _least(table: Table, where: Console) -> int:
    return sum(_needs(column, where).minimum for column in table.columns) + _padding(table)
