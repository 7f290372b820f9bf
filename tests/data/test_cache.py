"""The token cache: every byte, one build, and its folder."""

import json
import logging
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from tests.helpers.token_caches import only, source
from zoo.data import cache
from zoo.data.cache import load
from zoo.data.files import Text
from zoo.data.tokenizers import BPE, Byte, Tokenizer, loads
from zoo.data.tokens import Tokens


@pytest.mark.parametrize("tokenizer", [Byte(), BPE(vocab=300)], ids=["byte", "bpe"])
def test_every_byte_is_accounted_for(folder, tmp_path, tokenizer):
    corpus = load(source(folder), tokenizer, tmp_path / "cache")
    for name, rows in source(folder).splits().documents.items():
        split, texts = corpus.splits[name], [row["text"] for row in rows]
        bounds = [*split.starts.tolist(), len(split.ids)]
        documents = [split.ids[start:end] for start, end in pairwise(bounds)]
        assert [corpus.tokenizer.decode_bytes(ids[1:]) for ids in documents] == [
            text.encode() for text in texts
        ]
        assert {int(ids[0]) for ids in documents} == {split.eot} == {corpus.tokenizer.eot}
        assert (split.ids == split.eot).sum() == split.documents == len(texts)
        assert (
            split.bytes
            == len("".join(texts).encode())
            == corpus.tokenizer.byte_lengths()[split.ids].sum()
        )
    summary = corpus.summary
    assert summary["documents"] == 40
    assert summary["bytes"] == sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert summary["tokens"] == sum(len(split.ids) for split in corpus.splits.values())
    assert summary["splits"]["val"] == {
        "documents": corpus.splits["val"].documents,
        "bytes": corpus.splits["val"].bytes,
        "tokens": len(corpus.splits["val"].ids),
    }
    assert summary["split"] == "by document"
    assert summary["fingerprint"] == source(folder).fingerprint()
    assert summary["tokenizer"]["name"] == tokenizer.name
    assert json.loads(json.dumps(summary)) == summary


def test_second_load_reads_the_cache(folder, tmp_path, monkeypatch):
    first = load(source(folder), BPE(vocab=300), tmp_path / "cache")
    monkeypatch.setattr(cache, "_build", None)
    second = load(source(folder), BPE(vocab=300), tmp_path / "cache")
    assert isinstance(second.splits["train"].ids, np.memmap)
    assert second.summary == first.summary
    assert second.tokenizer.dumps() == first.tokenizer.dumps()
    for name in first.splits:
        assert (first.splits[name].ids == second.splits[name].ids).all()
        assert (first.splits[name].starts == second.splits[name].starts).all()


def test_cached_load_imports_no_heavy_library(folder, tmp_path):
    load(source(folder), BPE(vocab=300), tmp_path / "cache")
    program = f"""
import sys
from zoo.data import cache, files, tokenizers
source = files.Text(path={str(folder)!r}, val_fraction=.2, test_fraction=.1)
corpus = cache.load(source, tokenizers.BPE(vocab=300), {str(tmp_path / "cache")!r})
assert corpus.splits["train"].bytes
print(sorted({{"torch", "pyarrow", "tokenizers", "rich", "lightning"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_each_text_tokenizer_and_option_has_its_own_cache(folder, tmp_path):
    root = tmp_path / "cache"
    load(source(folder), Byte(), root)
    load(source(folder), BPE(vocab=300), root)
    load(source(folder), BPE(vocab=301), root)
    load(Text(path=str(folder), val_fraction=0.3), Byte(), root)
    assert len(list(root.iterdir())) == 4
    (folder / "part0" / "0.txt").write_text("edited")
    edited = load(source(folder), Byte(), root)
    assert len(list(root.iterdir())) == 5
    assert b"edited" in b"".join(
        edited.tokenizer.decode_bytes(split.ids) for split in edited.splits.values()
    )


def test_trained_tokenizer_is_not_retrained_and_untrained_one_is_not_modified(folder, tmp_path):
    fresh, trained = BPE(vocab=300), BPE(vocab=300)
    trained.train(["zzzzz qqqqq " * 9])
    assert load(source(folder), trained, tmp_path / "cache").tokenizer.dumps() == trained.dumps()
    assert load(source(folder), fresh, tmp_path / "cache").tokenizer.dumps() != trained.dumps()
    assert not fresh.trained


def test_bpe_is_trained_on_the_train_split_alone(folder, tmp_path):
    corpus = load(source(folder), BPE(vocab=300), tmp_path / "cache")
    alone = BPE(vocab=300)
    alone.train(row["text"] for row in source(folder).splits().documents["train"])
    assert alone.dumps() == corpus.tokenizer.dumps()


def test_unwritable_cache_falls_back_to_a_temporary_folder_with_a_warning(folder, tmp_path, caplog):
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "zoo"):
        corpus = load(source(folder), Byte(), tmp_path / "file" / "cache")
    assert "cannot be written (Not a directory)" in caplog.text
    assert corpus.summary["documents"] == 40


def test_cache_folder_follows_home_and_zoo_cache(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ZOO_CACHE", raising=False)
    load(source(folder), Byte())
    assert only(tmp_path / "home" / ".cache" / "transformer-zoo")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "chosen"))
    load(source(folder), Byte())
    assert only(tmp_path / "chosen")


def test_cached_tokenizer_can_be_loaded(folder, tmp_path):
    corpus = load(source(folder), BPE(vocab=300), tmp_path / "cache")
    kept: Tokenizer = loads(
        (only(tmp_path / "cache") / "tokenizer.json").read_text(encoding="utf-8")
    )
    assert kept.decode(corpus.splits["val"].ids) == corpus.tokenizer.decode(
        corpus.splits["val"].ids
    )


def test_mapped_tokens_are_pickled_by_file_name(folder, tmp_path, tokens):
    split = load(source(folder), Byte(), tmp_path / "cache").splits["train"]
    sent = pickle.dumps(split)
    again: Tokens = pickle.loads(sent)  # noqa: S301
    assert len(sent) < 1000 < split.ids.nbytes
    assert isinstance(again.ids, np.memmap)
    assert (again.ids == split.ids).all()
    assert (again.starts == split.starts).all()
    assert (again.bytes, again.eot) == (split.bytes, split.eot)
    assert (pickle.loads(pickle.dumps(tokens)).ids == tokens.ids).all()  # noqa: S301


def test_zero_fraction_split_is_empty_and_large_vocabulary_takes_four_bytes(folder, tmp_path):
    corpus = load(
        Text(path=str(folder), val_fraction=0.2, test_fraction=0),
        BPE(vocab=70_000),
        tmp_path / "cache",
    )
    assert (
        corpus.splits["test"].documents,
        len(corpus.splits["test"].ids),
        corpus.splits["test"].bytes,
    ) == (0, 0, 0)
    assert corpus.splits["train"].ids.dtype == np.dtype("<u4")
    assert load(source(folder), Byte(), tmp_path / "cache").splits["train"].ids.dtype == np.dtype(
        "<u2"
    )
