"""Reads text out of files, by a reader for each suffix, and names what no reader can read."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from zoo.data.source import Unreadable, shown
from zoo.errors import did_you_mean, first_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Texts = Iterator[tuple[str, str | None]]
FIRST_ROWS = 1000  # of a jsonl file, in one of which its column has to be
PIECE = 1 << 20  # bytes of a file that are looked at together


class Reader(NamedTuple):
    """Reads one kind of file.

    `texts(path, column)` yields the texts of a file, each with its row number as `#0`, or None for
    a row that has none; a file that is one text has no number. It reads the file that is named,
    whatever the name looks like. `check(path, column)` finds what can be found at the speed of the
    disk. Both raise Unreadable.
    """

    check: Callable[[Path, str], None]
    texts: Callable[[Path, str], Texts]


def plain(path: Path, column: str) -> Texts:
    """Read a whole file as UTF-8, without a byte order mark."""
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
            raise _not_text(path, f"is not a text file: NUL byte at offset {offset + nul}")
        pending = len(decoder.getstate()[0])  # bytes of a character that the last piece ended in
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            byte, place = error.object[error.start], offset - pending + error.start
            reason = f"is not UTF-8 text: byte 0x{byte:02x} at offset {place}"
            raise _not_text(path, reason) from None
        offset += len(piece)


ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
COMPRESSION = {
    b"\x1f\x8b": "gzip",
    b"(\xb5/\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"PK\3\4": "zip",
}


def _not_text(path: Path, reason: str) -> Unreadable:
    """The error for a file that is not UTF-8: what it is, where its first bytes tell."""
    with path.open("rb") as file:
        head = file.read(1024)
    encoding = _by_first_bytes(head, ENCODINGS) or _utf16_without_mark(head)
    if encoding:
        return Unreadable(
            f"{shown(path)} is {encoding} text, not UTF-8",
            f"Convert it by iconv -f {encoding} -t UTF-8, or take it out of data.path",
        )
    compression = _by_first_bytes(head, COMPRESSION)
    if compression:
        return Unreadable(
            f"{shown(path)} is compressed by {compression}",
            "Unpack it, or take it out of data.path",
        )
    return Unreadable(f"{shown(path)} {reason}", "Convert it to UTF-8, or take it out of data.path")


def _by_first_bytes(head: bytes, kinds: dict[bytes, str]) -> str | None:
    return next((kind for mark, kind in kinds.items() if head.startswith(mark)), None)


def _utf16_without_mark(head: bytes) -> str | None:
    """Guess UTF-16: mostly, every second byte is zero, and none of the others is."""
    even, odd = head[::2], head[1::2]
    for name, high, low in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if len(high) >= 8 and high.count(0) > 0.7 * len(high) and not low.count(0):
            return name
    return None


# An object is a tuple of its pairs, so that a repeated key is seen; as floats, integers of any
# length can be read.
_JSON = json.JSONDecoder(object_pairs_hook=tuple, parse_int=float)
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
JSON_TYPES = {
    tuple: "an object",
    list: "an array",
    str: "a string",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def jsonl(path: Path, column: str) -> Texts:
    """Read the column of each line, a JSON object; skips blank lines, ignores other columns."""
    rows, found = 0, False
    others: list[str] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                columns = _decode(line.decode())
                values = _values(columns, column)
            except (ValueError, RecursionError) as error:
                check_plain(path, column)  # which says more of a file that is no text
                raise Unreadable(f"{shown(path)}, line {number}: {_reason(error)}") from None
            others = others or [key for key, _ in columns]
            found = found or bool(values)
            yield f"#{rows}", values[0] if values else None
            rows += 1
            if rows == FIRST_ROWS and not found:
                break
    if rows and not found:
        raise Unreadable(f"{shown(path)} has no data.column={column}{did_you_mean(column, others)}")


def _decode(line: str) -> tuple[tuple[str, object], ...]:
    """The pairs of a JSON object."""
    try:
        row = _JSON.decode(line)
    except RecursionError:
        row = _JSON.decode(_without_nested(line))
    if not isinstance(row, tuple):
        raise ValueError(f"it is {JSON_TYPES[type(row)]}, not an object")
    return row


def _without_nested(line: str) -> str:
    """A JSON object whose nested arrays and objects are emptied, however deep they are."""
    depth, copied, parts = 0, 0, []
    for match in _STRING_OR_BRACKET.finditer(line):
        if match[0] in ("[", "{"):
            depth += 1
            if depth == 2:
                parts.append(line[copied : match.end()])
                copied = len(line)
        elif match[0] in ("]", "}"):
            if depth == 2:
                copied = match.start()
            depth -= 1
    return "".join(parts) + line[copied:]


def _values(columns: tuple[tuple[str, object], ...], column: str) -> list[str | None]:
    """The values of a column: a text or None, or nothing at all."""
    values: list[str | None] = []
    for key, value in columns:
        if key != column:
            continue
        if values:
            raise ValueError(f"data.column={column} is there twice")
        if value is not None and not isinstance(value, str):
            raise ValueError(f"data.column={column} holds {JSON_TYPES[type(value)]}, not text")
        if value is not None and not _is_utf8(value):
            raise ValueError(f"data.column={column} holds half of a surrogate pair, not text")
        values.append(value)
    return values


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    what = error.msg.removesuffix(" at")
    return f"{what} at character {error.pos + 1} (each line has to be a JSON object)"


def check_jsonl(path: Path, column: str) -> None:
    check_plain(path, column)
    next(jsonl(path, column), None)


def parquet(path: Path, column: str) -> Texts:
    """Read the column of each row."""
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
    """The table in an open file (a name would be read as an address); None where it has no rows."""
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
    dtypes = [field.type for field in schema if field.name == column]
    if not dtypes:
        raise Unreadable(
            f"{shown(path)} has no data.column={column}{did_you_mean(column, schema.names)}"
        )
    if len(dtypes) > 1:
        raise Unreadable(f"{shown(path)} has data.column={column} {len(dtypes)} times")
    dtype = dtypes[0].value_type if types.is_dictionary(dtypes[0]) else dtypes[0]
    text_types = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_text(dtype) for is_text in text_types):
        raise Unreadable(f"{shown(path)}: data.column={column} holds {dtypes[0]}, not text")
    return table


PLAIN = Reader(check_plain, plain)
READERS = {
    ".txt": PLAIN,
    ".md": PLAIN,
    ".py": PLAIN,
    ".jsonl": Reader(check_jsonl, jsonl),
    ".parquet": Reader(check_parquet, parquet),
}
