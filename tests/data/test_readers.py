"""Readers: the text of the named files, whatever their names, encodings and other columns."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from zoo.data import cache, readers
from zoo.data.files import Text
from zoo.data.source import Unreadable
from zoo.data.streaming import Stream
from zoo.data.tokenizers import Byte
from zoo.errors import ZooError
from zoo.utils import files

WHOLE = {"val_fraction": 0, "test_fraction": 0}
# Each is a pattern, an address or an option to something; the plain ones are what the patterns
# match.
NAMES = [
    "part[1]",
    "part1",
    "q?",
    "q1",
    "a*b",
    "axb",
    "{a,b}",
    "a",
    "b",
    "**",
    "[!a]",
    "x::y",
    "file:::x",
    "zip:",
    "hf:",
    "memory:a",
    "a b",
    " ",
    "a#b",
    "a%20b",
    "new\nline",
    "new\u2028line",
    "cr\r",
    "-dash",
    "--",
    "~",
    "~nobody",
    "$HOME",
    "${x}",
    "é",
    "e\u0301",
    "a\\b",
    "'",
    '"',
    "&;|",
    "\udcff\udcfe",
    "a\udc80",
    *(
        "".join(random.Random(seed).choices("[]{}?*,:!#%~$\\\"'^-.@ \n\udcff1ab", k=8))
        for seed in range(20)
    ),
]


def write(path: Path, text: str, suffix: str) -> None:
    if suffix == ".parquet":
        with path.open("wb") as file:
            parquet.write_table(pa.table({"text": [text]}), file)
    else:
        path.write_bytes((json.dumps({"text": text}) if suffix == ".jsonl" else text).encode())


def read(path: Path | str, **options: Any) -> list[str]:
    return [
        row["text"] for row in Text(path=str(path), **WHOLE, **options).splits().documents["train"]
    ]


def learned(path: Path, place: Path) -> tuple[list[str], list[str]]:
    """The documents as they stand in the token cache, and as they come while a run trains."""
    source = Text(path=str(path), **WHOLE)
    corpus = cache.load(source, Byte(), place)
    mapped = corpus.splits["train"]
    stream = Stream(
        source.documents("train", corpus.summary["cuts"]),
        Byte(),
        len(mapped.ids) - 1,
        isolate=False,
        buffer=1,
        seed=0,
    )
    block = stream.__getitems__([0])
    streamed = np.append(block["tokens"][0].numpy(), block["labels"][0, -1].numpy())
    return documents(mapped.ids), documents(streamed)


def documents(ids: np.ndarray) -> list[str]:
    return [Byte().decode(part[1:]) for part in np.split(ids, np.flatnonzero(ids == Byte.eot))[1:]]


@pytest.mark.parametrize("suffix", readers.READERS)
def test_file_of_any_name_is_read_and_fingerprinted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    folder, texts = tmp_path / "texts", {}
    folder.mkdir()
    for number, name in enumerate(NAMES):
        texts[folder / f"{name}{suffix}"] = f"text {number}"
        write(folder / f"{name}{suffix}", f"text {number}", suffix)
    assert len(texts) == len(NAMES)
    mapped, streamed = learned(folder, tmp_path / "cache")
    assert sorted(mapped) == sorted(streamed) == sorted(texts.values())
    monkeypatch.chdir(folder)
    seen = {Text(path=str(folder), **WHOLE).fingerprint()}
    for path, text in texts.items():
        if any("\ud800" <= letter <= "\udfff" for letter in path.name):
            with pytest.raises(ZooError, match=r"is not UTF-8: rename it"):
                Text(path=str(path))
            continue
        assert read(path) == read(path.name) == [text], ascii(path.name)
        one = Text(path=str(path), **WHOLE).fingerprint()
        write(path, f"new {text}", suffix)
        assert read(path) == [f"new {text}"], ascii(path.name)
        new = {
            Text(path=str(path), **WHOLE).fingerprint(),
            Text(path=str(folder), **WHOLE).fingerprint(),
        }
        assert len(new) == 2
        assert not new & (seen | {one}), ascii(path.name)
        seen |= new


def test_fingerprint_is_the_hash_of_options_names_and_contents(tmp_path: Path) -> None:
    """A name with a line end is not taken for another name and a content."""
    first, second = b"one", b"two"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.txt").write_bytes(first)
    (tmp_path / "a" / "b.txt").write_bytes(second)
    whole = json.dumps(
        ["Text", {"val": 0.02, "test": 0.02}, {"column": "text", "sample_by": "document"}]
    )
    parts = "".join(
        f"{name}\n{hashlib.sha256(text).hexdigest()}\n"
        for name, text in (("a.txt", first), ("b.txt", second))
    )
    assert (
        Text(path=str(tmp_path / "a")).fingerprint()
        == hashlib.sha256((whole + parts).encode()).hexdigest()
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"a.txt\n{hashlib.sha256(first).hexdigest()}\nb.txt").write_bytes(second)
    assert (
        Text(path=str(tmp_path / "b")).fingerprint() != Text(path=str(tmp_path / "a")).fingerprint()
    )


def test_names_that_are_not_utf8_are_counted_and_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.\udcff").write_text("b")
    skipped = Text(path=str(tmp_path), **WHOLE).splits().skipped
    assert skipped == {"suffix '.\\udcff'": 1}
    files.write_json(tmp_path / "summary.json", {"path": "b.\udcff"})
    assert files.read_json(tmp_path / "summary.json") == {"path": "b.\udcff"}


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (lines(*[{"text": "2020-01-01T00:00:00"}] * 3), ["2020-01-01T00:00:00"] * 3),
        (
            lines(
                {"text": "12", "n": 1},
                {"text": "1.5", "n": "n/a"},
                {"n": [{"text": 3}], "text": "x"},
            ),
            ["12", "1.5", "x"],
        ),
        (
            b'{"text": "a", "n": NaN}\n{"n": '
            + b"9" * 5000
            + b', "text": "b"}\n{"n": 1, "n": 2, "text": "c"}',
            ["a", "b", "c"],
        ),
        (
            '{"text": "a\u2028b\x85c\x0c"}\r\n\r\n \n{"text": "d\\r\\n"}'.replace(
                "\x0c", ""
            ).encode(),
            ["a\u2028b\x85c", "d\r\n"],
        ),
        (codecs.BOM_UTF8 + lines({"text": "\ufeffa"}), ["\ufeffa"]),
        (
            lines({"n": 1}, {"text": None}, {"text": ""}, {"text": "\0 and \U0001f600"}),
            ["\0 and \U0001f600"],
        ),
        (lines({"text": "x" * 3_000_000}), ["x" * 3_000_000]),
        (
            b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b', "text": "a]}", "m": [{"text": "b"}]}',
            ["a]}"],
        ),
    ],
)
def test_other_jsonl_columns_are_ignored(tmp_path: Path, content: bytes, texts: list[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert read(tmp_path / "a.jsonl") == texts


def test_other_jsonl_column_may_change_its_type(tmp_path: Path) -> None:
    row = lines({"text": "x" * 100_000, "score": None})
    (tmp_path / "a.jsonl").write_bytes(row * 110 + lines({"text": "y", "score": "n/a"}))
    assert read(tmp_path / "a.jsonl")[-1] == "y"
    (tmp_path / "a.jsonl").write_bytes(b"\n" + row * 110 + lines({"text": 3}))
    with pytest.raises(
        Unreadable, match=r"a\.jsonl, line 112: data\.column=text holds a number, not text"
    ):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"text": {"a": 1}}', "holds an object, not text"),
        (b'{"text": ["a"]}', "holds an array, not text"),
        (b'{"text": true}', "holds true or false, not text"),
        (b'{"text": NaN}', "holds a number, not text"),
        (b'{"text": "a\\ud800"}', "holds half of a surrogate pair, not text"),
        (b'{"text": "a", "te\\u0078t": "b"}', "is there twice"),
        (b'["text", "a"]', "it is an array, not an object"),
        (b'"text"', "it is a string, not an object"),
        (b"null", "it is null, not an object"),
        (
            b'{"text": "a"} {"text": "b"}',
            "Extra data at character 15 .each line has to be a JSON object",
        ),
        (b'{"text": "a\tb"}', "Invalid control character at character 12"),
        (b"[" * 100_000 + b"]" * 100_000, "it is an array, not an object"),
        (b"[" * 100_000, "Expecting value at character 3"),
        (
            b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "holds an array, not text",
        ),
    ],
)
def test_unreadable_jsonl_row_is_named_by_its_line(tmp_path: Path, row: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "x"}\r\n\n{"text": null}\n' + row + b"\n" + lines({"text": "y"})
    )
    with pytest.raises(Unreadable, match=rf"a\.jsonl, line 4: .*{reason}") as error:
        read(tmp_path / "a.jsonl")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_every_parquet_text_type_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["a", None, "\0\u2028", "b"] * 1000
    nested = pa.array([{"text": 1}] * len(texts))
    table = pa.table({"a": nested, "a.text": pa.array(texts, kind), "n": range(len(texts))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1500)
    assert read(tmp_path / "a.parquet", column="a.text") == [text for text in texts if text]


@pytest.mark.parametrize(
    "values", [pa.array([b"a"]), pa.array([1]), pa.array([["a"]]), pa.array([0], pa.timestamp("s"))]
)
def test_parquet_column_of_another_type_is_refused(tmp_path: Path, values: pa.Array) -> None:
    parquet.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(
        Unreadable, match=r"a\.parquet: data\.column=text holds [\w<: >\[\]]+, not text"
    ):
        read(tmp_path / "a.parquet")


def test_empty_files_are_counted_as_skipped(tmp_path: Path) -> None:
    schemas = {
        "none": pa.schema([]),
        "null": pa.schema([("text", pa.null())]),
        "some": pa.schema([("text", pa.string())]),
    }
    for name, schema in schemas.items():
        parquet.write_table(schema.empty_table(), tmp_path / f"{name}.parquet")
    (tmp_path / "no.parquet").touch()
    (tmp_path / "no.jsonl").touch()
    (tmp_path / "blank.jsonl").write_bytes(codecs.BOM_UTF8 + b"\n \r\n")
    (tmp_path / "mark.txt").write_bytes(codecs.BOM_UTF8)
    write(tmp_path / "z.parquet", "text", ".parquet")
    source = Text(path=str(tmp_path), **WHOLE)
    assert source.splits().skipped == {"empty": 7}
    assert read(tmp_path) == ["text"]


@pytest.mark.parametrize("suffix", readers.READERS)
def test_byte_order_mark_is_not_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write(path, "\ufefftext", suffix)
    assert read(path) == (["\ufefftext"] if suffix in (".jsonl", ".parquet") else ["text"])


@pytest.mark.parametrize("suffix", [".txt", ".md", ".py", ".jsonl"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            '{"text": "naïve"}\n'.encode("utf-16"),
            "is UTF-16 text, not UTF-8.*iconv -f UTF-16 -t UTF-8",
        ),
        (codecs.BOM_UTF16_BE + '{"text": "北京"}\n'.encode("utf-16-be"), "is UTF-16 text"),
        (codecs.BOM_UTF16_LE + "北京".encode("utf-16-le"), "is UTF-16 text"),
        ('{"text": "naïve"}\n'.encode("utf-16-le"), "is UTF-16LE text"),
        ('{"text": "naïve"}\n'.encode("utf-16-be"), "is UTF-16BE text"),
        ('{"text": "naïve"}\n'.encode("utf-32"), "is UTF-32 text"),
        (gzip.compress(b'{"text": "a"}\n', mtime=0), "is compressed by gzip. Unpack it"),
        (b'{"text": "a\0"}', "is not a text file: NUL byte at offset 11"),
        (b'{"text": "caf\xe9"}', "is not UTF-8 text: byte 0xe9 at offset 13"),
        (b'{"text": "\xed\xa0\x80"}', "is not UTF-8 text: byte 0xed at offset 10"),
    ],
)
def test_file_that_is_not_utf8_is_named_by_its_encoding_or_compression(
    tmp_path: Path, suffix: str, content: bytes, reason: str
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    source = Text(path=str(path), **WHOLE)
    for attempt in (
        source.splits,
        lambda: source.check(path),
        lambda: list(source.read("a", path, Counter())),
    ):
        with pytest.raises(Unreadable, match=reason):
            attempt()


@pytest.mark.parametrize("piece", range(1, 9))
def test_offset_of_a_bad_byte_is_right_across_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    path = tmp_path / "a.txt"
    monkeypatch.setattr(readers, "PIECE", piece)
    for before in range(6):
        good = "é北🧑".encode() + b"x" * before
        for content in (good, good + "🧑".encode()):
            path.write_bytes(content)
            readers.check_plain(path, "")
        for bad, byte in ((b"\xff", "ff"), ("🧑".encode()[:3], "f0"), (b"\xe5\x8cx", "e5")):
            path.write_bytes(good + bad)
            with pytest.raises(Unreadable, match=rf"byte 0x{byte} at offset {len(good)}\."):
                readers.check_plain(path, "")


def test_all_unreadable_files_are_named_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_bytes(b"fine\n" * 100)
    (tmp_path / "250.txt").write_bytes(b"x" * (readers.PIECE + 5) + b"\0")
    (tmp_path / "251.md").write_bytes("text".encode("utf-16"))
    (tmp_path / "252.jsonl").write_bytes(lines({"text": 3}))
    (tmp_path / "253.parquet").write_bytes(b"none")
    parquet.write_table(pa.table({"text": [1]}), tmp_path / "254.parquet")
    (tmp_path / "255.txt").write_bytes(b"\xff")
    (tmp_path / "256.txt").write_bytes(b"\xff")
    source = Text(path=str(tmp_path))
    monkeypatch.setattr(source, "read", None)
    with pytest.raises(
        ZooError, match=rf"7 files of data\.path={tmp_path} cannot be read: "
    ) as error:
        source.splits()
    for reason in (
        f"250.txt is not a text file: NUL byte at offset {readers.PIECE + 5}; ",
        "251.md is UTF-16 text, not UTF-8; ",
        "252.jsonl, line 1: data.column=text holds a number, not text; ",
        "253.parquet cannot be read as parquet: ",
        "254.parquet: data.column=text holds int64, not text; and 2 more. Repair or",
    ):
        assert reason in str(error.value)
    assert "255.txt" not in str(error.value)


def test_errors_found_while_reading_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "x"}) + b"{")
    (tmp_path / "b.jsonl").write_bytes(lines({"n": 1}, {"txet": "x"}))
    (tmp_path / "c.txt").write_text("text")
    with pytest.raises(
        ZooError, match=r"2 files .*a\.jsonl, line 2: .*b\.jsonl has no data\.column=text"
    ):
        Text(path=str(tmp_path)).splits()


def test_deleted_files_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [tmp_path / "a.txt", tmp_path / "b.txt"]
    source = Text(path=str(tmp_path))
    monkeypatch.setattr(source, "files", lambda skipped: [(path.name, path) for path in gone])
    for attempt in (source.fingerprint, source.splits):
        with pytest.raises(
            ZooError,
            match=r"2 files .*a\.txt cannot be read \(No such file or directory\); .*b\.txt cannot",
        ):
            attempt()


def test_missing_jsonl_column_is_found_without_reading_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(*[{"txet": "x"}] * readers.FIRST_ROWS) + b"{")
    with pytest.raises(
        Unreadable, match=r"a\.jsonl has no data\.column=text: did you mean 'txet'\?"
    ):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(
        lines(*[{"n": 1}] * (readers.FIRST_ROWS - 1), {"text": "late"})
    )
    assert read(tmp_path / "a.jsonl") == ["late"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read anything")
def test_file_without_read_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(Unreadable, match=r"a\.txt cannot be read \(Permission denied\)"):
        read(tmp_path / "a.txt")
