"""Reads the user's own files as a source of documents."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from zoo.data.readers import READERS, Reader
from zoo.data.source import Source, shown, walk
from zoo.errors import ZooError
from zoo.registry import register

# A separator stays at the end of what it closes, so that the documents together are the file.
ENDS = {
    "paragraph": re.compile(r"(?:(?<=\n\n)|(?<=\n\r\n))(?!\r?\n)"),
    "line": re.compile(r"(?<=\n)"),
}


@register("data", "text")
class Text(Source):
    """Your own files: a txt, md, py, jsonl or parquet file, or a folder of them.

    `path` is the file or folder. `column` names the text of a jsonl or parquet row. `sample_by`
    says what a document is: a whole file or row, a paragraph (up to and with its blank lines) or a
    line.
    """

    def __init__(
        self,
        *,
        path: str,
        column: str = "text",
        sample_by: Literal["document", "paragraph", "line"] = "document",
        val_fraction: Annotated[float, Ge(0), Lt(1)] = 0.02,
        test_fraction: Annotated[float, Ge(0), Lt(1)] = 0.02,
    ) -> None:
        super().__init__(val_fraction=val_fraction, test_fraction=test_fraction)
        if not path:
            raise ZooError("data.path is empty: write data.path=FILE or data.path=FOLDER")
        try:
            path.encode()
        except UnicodeEncodeError:  # which no summary and no page could hold
            raise ZooError(
                f"data.path={shown(path)} is not UTF-8: rename it, or link to it by another name"
            ) from None
        self.path, self.column, self.sample_by = Path(os.path.expanduser(path)), column, sample_by
        self.settings = {"column": column, "sample_by": sample_by}

    def __str__(self) -> str:
        return f"data.path={shown(self.path)}"

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        """List the files to read. Raises ZooError when nothing is there, or nothing readable."""
        suffixes = ", ".join(READERS)
        if self.path.is_file():
            if self.path.suffix.lower() not in READERS:
                raise ZooError(
                    f"{self}: no reader for suffix {self.path.suffix!r}, only for {suffixes}"
                )
            return [(self.path.name, self.path)]
        if self.path.exists() and not self.path.is_dir():
            raise ZooError(f"{self} is neither a file nor a folder: give one that holds text")
        if not self.path.is_dir():
            raise ZooError(f"{self}: there is no such file or folder{self._similar_path()}")
        files = []
        for name, path in walk(self.path, lambda name: not name.startswith(".")):
            if path.suffix.lower() not in READERS:
                skipped[f"suffix {shown(path.suffix) or 'missing'}"] += 1
            elif not path.is_file():
                skipped["a link to nowhere, or no file"] += 1
            else:
                files.append((name, path))
        if not files:
            content = f"has {skipped.total()} files, none of them readable"
            raise ZooError(
                f"{self} {content if skipped else 'is empty'}; supported files are {suffixes}"
            )
        return files

    def check(self, path: Path) -> None:
        self._reader(path).check(path, self.column)

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
        empty = True
        for number, text in self._reader(path).texts(path, self.column):
            empty = False
            if text is None:
                skipped["row without text"] += 1
            elif self.sample_by == "document" or not text:
                yield name + number, text
            else:
                parts = [part for part in ENDS[self.sample_by].split(text) if part]
                for place, part in enumerate(parts):
                    yield f"{name}{number}#{place}", part
        if empty:
            skipped["empty"] += 1

    def _reader(self, path: Path) -> Reader:
        return READERS[path.suffix.lower()]

    def _similar_path(self) -> str:
        if not self.path.parent.is_dir():
            return f" (nor is there a folder {shown(self.path.parent)})"
        names = [path.name for path in self.path.parent.iterdir()]
        for close in difflib.get_close_matches(self.path.name, names, 1):
            return f": did you mean {shown(self.path.with_name(close))}?"
        return f" in {shown(self.path.parent.resolve())}"
