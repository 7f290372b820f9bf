"""Sources: splits, fingerprints and refused files."""

import os
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from zoo import config, registry
from zoo.data.files import Text
from zoo.data.source import BY_DOCUMENT, WITHIN_DOCUMENTS, Python
from zoo.errors import ZooError


def texts(source):
    return {
        name: [(row["id"], row["text"]) for row in rows]
        for name, rows in source.splits().documents.items()
    }


def test_the_standard_library_is_the_default_corpus():
    source = Python()
    splits = source.splits()
    files = dict(source.files(Counter()))
    ids = {name: [row["id"] for row in rows] for name, rows in splits.documents.items()}
    assert 10e6 < sum(splits.bytes.values()) < 13e6
    assert (
        len(set().union(*ids.values()))
        == sum(map(len, ids.values()))
        == len(files) - sum(splits.skipped.values())
    )
    assert splits.rule == BY_DOCUMENT
    assert min(splits.bytes.values()) > 50_000
    assert not [
        name
        for name in files
        if {"test", "tests", "idle_test", "site-packages"} & set(name.split("/"))
    ]
    assert "json/decoder.py" in files


def test_undecodable_library_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    for number in range(30):
        (tmp_path / f"m{number}.py").write_text(f"x = {number}\n" * 9)
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "__init__.py").touch()
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "big.py").write_text("x = 1\n" * 1000)
    assert Python().splits().skipped == {"not UTF-8": 1, "empty": 1}
    assert sum(Python().splits().bytes.values()) < 3000


@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
def test_every_byte_of_a_folder_is_in_exactly_one_split(folder, sample_by):
    source = Text(path=str(folder), sample_by=sample_by, val_fraction=0.2, test_fraction=0.1)
    found = texts(source)
    ids = [name for rows in found.values() for name, _ in rows]
    assert len(set(ids)) == len(ids) >= 40
    files: dict[str, str] = {}
    for name, text in sorted(
        (row for rows in found.values() for row in rows), key=lambda row: ids_key(row[0])
    ):
        files[name.split("#")[0]] = files.get(name.split("#")[0], "") + text
    on_disk = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")
    }
    assert {name: text.encode() for name, text in files.items()} == on_disk
    assert source.splits().bytes == {
        name: sum(len(t.encode()) for _, t in rows) for name, rows in found.items()
    }
    assert all(found.values())


def ids_key(name):
    file, *parts = name.split("#")
    return file, [int(part) for part in parts]


def test_document_stays_in_its_split_when_others_are_added(folder):
    before = {
        name: split
        for split, rows in texts(Text(path=str(folder), val_fraction=0.2)).items()
        for name, _ in rows
    }
    for number in range(10):
        (folder / f"new{number}.txt").write_text("more\n")
    after = {
        name: split
        for split, rows in texts(Text(path=str(folder), val_fraction=0.2)).items()
        for name, _ in rows
    }
    assert len(after) == len(before) + 10
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    "content", ["".join(f"line {n}\n" for n in range(500)), "word " * 800, "a\n" + "long " * 999]
)
def test_one_big_file_is_split_within(tmp_path, content):
    path = tmp_path / "book.txt"
    path.write_text(content)
    source = Text(path=str(path), val_fraction=0.1, test_fraction=0.05)
    found = texts(source)
    assert source.splits().rule == WITHIN_DOCUMENTS
    assert "".join(text for rows in found.values() for _, text in rows) == content
    assert all(len(rows) == 1 for rows in found.values())
    if content.startswith("line"):
        assert all(rows[0][1].endswith("\n") for rows in found.values())
        assert len(found["val"][0][1]) == pytest.approx(0.1 * len(content), rel=0.05)
    assert source.splits().bytes == {name: len(rows[0][1]) for name, rows in found.items()}


