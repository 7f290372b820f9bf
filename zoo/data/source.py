"""Splits a source's documents, and fingerprints them; by default, the standard library's code."""

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
from typing import Annotated

from annotated_types import Ge, Lt

from zoo.errors import ZooError
from zoo.registry import register
from zoo.utils.files import sha256

BY_DOCUMENT, WITHIN_DOCUMENTS = "by document", "within documents"
NAMED = 5  # unreadable files that an error names
SPLITS = ("train", "val", "test")


class Unreadable(ZooError):
    """A file cannot be read, for the reason `what`; `advice` says what can be done about it."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


@dataclass(frozen=True)
class Splits:
    """The documents of each split, and how they were split.

    `documents` are {id, text}, read anew by each loop over them, so that nothing goes stale. `rule`
    says how they were split, and `cuts`, where within documents, at which characters; `bytes`
    counts the UTF-8 bytes of each split, `skipped` the files and rows left out, by reason.
    """

    documents: dict[str, Iterable[dict[str, str]]]
    rule: str
    cuts: tuple[int, int] | None
    bytes: dict[str, int]
    skipped: dict[str, int]


class Source:
    """Splits documents by a hash of their id, so that a split is stable when others come or go.

    `val_fraction` and `test_fraction` are fractions of the documents. Where that leaves a wanted
    split empty (one big file), the last parts of the text are cut off at a line end instead.
    """

    def __init__(
        self,
        *,
        val_fraction: Annotated[float, Ge(0), Lt(1)] = 0.02,
        test_fraction: Annotated[float, Ge(0), Lt(1)] = 0.02,
    ) -> None:
        if val_fraction + test_fraction >= 1:
            raise ZooError(
                f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction} must be"
                " less than 1 together"
            )
        self.fractions = {"val": val_fraction, "test": test_fraction}
        self.settings: dict[str, str] = {}  # further options that change the documents

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        """List the files to read: the id (a relative path with /) and the path of each.

        Counts what it leaves out, by reason.
        """
        raise NotImplementedError

    def check(self, path: Path) -> None:
        """Raise Unreadable for a file that `read` would refuse, as far as a quick look can tell."""

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
        """The documents of one file, as (id, text).

        Counts what it leaves out, by reason. Raises Unreadable.
        """
        raise NotImplementedError

    def fingerprint(self) -> str:
        """The SHA-256 of all files' ids and contents and of the options that change the splits."""
        options = json.dumps([type(self).__name__, self.fractions, self.settings])
        digest = hashlib.sha256(options.encode())
        with self._collect_unreadable() as attempt:
            for name, path in self.files(Counter()):
                with attempt(path):
                    content = sha256(path)
                    digest.update(_bytes(name).replace(b"\n", b"\0"))  # a name may hold \n, not \0
                    digest.update(f"\n{content}\n".encode())
        return digest.hexdigest()

    def splits(self) -> Splits:
        """Split the documents. Raises ZooError for too little text, and for unreadable files."""
        skipped, size, length = Counter[str](), Counter[str](), 0
        files = self.files(skipped)
        with self._collect_unreadable() as attempt:  # before all is read, which may take minutes
            for _, path in files:
                with attempt(path):
                    self.check(path)
        with self._collect_unreadable() as attempt:
            for name, path in files:
                with attempt(path):
                    for document, text in self._of_file(name, path, skipped):
                        size[self._split(document)] += len(text.encode())
                        length += len(text)
        if not length:
            raise ZooError(f"there is no text in {self}")
        wanted = ["train", *(split for split, fraction in self.fractions.items() if fraction)]
        cuts, rule = None, BY_DOCUMENT
        if not all(size[split] for split in wanted):
            cuts, rule = self._cuts(length), WITHIN_DOCUMENTS
        documents = {split: self.documents(split, cuts) for split in SPLITS}
        if cuts:
            size = Counter()
            for split, some in documents.items():
                size[split] = sum(len(each["text"].encode()) for each in some)
        return Splits(
            documents, rule, cuts, {split: size[split] for split in SPLITS}, dict(skipped)
        )

    def documents(self, split: str, cuts: Sequence[int] | None) -> Iterable[dict[str, str]]:
        """The {id, text} of a split, read anew by each loop.

        With the cuts that `splits` found, no text is read before.
        """
        return _Documents(self, split, tuple(cuts) if cuts else None)

    def _of_file(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
        for document, text in self.read(name, path, skipped):
            if text:
                yield document, text
            else:
                skipped["empty"] += 1

    @contextmanager
    def _collect_unreadable(self) -> Iterator[Callable[[Path], AbstractContextManager[None]]]:
        """Yield a context for the work on each file; name all unreadable ones in one error."""
        refused: list[Unreadable] = []

        @contextmanager
        def attempt(path: Path) -> Iterator[None]:
            try:
                yield
            except Unreadable as error:
                refused.append(error)
            except OSError as error:
                reason = f"{shown(path)} cannot be read ({error.strerror or error})"
                refused.append(Unreadable(reason))

        yield attempt
        if len(refused) == 1:
            raise refused[0]
        if refused:
            named = "; ".join(error.what for error in refused[:NAMED])
            others = f"; and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
            raise ZooError(
                f"{len(refused)} files of {self} cannot be read: {named}{others}. Repair or remove"
                " them"
            )

    def _split(self, name: str) -> str:
        place = int.from_bytes(hashlib.sha256(_bytes(name)).digest()[:8], "big") / 2**64
        if place < self.fractions["val"]:
            return "val"
        return "test" if place < sum(self.fractions.values()) else "train"

    def _cuts(self, length: int) -> tuple[int, int]:
        """Where val and test begin, in characters of the whole text.

        Raises ZooError when a wanted split has none.
        """
        val, test = self.fractions["val"], self.fractions["test"]
        test_start = length - int(length * test)
        val_start = test_start - int(length * val)
        no_val = bool(val) and val_start == test_start
        no_test = bool(test) and test_start == length
        if val_start <= 0 or no_val or no_test:
            raise ZooError(
                f"{self} has {length} characters, too few for val_fraction={val} and"
                f" test_fraction={test}: give more text or larger fractions"
            )
        return val_start, test_start

    def _read_split(self, split: str, cuts: Sequence[int] | None) -> Iterator[dict[str, str]]:
        start = 0
        for name, path in self.files(Counter()):
            for document, text in self._of_file(name, path, Counter()):
                if cuts is None:
                    part = text if self._split(document) == split else ""
                else:
                    part = _part(text, split, [cut - start for cut in cuts])
                    start += len(text)
                if part:
                    yield {"id": document, "text": part}


@dataclass(frozen=True)
class _Documents:
    source: Source
    split: str
    cuts: Sequence[int] | None

    def __iter__(self) -> Iterator[dict[str, str]]:
        return self.source._read_split(self.split, self.cuts)


def shown(path: Path | str) -> str:
    """A name for a message, quoted where it has a line end or bytes that are no text."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _bytes(name: str) -> bytes:
    """A file's name, which need not be text on every system."""
    return name.encode(errors="surrogatepass")


def _part(text: str, split: str, cuts: Sequence[int]) -> str:
    """The part of a text that belongs to a split, by where val and test begin in it."""
    val = _line_end(text, 0, cuts[0])
    test = val if cuts[0] == cuts[1] else _line_end(text, val, cuts[1])
    return {"train": text[:val], "val": text[val:test], "test": text[test:]}[split]


def _line_end(text: str, low: int, place: int) -> int:
    """The last line end between `low` and `place`, or `place` itself where there is none."""
    place = min(max(place, 0), len(text))
    return place if place == len(text) else text.rfind("\n", low, place) + 1 or place


@register("data", "python")
class Python(Source):
    """Python's standard library without its tests, a document per file: 11 to 12 MB everywhere."""

    # pydoc_data is the manual as one 0.8 MB string; config-* and _sysconfigdata* differ by build.
    _left_out = re.compile(
        r"tests?/|idle_test/|site-packages/|dist-packages/|__pycache__/|pydoc_data/|config-.*/"
        r"|_sysconfigdata.*"
    )

    def __str__(self) -> str:
        return f"the standard library in {sysconfig.get_path('stdlib')}"

    def files(self, skipped: Counter[str]) -> list[tuple[str, Path]]:
        root = Path(sysconfig.get_path("stdlib"))
        files = walk(root, lambda name: not self._left_out.fullmatch(name))
        return [(name, path) for name, path in files if path.suffix == ".py"]

    def read(self, name: str, path: Path, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
        try:
            yield name, path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            skipped["not UTF-8"] += 1


def walk(root: Path, keep: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """The files below a folder, in order, by relative path.

    `keep` is asked about each name; a folder's ends in /.
    """
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        folder = entry.is_dir(follow_symlinks=False)
        if not keep(f"{entry.name}/" if folder else entry.name):
            continue
        if not folder:
            yield entry.name, Path(entry.path)
            continue
        for name, path in walk(Path(entry.path), keep):
            yield f"{entry.name}/{name}", path
