"""Messages, docstrings and pages use the field's words: what they were once called does not come
back.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.modules import ROOT

UNITS = "nats|FLOPs?|bits|bytes|seconds|tokens|seeds|numbers|gradients|memory|points|trials"
OF = "token|arm|byte|second|GPU|step|seed|run|parameter"
FORBIDDEN = {  # a form, and what to say instead
    rf"\b(?:{UNITS}) an? (?:{OF})\b": "per",
    r"\b(?:goes?|going|went|gone) on (?:from|with|by|to the bit|at)\b": "resume, continue",
    r"\bthe same line\b|\bthis line again\b": "the same command",
    r"\bfirst process\b": "rank 0",
    r"\bprocess(?:es)? that reads? (?:its )?data\b": "data worker",
    r"\byour words\b|\bunknown word\b|\bsame words\b|\bwrong word\b": "override, option",
    r"\b(?:fills|learns|predicts) hidden tokens\b": "masked tokens",
    r"\b(?:in|of) 16 bits\b|\bkind of number\b": "dtype, bfloat16",
    r"\bmatrices turned\b": "column-major weights",
    r"\bthe person at the keyboard\b": "user",
    r"\blearned no more than how often\b": "no better than the unigram baseline",
    r"\"(?:As training goes on|What it costs|At each position)\"": "the section's title",
    r"\bcan be said beside\b": "other options",
    r"\bcannot reject below\b": "needs at least … seeds to reach significance",
}
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("conf/**/*.yaml")]
CODE = [path for top in ("zoo", "ablations", "benchmarks") for path in ROOT.glob(f"{top}/**/*.py")]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Each string and comment of a source file, or each line of a page, with its line number."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield token.start[0], " ".join(token.string.split())


@pytest.mark.parametrize("form", FORBIDDEN)
def test_old_words_do_not_come_back(form: str) -> None:
    pattern, found = re.compile(form, re.IGNORECASE), []
    for path in [*CODE, *PAGES]:
        if path.name != "CHANGELOG.md":
            place = path.relative_to(ROOT)
            found += [f"{place}:{line}" for line, text in prose(path) if pattern.search(text)]
    assert found == [], f"say: {FORBIDDEN[form]}"


@pytest.mark.parametrize("form", FORBIDDEN)
def test_every_form_matches_something(form: str) -> None:
    """A pattern that can match nothing would forbid nothing."""
    examples = (
        "nats a token; it goes on from there; the same line; the first process; a process that"
        " reads"
        " data; your words; fills hidden tokens; sums in 16 bits; matrices turned; the person at"
        " the"
        ' keyboard; has learned no more than how often; "What it costs"; What can be said'
        " beside;"
        " cannot reject below"
    )
    assert re.search(form, examples, re.IGNORECASE)