def test_few_small_files_are_split_by_length(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n" * 100)
    found = texts(Text(path=str(tmp_path), val_fraction=0.3, test_fraction=0.3))
    assert all(found.values())
    assert (
        "".join(text for rows in found.values() for _, text in rows)
        == "0\n" * 100 + "1\n" * 100 + "2\n" * 100
    )


def test_zero_fraction_leaves_the_split_empty(tmp_path):
    (tmp_path / "a.txt").write_text("line\n" * 50)
    found = texts(Text(path=str(tmp_path / "a.txt"), val_fraction=0.1, test_fraction=0))
    assert found["train"]
    assert found["val"]
    assert not found["test"]
    everything = texts(Text(path=str(tmp_path / "a.txt"), val_fraction=0, test_fraction=0.2))
    assert not everything["val"]
    assert everything["test"]


def test_jsonl_and_parquet_rows_are_documents(tmp_path):
    lines = ['{"body": "2020-01-01"}'] * 30 + ['{"n": 1}', '{"body": null}', '{"body": ""}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    parquet.write_table(pa.table({"body": ["row\u2028\r\n\x00"] * 30}), tmp_path / "b.parquet")
    (tmp_path / "notes.csv").write_text("no")
    source = Text(path=str(tmp_path), column="body", val_fraction=0.2, test_fraction=0.2)
    found = texts(source)
    assert (
        sorted(text for rows in found.values() for _, text in rows)
        == ["2020-01-01"] * 30 + ["row\u2028\r\n\x00"] * 30
    )
    assert source.splits().skipped == {"suffix .csv": 1, "row without text": 2, "empty": 1}


def test_edit_with_unchanged_mtime_changes_the_fingerprint(tmp_path):
    for path, old, new in (
        ("a.jsonl", '{"text": "old"}\n', '{"text": "new"}\n'),
        ("a.txt", "old\n", "new\n"),
    ):
        file = tmp_path / path
        source = Text(path=str(file), val_fraction=0, test_fraction=0)
        file.write_text(old)
        stamp, before = os.stat(file), source.fingerprint()
        assert texts(source)["train"][0][1].strip() == "old"
        file.write_text(new)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert texts(source)["train"][0][1].strip() == "new"
        assert source.fingerprint() != before


def test_fingerprint_depends_on_names_contents_and_options_only(folder, tmp_path):
    plain = Text(path=str(folder)).fingerprint()
    assert Text(path=str(folder)).fingerprint() == plain
    assert (
        len(
            {
                plain,
                Text(path=str(folder), sample_by="line").fingerprint(),
                Text(path=str(folder), val_fraction=0.1).fingerprint(),
                Python().fingerprint(),
            }
        )
        == 4
    )
    folder.rename(tmp_path / "elsewhere")
    assert Text(path=str(tmp_path / "elsewhere")).fingerprint() == plain
    (tmp_path / "elsewhere" / "part0" / "0.txt").rename(
        tmp_path / "elsewhere" / "part0" / "zero.txt"
    )
    assert Text(path=str(tmp_path / "elsewhere")).fingerprint() != plain


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (
            {"book.txt": b"x"},
            {"path": "bok.txt"},
            r"no such file or folder: did you mean .*book\.txt\?",
        ),
        ({}, {"path": "no/way.txt"}, r"nor is there a folder .*no"),
        ({"a.txt": b""}, {"path": "a.txt"}, r"there is no text in data\.path=.*a\.txt"),
        (
            {"d/.hidden": b"x"},
            {"path": "d"},
            r"is empty; supported files are \.txt, \.md",
        ),
        (
            {"d/a.csv": b"x", "d/b.log": b"x"},
            {"path": "d"},
            r"has 2 files, none of them readable; supported files are \.txt, .*\.parquet",
        ),
        ({"a.csv": b"x"}, {"path": "a.csv"}, r"no reader for suffix '\.csv'"),
        (
            {"a.txt": b"ok\n\xff\n"},
            {"path": "a.txt"},
            r"a\.txt is not UTF-8 text: byte 0xff at offset 3",
        ),
        (
            {"d/a.md": b"ok", "d/b.txt": b"ab\0"},
            {"path": "d"},
            r"b\.txt is not a text file: NUL byte at offset 2",
        ),
        (
            {"a.jsonl": b'{"txet": "x"}\n'},
            {"path": "a.jsonl"},
            r"no data\.column=text: did you mean 'txet'\?",
        ),
        (
            {"a.jsonl": b'{"text": 3}\n'},
            {"path": "a.jsonl"},
            r"line 1: data\.column=text holds a number, not text",
        ),
        (
            {"a.jsonl": b'{"text": "x"}\nnot json\n'},
            {"path": "a.jsonl"},
            r"a\.jsonl, line 2: Expecting value",
        ),
        ({"a.jsonl": b""}, {"path": "a.jsonl"}, r"there is no text"),
        (
            {"a.parquet": b"not parquet"},
            {"path": "a.parquet"},
            r"a\.parquet cannot be read as parquet",
        ),
        ({"a.txt": b"ab"}, {"path": "a.txt"}, r"has 2 characters, too few"),
        (
            {"a.txt": b"ab"},
            {"path": "a.txt", "val_fraction": 0.6, "test_fraction": 0.4},
            r"less than 1 together",
        ),
        (
            {"a.txt": b"ab"},
            {"path": "a.txt", "val_fraction": -0.1},
            "data.val_fraction must be at least 0",
        ),
    ],
)
def test_data_mistakes_are_named(tmp_path, files, options, message):
    for name, content in files.items():
        write(tmp_path / name, content)
    with pytest.raises(ZooError, match=message):
        registry.build(
            "data", {"name": "text", **options, "path": str(tmp_path / options["path"])}
        ).splits()


def test_broken_link_and_pipe_are_counted_as_skipped(folder):
    (folder / "gone.txt").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.txt")
    assert Text(path=str(folder)).splits().skipped["a link to nowhere, or no file"] == 2
    with pytest.raises(ZooError, match=r"pipe.txt is neither a file nor a folder"):
        Text(path=str(folder / "pipe.txt")).splits()


def test_sources_are_declared():
    config.discover()
    assert {"python", "text"} <= set(registry.entries("data"))
    assert {"byte", "bpe"} <= set(registry.entries("tokenizer"))
    assert isinstance(
        registry.build("data", {"name": "text", "path": ".", "sample_by": "line"}), Text
    )
    with pytest.raises(ZooError, match=r"data=text needs data\.path"):
        registry.build("data", "text")
    with pytest.raises(ZooError, match=r"expected one of \[document, paragraph, line\]"):
        registry.build("data", {"name": "text", "path": ".", "sample_by": "word"})
