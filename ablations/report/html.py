"""The page of a report: one file, without a network, for a phone and in the dark as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1a1a1a; --paper: #fff; --soft: #666; --line: #ddd; --box: #f5f6f8;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --soft: #a0a4ab; --line: #34383f; --box: #1f2228; }
}
body {
  color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 60rem; padding: 1rem; overflow-wrap: anywhere;
}
h1 { font-size: 1.5rem; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.question { font-size: 1.1rem; color: var(--soft); margin: 0 0 1rem; }
ul.conclusions { list-style: none; padding: 0; }
ul.conclusions li {
  border-left: 4px solid var(--line); margin: .5rem 0; padding: .35rem .75rem;
  background: var(--box);
}
li.better { border-color: #009e73 !important; }
li.worse { border-color: #d55e00 !important; }
li.equivalent { border-color: #0072b2 !important; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; white-space: nowrap; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child {
  text-align: left; position: sticky; left: 0; background: var(--paper); white-space: normal;
  min-width: 9rem; max-width: 14rem; overflow-wrap: break-word;
}
thead th { color: var(--soft); font-weight: 600; }
svg { display: block; width: 100%; max-width: 44rem; height: auto; }
p.about { color: var(--soft); font-size: .9375rem; }
details { margin: 1rem 0; }
summary { cursor: pointer; }
code, pre { font: .8125rem/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .75rem; overflow-x: auto; }
ul.remarks { color: var(--soft); font-size: .9375rem; }
footer { color: var(--soft); font-size: .8125rem; margin: 2rem 0 1rem; }
"""


UNFOLDED = 12  # sentences


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    svg: str


Part = str | Table | Picture  # a string is a sentence or more of plain text


@dataclass(frozen=True)
class Section:
    """Sentences, tables and pictures, as a page and a text both show them."""

    title: str
    parts: Sequence[Part]


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document; the parts are HTML already."""
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def heading(title: str, question: str) -> str:
    return f"<h1>{escape(title)}</h1>" + (
        f'<p class="question">{escape(question)}</p>' if question else ""
    )


def conclusions(sentences: Sequence[tuple[str, str]]) -> str:
    """(verdict, sentence) of each arm; of many, those that say nothing yet are folded away."""
    if len(sentences) > UNFOLDED:
        decided = [pair for pair in sentences if pair[0] in ("better", "worse", "equivalent")]
        first = decided[:UNFOLDED]
        rest = [pair for pair in sentences if pair not in first]
        title = f"{'The other' if first else 'All'} {len(rest)} arms"
        return conclusions(first) + hidden(title, _list(rest))
    return _list(sentences)


def _list(sentences: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<li class="{escape(verdict)}">{broken(sentence)}</li>' for verdict, sentence in sentences
    )
    return f'<ul class="conclusions">{items}</ul>'


def section(section: Section) -> str:
    return f"<h2>{escape(section.title)}</h2>" + "".join(map(_element, section.parts))


def _element(part: Part) -> str:
    if isinstance(part, str):
        return f'<p class="about">{escape(part)}</p>'
    return part.svg if isinstance(part, Picture) else table(part)


def hidden(title: str, *content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{''.join(content)}</details>"


def broken(cell: str) -> str:
    """A cell, whose names a narrow screen breaks where their parts meet."""
    return escape(cell).replace("_", "_<wbr>")


def table(told: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in told.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{broken(cell)}</td>" for cell in row) + "</tr>" for row in told.rows
    )
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{whole}</div>'


def remarks(lines: Sequence[str]) -> str:
    return (
        '<ul class="remarks">' + "".join(f"<li>{broken(line)}</li>" for line in lines) + "</ul>"
        if lines
        else ""
    )


def text(content: str) -> str:
    return f"<pre>{escape(content)}</pre>"
