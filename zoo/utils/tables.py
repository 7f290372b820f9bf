"""Prints tables that fit a terminal: no word is broken, and columns without room are left out.

On a terminal, cells fold between words, then the columns that a table can spare go, and only where
not even the others fit is the first column, of names, cut. Elsewhere nothing is folded, since
whoever reads a pipe can fold it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

WIDE = 10_000  # columns, where there is no terminal
NARROWEST = 8  # of a name that has to be cut


def console(file: IO[str] | None = None) -> Console:
    """A console as wide as the terminal or COLUMNS, or of no limit where there is neither."""
    default = Console(file=file)
    if default.is_terminal or "COLUMNS" in os.environ:
        return default
    return Console(file=file, width=WIDE)


def show(table: Table, where: Console | None = None, spare: Sequence[str] = ()) -> None:
    """Print a table, its title and caption, and which columns of `spare` had no room.

    `spare` are headings, in the order in which they go.
    """
    where = where or console()
    title, caption = table.title, table.caption
    table.title = table.caption = None  # which would fold at the width of the table
    if title:
        where.print(title, style="italic", soft_wrap=True)
    left_out = fit(table, where, spare)
    where.print(table)
    if caption:
        where.print(caption, style="dim")
    if left_out:
        where.print(Text(f"no room for: {', '.join(left_out)}", style="dim"))


def fit(table: Table, where: Console, spare: Sequence[str] = ()) -> list[str]:
    """Set widths at which no word is broken; remove and return spare columns without room."""
    left_out = []
    for heading in spare:
        if _least(table, where) <= where.width:
            break
        table.columns[:] = [column for column in table.columns if str(column.header) != heading]
        left_out.append(heading)
    needs = [_needs(column, where) for column in table.columns]
    room = where.width - _padding(table)
    if sum(need.maximum for need in needs) <= room:
        return left_out
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
    return left_out


def _needs(column: Column, where: Console) -> Measurement:
    """The widths at which no word (minimum) and no line (maximum) of a column is broken."""
    wide = where.options.update(max_width=WIDE)
    cells = [Measurement.get(where, wide, cell) for cell in [column.header, *column.cells]]
    widest_line = max(cell.maximum for cell in cells)
    widest_word = max(cell.minimum for cell in cells)
    return Measurement(widest_line if column.no_wrap else widest_word, widest_line)


def _padding(table: Table) -> int:
    _, right, _, left = table.padding
    return (left + right) * len(table.columns)


def _least(table: Table, where: Console) -> int:
    return sum(_needs(column, where).minimum for column in table.columns) + _padding(table)
