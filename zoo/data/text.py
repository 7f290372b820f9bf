"""The user's own files as a source of documents."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from zoo.data.corpus import Document, Source, walk
from zoo.registry import ZooError, did_you_mean, register

READERS = {".txt": "plain", ".md": "plain", ".py": "plain", ".jsonl": "json", ".parquet": "parquet"}
# A separator stays at the end of what it closes, so that the documents together are the file.
ENDS = {"paragraph": re.compile(r"(?:(?<=\n\n)|(?<=\n\r\n))(?!\r?\n)"), "line": re.compile(r"(?<=\n)")}


@register("data", "text")
class Text(Source):
    """Your own files: a txt, md, py, jsonl or parquet file, or a folder of them.

    `path` is the file or folder. `column` names the text of a jsonl or parquet row. `sample_by` says what a document
    is: a whole file or row, a paragraph (up to and with its blank lines) or a line.
    """

    def __init__(
        self, *, path: str, column: str = "text", sample_by: Literal["document", "paragraph", "line"] = "document",
        val_fraction: float = 0.02, test_fraction: float = 0.02,
    ) -> None:
        super().__init__(val_fraction=val_fraction, test_fraction=test_fraction)
        if not path:
            raise ZooError("data.path is empty: write data.path=FILE or data.path=FOLDER")
        self.path, self.column, self.sample_by = Path(path).expanduser(), column, sample_by
        self.settings = {"column": column, "sample_by": sample_by}

    def __str__(self) -> str:
        return f"data.path={self.path}"

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        """Raises ZooError when nothing is there, or nothing that can be read."""
        suffixes = ", ".join(READERS)
        if self.path.is_file():
            if self.path.suffix.lower() not in READERS:
                raise ZooError(f"{self}: no reader for suffix {self.path.suffix!r}, only for {suffixes}")
            return [(self.path.name, self.path)]
        if self.path.exists() and not self.path.is_dir():
            raise ZooError(f"{self} is neither a file nor a folder: give one that holds text")
        if not self.path.is_dir():
            raise ZooError(f"{self}: there is no such file or folder{self._sibling()}")
        found = []
        for name, path in walk(self.path, lambda name: not name.startswith(".")):
            if path.suffix.lower() not in READERS:
                skipped[f"suffix {path.suffix or 'missing'}"] += 1
            elif not path.is_file():
                skipped["a link to nowhere, or no file"] += 1
            else:
                found.append((name, path))
        if not found:
            others = f"; it has {skipped.total()} other files" if skipped else "; it is empty"
            raise ZooError(f"{self}: no file in this folder can be read, only {suffixes}{others}")
        return found

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[Document]:
        kind = READERS[path.suffix.lower()]
        texts = [(name, _plain(path))] if kind == "plain" else self._table(kind, name, path, skipped)
        for document, text in texts:
            if self.sample_by == "document" or not text:
                yield document, text
            else:
                parts = [part for part in ENDS[self.sample_by].split(text) if part]
                yield from ((f"{document}#{number}", part) for number, part in enumerate(parts))

    def _table(self, kind: str, name: str, path: Path, skipped: Counter[str]) -> Iterator[Document]:
        if not path.stat().st_size:
            skipped["empty"] += 1
            return
        from datasets import load_dataset

        row = -1
        try:
            # Streamed, because the library's cache of converted files would outlive an edit of the file.
            for row, values in enumerate(load_dataset(kind, data_files=str(path), split="train", streaming=True)):
                if self.column not in values:
                    raise ZooError(f"{path} has no data.column={self.column}{did_you_mean(self.column, values)}")
                text = values[self.column]
                if text is None:
                    skipped["row without text"] += 1
                elif not isinstance(text, str):
                    kind = type(text).__name__
                    raise ZooError(f"{path}, row {row + 1}: data.column={self.column} holds {kind}, not text")
                else:
                    yield f"{name}#{row}", text
        except (ZooError, MemoryError):
            raise
        except Exception as error:  # the library and its readers share no base class
            reason = str(error).partition("\n")[0]
            raise ZooError(f"{path} cannot be read as {kind} after row {row + 1}: {reason}") from error

    def _sibling(self) -> str:
        if not self.path.parent.is_dir():
            return f" (nor is there a folder {self.path.parent})"
        names = [path.name for path in self.path.parent.iterdir()]
        close = difflib.get_close_matches(self.path.name, names, 1)
        return f": did you mean {self.path.with_name(close[0])}?" if close else f" in {self.path.parent.resolve()}"


def _plain(path: Path) -> str:
    content = path.read_bytes()
    nul = content.find(b"\0")
    if nul >= 0:
        raise ZooError(f"{path} is not a text file: NUL byte at offset {nul}. Take it out of data.path")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = f"byte 0x{content[error.start]:02x} at offset {error.start}"
        raise ZooError(f"{path} is not UTF-8 text: {where}. Convert it or take it out of data.path") from None
