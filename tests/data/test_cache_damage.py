"""The token cache under damage, concurrent builders, full disks and changing sources."""

import errno
import logging
import multiprocessing

import numpy as np
import pytest

from tests.helpers.token_caches import only, source
from zoo.data import cache
from zoo.data.cache import load
from zoo.data.files import Text
from zoo.data.tokenizers import BPE, Byte
from zoo.errors import ZooError


def harm_bytes(folder):
    content = bytearray((folder / "train.bin").read_bytes())
    content[10] ^= 1
    (folder / "train.bin").write_bytes(content)


HARM = {
    "flipped": (harm_bytes, "train.bin does not match"),
    "short": (
        lambda folder: (folder / "val.bin").write_bytes((folder / "val.bin").read_bytes()[:-2]),
        "val.bin does not",
    ),
    "no ids": (lambda folder: (folder / "test.bin").unlink(), "test.bin: No such file"),
    "no starts": (
        lambda folder: (folder / "val.starts.npy").write_bytes(b""),
        "val.starts.npy does not match",
    ),
    "no meta": (lambda folder: (folder / "meta.json").unlink(), "meta.json: No such file"),
    "cut meta": (
        lambda folder: (folder / "meta.json").write_bytes((folder / "meta.json").read_bytes()[:99]),
        "meta.json",
    ),
    "other meta": (
        lambda folder: (folder / "meta.json").write_text("[]"),
        "meta.json cannot be read",
    ),
    "edited meta": (
        lambda folder: (folder / "meta.json").write_text(
            (folder / "meta.json").read_text().replace("by doc", "of doc")
        ),
        "summary in meta.json",
    ),
    "other tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "tokenizer.json does not match",
    ),
    "empty": (
        lambda folder: [path.unlink() for path in folder.iterdir()],
        "meta.json: No such file",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_damaged_cache_is_rebuilt_with_a_warning(folder, tmp_path, caplog, harm):
    root = tmp_path / "cache"
    before = load(source(folder), Byte(), root)
    contents = {path.name: path.read_bytes() for path in only(root).iterdir()}
    damage, reason = HARM[harm]
    damage(only(root))
    with caplog.at_level(logging.WARNING, "zoo"):
        after = load(source(folder), Byte(), root)
    assert reason in caplog.text
    assert "damaged" in after.summary.pop("note")
    assert after.summary == before.summary
    assert {path.name: path.read_bytes() for path in only(root).iterdir()} == contents
    assert "note" not in load(source(folder), Byte(), root).summary


class Meeting(Text):
    """A source at whose reading two builders wait for one another, so that both are building."""

    barrier: object = None

    def splits(self):
        Meeting.barrier.wait(60)
        return super().splits()


def build(barrier, folder, root, queue):
    Meeting.barrier = barrier
    corpus = load(
        Meeting(path=str(folder), val_fraction=0.2, test_fraction=0.1), BPE(vocab=300), root
    )
    queue.put((corpus.summary, {name: split.ids.tolist() for name, split in corpus.splits.items()}))


def test_two_concurrent_builders_agree(folder, tmp_path):
    root = tmp_path / "cache"
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    workers = [context.Process(target=build, args=(barrier, folder, root, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert results[0] == results[1]
    assert "note" not in results[0][0]
    assert {path.name for path in only(root).iterdir()} >= {"meta.json", "train.bin"}


def test_slower_builder_uses_the_winners_folder(folder, tmp_path, monkeypatch):
    write, root = cache._build, tmp_path / "cache"

    def slow(*arguments):
        write(*arguments)
        monkeypatch.setattr(cache, "_build", write)
        load(source(folder), Byte(), root)
        (only_visible(root) / "mark").touch()

    monkeypatch.setattr(cache, "_build", slow)
    corpus = load(source(folder), Byte(), root)
    assert (only(root) / "mark").exists()
    assert corpus.summary["documents"] == 40


def only_visible(root):
    (folder,) = root.glob("[!.]*")
    return folder


def test_full_disk_leaves_no_partial_cache(folder, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(ZooError, match=r"no space left for the token cache in .*cache"):
        load(source(folder), Byte(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    monkeypatch.undo()
    assert load(source(folder), Byte(), tmp_path / "cache").summary["documents"] == 40


def test_source_that_changes_while_it_is_read_is_refused(folder, tmp_path):
    class Restless(Text):
        def splits(self):
            found = super().splits()
            (folder / "part0" / "0.txt").write_text("changed")
            return found

    with pytest.raises(ZooError, match="changed while it was being read"):
        load(Restless(path=str(folder), val_fraction=0.2), Byte(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
