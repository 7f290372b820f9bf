"""Files as texts: a reader for each suffix, and what a file is that none of them can read."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from zoo.data.source import Unreadable, shown
from zoo.errors import did_you_mean, first_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Rows = Iterator[tuple[str, str | None]]
FIRST_ROWS = 1000  # of a jsonl file, in one of which its column has to be
PIECE = 1 << 20  # bytes of a file that are looked at together


class Reader(NamedTuple):
    """`texts(path, column)` gives the texts of a file, each with its number as `#0`, or None for a row that has none; a file
    that is one text has no number. It reads the file that is named, whatever the name looks like. `check(path, column)` finds
    what can be found at the speed of the disk. Both raise Unreadable.
    """

    check: Callable[[Path, str], None]
    texts: Callable[[Path, str], Rows]


def plain(path: Path, column: str) -> Rows:
    """The whole file as UTF-8, without a byte order mark."""
    content = path.read_bytes()
    _check_text(path, [content])
    yield "", content.decode("utf-8-sig")


def check_plain(path: Path, column: str) -> None:
    with path.open("rb") as file:
        _check_text(path, iter(lambda: file.read(PIECE), b""))


def _check_text(path: Path, pieces: Iterable[bytes]) -> None:
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    for piece in itertools.chain(pieces, [b""]):
        nul = piece.find(b"\0")
        if nul >= 0:
            raise _no_text(path, f"is not a text file: NUL byte at offset {offset + nul}")
        begun = len(decoder.getstate()[0])  # bytes of a character that the piece before ended in
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            where = (
                f"byte 0x{error.object[error.start]:02x} at offset {offset - begun + error.start}"
            )
            raise _no_text(path, f"is not UTF-8 text: {where}") from None
        offset += len(piece)


ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
PACKERS = {
    b"\x1f\x8b": "gzip",
    b"(\xb5/\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"PK\3\4": "zip",
}


def _no_text(path: Path, what: str) -> Unreadable:
    """What is said of a file that is not UTF-8: what it is, where its first bytes tell, else `what`."""
    with path.open("rb") as file:
        head = file.read(1024)
    encoding = next(
        (name for mark, name in ENCODINGS.items() if head.startswith(mark)),
        _utf16_without_mark(head),
    )
    packer = next((name for mark, name in PACKERS.items() if head.startswith(mark)), None)
    if encoding:
        return Unreadable(
            f"{shown(path)} is {encoding} text, not UTF-8",
            f"Convert it by iconv -f {encoding} -t UTF-8, or take it out of data.path",
        )
    if packer:
        return Unreadable(
            f"{shown(path)} is compressed by {packer}", "Unpack it, or take it out of data.path"
        )
    return Unreadable(f"{shown(path)} {what}", "Convert it to UTF-8, or take it out of data.path")


def _utf16_without_mark(head: bytes) -> str | None:
    """In most alphabets every second byte of UTF-16 is mostly zero, and none of the others."""
    for name, high, low in (
        ("UTF-16LE", head[1::2], head[::2]),
        ("UTF-16BE", head[::2], head[1::2]),
    ):
        if len(high) >= 8 and high.count(0) > 0.7 * len(high) and not low.count(0):
            return name
    return None


# An object is a tuple of its pairs, so that a key that stands twice is seen; no length of an integer is too large for a float.
_JSON = json.JSONDecoder(object_pairs_hook=tuple, parse_int=float)
KINDS = {
    tuple: "an object",
    list: "an array",
    str: "a string",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def jsonl(path: Path, column: str) -> Rows:
    """The column of each line, which is a JSON object; blank lines are passed over. No other column matters."""
    rows, found = 0, False
    others: list[str] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not line.strip():
                continue
            try:
                columns = _JSON.decode(line.decode())
                values = _values(columns, column)
            except (ValueError, RecursionError) as error:
                check_plain(path, column)  # which says more of a file that is no text
                reason = f"{error}"
                if isinstance(error, json.JSONDecodeError):
                    reason = f"{error.msg.removesuffix(' at')} at character {error.pos + 1} (each line has to be a JSON object)"
                raise Unreadable(f"{shown(path)}, line {number}: {reason}") from None
            others = others or [key for key, _ in columns]
            found = found or bool(values)
            yield f"#{rows}", values[0] if values else None
            rows += 1
            if rows == FIRST_ROWS and not found:
                break
    if rows and not found:
        raise Unreadable(f"{shown(path)} has no data.column={column}{did_you_mean(column, others)}")


def _values(columns: Any, column: str) -> list[str | None]:
    """What an object holds in a column: a text or None, or nothing at all."""
    if not isinstance(columns, tuple):
        raise ValueError(f"it is {KINDS[type(columns)]}, not an object")
    values = [value for key, value in columns if key == column]
    if len(values) > 1:
        raise ValueError(f"data.column={column} stands in it twice")
    for value in values:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"data.column={column} holds half of a surrogate pair, which is no text"
                ) from None
        elif value is not None:
            raise ValueError(f"data.column={column} holds {KINDS[type(value)]}, not text")
    return values


def check_jsonl(path: Path, column: str) -> None:
    check_plain(path, column)
    next(jsonl(path, column), None)


def parquet(path: Path, column: str) -> Rows:
    """The column of each row."""
    import pyarrow

    row = 0
    with path.open("rb") as file:
        table = _table(path, file, column)
        if table is None:
            return
        try:
            for batch in table.iter_batches(batch_size=1024, columns=[column], use_threads=False):
                for value in batch.column(column):
                    yield f"#{row}", value.as_py()
                    row += 1
        except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
            raise Unreadable(
                f"{shown(path)} cannot be read as parquet after row {row}: {first_line(error)}"
            ) from error


def check_parquet(path: Path, column: str) -> None:
    with path.open("rb") as file:
        _table(path, file, column)


def _table(path: Path, file: IO[bytes], column: str) -> ParquetFile | None:
    """The table in an open file (a name would be read as an address); None where it has no rows, and perhaps no columns."""
    import pyarrow
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    if not path.stat().st_size:
        return None
    try:
        table = ParquetFile(file)
        schema = table.schema_arrow
    except (pyarrow.ArrowException, OSError) as error:
        raise Unreadable(f"{shown(path)} cannot be read as parquet: {first_line(error)}") from error
    if not table.metadata.num_rows:
        return None
    kinds = [field.type for field in schema if field.name == column]
    if not kinds:
        raise Unreadable(
            f"{shown(path)} has no data.column={column}{did_you_mean(column, schema.names)}"
        )
    if len(kinds) > 1:
        raise Unreadable(f"{shown(path)} has data.column={column} {len(kinds)} times")
    kind = kinds[0].value_type if types.is_dictionary(kinds[0]) else kinds[0]
    if not any(
        is_text(kind)
        for is_text in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    ):
        raise Unreadable(f"{shown(path)}: data.column={column} holds {kinds[0]}, not text")
    return table


PLAIN = Reader(check_plain, plain)
READERS = {
    ".txt": PLAIN,
    ".md": PLAIN,
    ".py": PLAIN,
    ".jsonl": Reader(check_jsonl, jsonl),
    ".parquet": Reader(check_parquet, parquet),
}
