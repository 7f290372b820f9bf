"""Where text comes from: documents, their fingerprint, their splits. The default is the standard library's source."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import ZooError
from zoo.registry import register

Document = tuple[str, str]  # id, text
BY_DOCUMENT, WITHIN_DOCUMENTS = "by document", "within documents"
NAMED = 5  # files that an error names, of those that cannot be read


class Unreadable(ZooError):
    """A file that cannot be read, and, where there is something to do about that, what."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


@dataclass(frozen=True)
class Splits:
    """The documents of a source, apart. `rows` are {id, text}, read anew by each loop over them, so that nothing grows stale.

    `rule` says how they were told apart, and `cuts`, where within documents, at which characters; `bytes` counts the UTF-8
    bytes of each split, `skipped` the files and rows left out, by reason.
    """

    rows: dict[str, Iterable[dict[str, str]]]
    rule: str
    cuts: tuple[int, int] | None
    bytes: dict[str, int]
    skipped: dict[str, int]


class Source:
    """Documents told apart by a hash of their id, so that a split stays the same when other documents come or go.

    `val_fraction` and `test_fraction` are shares of the documents. Where that leaves a wanted split empty (one big
    file), the last shares of the text are cut off at a line end instead.
    """

    def __init__(self, *, val_fraction: float = 0.02, test_fraction: float = 0.02) -> None:
        if min(val_fraction, test_fraction) < 0 or val_fraction + test_fraction >= 1:
            raise ZooError(
                f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction} must be 0 or more, "
                "and less than 1 together"
            )
        self.shares = {"val": val_fraction, "test": test_fraction}
        self.settings: dict[str, Any] = {}  # further options that change the documents

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        """Every file to read, in order: its id (a relative path with /) and where it is. Counts what it leaves out."""
        raise NotImplementedError

    def check(self, path: Path) -> None:
        """Raise Unreadable for a file that `read` would refuse, as far as that can be told quickly."""

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[Document]:
        """The documents of one file. Counts what it leaves out, by reason. Raises Unreadable."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """The sha256 of every file's id and content and of the options that change the documents or their splits."""
        whole = hashlib.sha256(
            json.dumps([type(self).__name__, self.shares, self.settings]).encode()
        )
        with self._together() as beside:
            for name, path in self.files(Counter()):
                with beside(path), path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                    whole.update(
                        _bytes(name).replace(b"\n", b"\0") + f"\n{content}\n".encode()
                    )  # a name may hold \n, not \0
        return whole.hexdigest()

    def splits(self) -> Splits:
        """The train, val and test documents. Raises ZooError for too little text, and for all files that cannot be read."""
        skipped, size, length = Counter[str](), Counter[str](), 0
        files = self.files(skipped)
        with self._together() as beside:  # before all is read, which may take minutes
            for _, path in files:
                with beside(path):
                    self.check(path)
        with self._together() as beside:
            for name, path in files:
                with beside(path):
                    for document, text in self._of_file(name, path, skipped):
                        size[self._split(document)] += len(text.encode())
                        length += len(text)
        if not length:
            raise ZooError(f"there is no text in {self}")
        wanted = ["train", *(split for split, share in self.shares.items() if share)]
        cuts = None if all(size[split] for split in wanted) else self._cuts(length)
        if cuts:
            size = Counter()
            for split in ("train", "val", "test"):
                size[split] = sum(len(row["text"].encode()) for row in self._rows(split, cuts))
        rows = {split: self.rows(split, cuts) for split in ("train", "val", "test")}
        rule = WITHIN_DOCUMENTS if cuts else BY_DOCUMENT
        return Splits(rows, rule, cuts, {split: size[split] for split in rows}, dict(skipped))

    def rows(self, split: str, cuts: Sequence[int] | None) -> Iterable[dict[str, str]]:
        """The {id, text} of a split, read anew by each loop; with the cuts that `splits` found, no text is read before."""
        return _Rows(self, split, tuple(cuts) if cuts else None)

    def _documents(self, skipped: Counter[str]) -> Iterator[Document]:
        for name, path in self.files(skipped):
            yield from self._of_file(name, path, skipped)

    def _of_file(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[Document]:
        for document, text in self.read(name, path, skipped):
            if text:
                yield document, text
            else:
                skipped["empty"] += 1

    @contextmanager
    def _together(self) -> Iterator[Callable[[Path], AbstractContextManager[None]]]:
        """What is done with each file, so that all of those that cannot be read are named in one error."""
        refused: list[Unreadable] = []

        @contextmanager
        def beside(path: Path) -> Iterator[None]:
            try:
                yield
            except Unreadable as error:
                refused.append(error)
            except OSError as error:
                refused.append(
                    Unreadable(f"{shown(path)} cannot be read ({error.strerror or error})")
                )

        yield beside
        if len(refused) == 1:
            raise refused[0]
        if refused:
            named = "; ".join(error.what for error in refused[:NAMED])
            others = f"; and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
            raise ZooError(
                f"{len(refused)} files of {self} cannot be read: {named}{others}. Mend them or take them out"
            )

    def _split(self, name: str) -> str:
        place = int.from_bytes(hashlib.sha256(_bytes(name)).digest()[:8], "big") / 2**64
        return (
            "val"
            if place < self.shares["val"]
            else "test"
            if place < sum(self.shares.values())
            else "train"
        )

    def _cuts(self, length: int) -> tuple[int, int]:
        """Where val and test begin, in characters of the whole text. Raises ZooError when a wanted one has none."""
        test = length - int(length * self.shares["test"])
        val = test - int(length * self.shares["val"])
        if not 0 < val <= test - bool(self.shares["val"]) or test > length - bool(
            self.shares["test"]
        ):
            raise ZooError(
                f"{self} has {length} characters, too few to set apart val_fraction={self.shares['val']} and "
                f"test_fraction={self.shares['test']}: give more text or larger fractions"
            )
        return val, test

    def _rows(self, split: str, cuts: Sequence[int] | None) -> Iterator[dict[str, str]]:
        start = 0
        for name, text in self._documents(Counter()):
            if cuts is None:
                part = text if self._split(name) == split else ""
            else:
                val = _line_end(text, 0, cuts[0] - start)
                test = val if cuts[0] == cuts[1] else _line_end(text, val, cuts[1] - start)
                part = {"train": text[:val], "val": text[val:test], "test": text[test:]}[split]
                start += len(text)
            if part:
                yield {"id": name, "text": part}


@dataclass(frozen=True)
class _Rows:
    source: Source
    split: str
    cuts: Sequence[int] | None

    def __iter__(self) -> Iterator[dict[str, str]]:
        return self.source._rows(self.split, self.cuts)


def shown(path: Path | str) -> str:
    """A name in a sentence: as it is, or quoted where it has a line end, or bytes that are no text."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _bytes(name: str) -> bytes:
    """A file's name, which need not be text on every system."""
    return name.encode(errors="surrogatepass")


def _line_end(text: str, low: int, place: int) -> int:
    """The last line end between `low` and `place`, or `place` itself in a line that fills it all."""
    place = min(max(place, 0), len(text))
    return place if place == len(text) else text.rfind("\n", low, place) + 1 or place


@register("data", "python")
class Python(Source):
    """Source files of Python's standard library without its tests, a document a file: 11 to 12 MB on every machine."""

    # pydoc_data is the manual as one 0.8 MB string; config-* and _sysconfigdata* differ from one build to the next.
    _left_out = re.compile(
        r"tests?/|idle_test/|site-packages/|dist-packages/|__pycache__/|pydoc_data/|config-.*/|_sysconfigdata.*"
    )

    def __str__(self) -> str:
        return f"the standard library in {sysconfig.get_path('stdlib')}"

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        found = walk(
            Path(sysconfig.get_path("stdlib")), lambda name: not self._left_out.fullmatch(name)
        )
        return [(name, path) for name, path in found if path.suffix == ".py"]

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[Document]:
        try:
            yield name, path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            skipped["not UTF-8"] += 1


def walk(root: Path, keep: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """The files below a folder, in order, by relative path. `keep` is asked of each name; a folder's ends in /."""
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        folder = entry.is_dir(follow_symlinks=False)
        if keep(entry.name + "/" * folder):
            if folder:
                yield from (
                    (f"{entry.name}/{name}", path) for name, path in walk(Path(entry.path), keep)
                )
            else:
                yield entry.name, Path(entry.path)
