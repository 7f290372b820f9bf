"""Streaming: the blocks of the same text on disk, in an order that can be resumed."""

from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers.token_caches import only, source
from zoo import config
from zoo.data import cache, streaming
from zoo.data.cache_format import Corpus
from zoo.data.datamodule import Data
from zoo.data.dataset import Blocks, GlobalBatches, identity_collate
from zoo.data.streaming import Stream
from zoo.data.tokenizers import BPE, Byte
from zoo.data.tokens import Tokens
from zoo.errors import ZooError
from zoo.objectives.masked import MaskedLM

BYTE, LENGTH = Byte(), 4
TEXTS = [
    "abc",
    "d",
    "efghijklm" * 3,
    "",
    "nopq",
    "rstuvw",
    "x" * 14,
    "yz",
    "0123456789" * 2,
    "the end.",
]
Documents = list[dict[str, str]]
Rows = list[dict[str, Any]]  # of batches: each block as plain values


@pytest.fixture
def documents() -> Documents:
    return [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]


@pytest.fixture
def blocks(documents: Documents) -> Blocks:
    """The same documents, tokenised beforehand."""
    ids = [np.append(BYTE.eot, BYTE.encode(document["text"])) for document in documents]
    starts = np.cumsum([0, *map(len, ids)])[:-1]
    return Blocks(
        Tokens(np.concatenate(ids).astype(np.uint16), starts, 0, BYTE.eot), LENGTH, isolate=True
    )


def streamed(documents: Documents, buffer: int = 5, seed: int = 7) -> Stream:
    return Stream(documents, BYTE, LENGTH, isolate=True, buffer=buffer, seed=seed)


def loader(
    documents: Documents, workers: int = 0, accumulate: int = 1, buffer: int = 5
) -> StatefulDataLoader:
    batches = GlobalBatches(None, 4, 7, accumulate=accumulate)
    return StatefulDataLoader(
        streamed(documents, buffer),
        batch_sampler=batches,
        collate_fn=identity_collate,
        num_workers=workers,
    )


def rows(batch: dict[str, torch.Tensor]) -> Rows:
    return [
        {name: value[row].tolist() for name, value in batch.items()}
        for row in range(len(batch["indices"]))
    ]


def take(batches: Any, count: int) -> Rows:
    return [row for batch in itertools.islice(batches, count) for row in rows(batch)]


@pytest.mark.parametrize("buffer", [1, 2, 5, 24, 1000])
def test_each_epoch_has_every_block_once_in_its_own_order(
    documents: Documents, blocks: Blocks, buffer: int
) -> None:
    size = len(blocks)
    assert size == 24
    found = take(
        iter(loader(documents, buffer=buffer)), 3 * size // 2
    )  # of 4, so that batches cross the ends of epochs
    for epoch in range(6):
        some = found[epoch * size : (epoch + 1) * size]
        expected = rows(blocks.__getitems__(range(epoch * size, (epoch + 1) * size)))
        assert sorted(some, key=lambda row: row["indices"]) == expected
        places = [row["indices"] - epoch * size for row in some]
        assert all(abs(place - block) < buffer for place, block in enumerate(places))
        assert (places == list(range(size))) is (buffer == 1)
    orders = {
        tuple(row["indices"] % size for row in found[epoch * size : (epoch + 1) * size])
        for epoch in range(6)
    }
    assert len(orders) == (1 if buffer == 1 else 6)


def test_order_depends_on_the_seed(documents: Documents) -> None:
    one, same, other = (
        streamed(documents, seed=seed).__getitems__(range(60))["indices"].tolist()
        for seed in (7, 7, 8)
    )
    assert one == same != other
    sent = pickle.loads(pickle.dumps(streamed(documents)))  # noqa: S301  as to a worker that is not forked
    assert sent.__getitems__(range(60))["indices"].tolist() == one


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("workers", [0, 1])
def test_resumed_stream_continues_with_the_same_batches(documents: Documents, workers: int) -> None:
    """From every place of two epochs; its state is a few numbers, and what was read before is not
    tokenised again.
    """
    whole = iter(loader(documents, workers, accumulate=2))
    found, states = [], []
    for _ in range(27):
        found.append(rows(next(whole)))
        states.append(json.loads(json.dumps(whole.state_dict())))
    expected = [row for batch in found for row in batch]
    for seen in range(1, 27, 9 if workers else 1):
        second = loader(documents, workers, accumulate=2)
        second.load_state_dict(states[seen - 1])
        assert take(iter(second), 27 - seen) == expected[2 * seen :], f"after {seen} batches"
    assert len(expected) == 2 * 27 > 2 * 24
    assert len(json.dumps(states[-1])) < 1000


def test_resuming_tokenises_nothing_before_the_buffer(
    documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, tokenised = streamed(documents, buffer=3), []
    first.__getitems__(range(20))
    plain = streaming.encode_documents
    monkeypatch.setattr(
        streaming,
        "encode_documents",
        lambda texts, tokenizer: (
            (tokenised.append(text), (text, ids))[1] for text, ids in plain(texts, tokenizer)
        ),
    )
    second = streamed(documents, buffer=3)
    second.load_state_dict(first.state_dict())
    assert (
        second.__getitems__([20, 21, 23])["indices"].tolist()
        == first.__getitems__([20, 21, 23])["indices"].tolist()
    )
    assert tokenised == TEXTS[8:]


def test_other_buffer_size_drops_nothing_and_going_back_works(
    documents: Documents, blocks: Blocks
) -> None:
    first = streamed(documents, buffer=5)
    before = first.__getitems__(range(7))["indices"].tolist()
    for buffer in (2, 9):
        second = streamed(documents, buffer=buffer)
        second.load_state_dict(first.state_dict())
        assert sorted(before + second.__getitems__(range(7, 24))["indices"].tolist()) == list(
            range(24)
        )
    assert first.__getitems__(range(7))["indices"].tolist() == before
    first.__getitems__([40])
    assert first.__getitems__(range(7))["indices"].tolist() == before


def test_resume_with_other_documents_starts_again_at_their_end(documents: Documents) -> None:
    first = streamed(documents)
    first.__getitems__(range(24))
    second = streamed(documents[:2])
    second.load_state_dict(first.state_dict())
    assert second.__getitems__([24, 25])["tokens"].shape == (2, LENGTH)
    with pytest.raises(ZooError, match="no token to learn"):
        streamed([]).__getitems__([0])


class Alone:
    def __init__(self, rank: int, world: int) -> None:
        self.global_rank, self.world_size = rank, world


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (2, 2), (1, 4)])
def test_ranks_and_micro_batches_divide_the_same_step(
    documents: Documents, blocks: Blocks, world: int, accumulate: int
) -> None:
    """Also what is drawn for a block."""
    corpus = Corpus(
        {"head": blocks.tokens, "val": blocks.tokens, "test": blocks.tokens},
        BYTE,
        {"fingerprint": "one"},
    )
    objective = MaskedLM(BYTE, LENGTH, rate=0.5)

    def steps(rank: int, world: int, accumulate: int) -> list[Any]:
        data = Data(
            corpus,
            batch_size=4,
            length=LENGTH,
            isolate=False,
            workers=0,
            seed=3,
            accumulate=accumulate,
            prepare=objective.prepare,
            documents=documents,
            shuffle=5,
        )
        data.trainer = Alone(rank, world)
        return [
            batch["labels"].tolist()
            for batch in itertools.islice(data.train_dataloader(), 12 * accumulate)
        ]

    whole, ranks = steps(0, 1, 1), [steps(rank, world, accumulate) for rank in range(world)]
    for step, expected in enumerate(whole):
        parts = range(step * accumulate, (step + 1) * accumulate)
        assert [row for part in parts for rank in ranks for row in rank[part]] == expected


@pytest.mark.parametrize("tokenizer", [BYTE, BPE(vocab=300)], ids=["byte", "bpe"])
def test_streaming_tokenises_only_the_head_in_advance(
    folder: Any, tmp_path: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cache.load(source(folder), tokenizer, tmp_path / "whole")
    monkeypatch.setattr(cache, "HEAD", 1000)
    corpus = cache.load(source(folder), tokenizer, tmp_path / "head", stream=True)
    texts = [row["text"].encode() for row in source(folder).splits().documents["train"]]
    sizes = np.cumsum([len(text) for text in texts])
    count = int(np.searchsorted(sizes, 1000)) + 1
    assert 1 < count < len(texts)
    assert set(corpus.splits) == {"head", "val", "test"}
    assert corpus.tokenised_train.documents == count
    assert corpus.tokenizer.decode_bytes(corpus.tokenised_train.ids) == b"".join(texts[:count])
    summary = corpus.summary
    assert summary["splits"]["head"] == {
        "documents": count,
        "bytes": sizes[count - 1],
        "tokens": len(corpus.tokenised_train.ids),
    }
    assert (summary["documents"], summary["tokens"], summary["measured_on"]) == (None, None, "head")
    assert summary["bytes"] == whole.summary["bytes"]
    assert summary["splits"]["val"]["bytes"] == whole.summary["splits"]["val"]["bytes"]
    if tokenizer is BYTE:
        assert summary["splits"]["val"] == whole.summary["splits"]["val"]
        assert (corpus.splits["val"].ids == whole.splits["val"].ids).all()
    else:
        learned = BPE(vocab=300)
        learned.train(text.decode() for text in texts[:count])
        assert corpus.tokenizer.dumps() == learned.dumps()
    monkeypatch.setattr(cache, "_build", None)
    assert cache.load(source(folder), tokenizer, tmp_path / "head", stream=True).summary == summary
    monkeypatch.undo()
    cache.load(source(folder), tokenizer, tmp_path / "head")
    assert len(list((tmp_path / "head").iterdir())) == 2
    assert only(tmp_path / "whole").name in [path.name for path in (tmp_path / "head").iterdir()]


@pytest.mark.parametrize("one_file", [False, True])
def test_saved_cuts_find_documents_without_reading_everything(
    folder: Any, tmp_path: Any, one_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(folder.rglob("3.txt")) if one_file else folder
    own = type(source(folder))(path=str(path), val_fraction=0.2, test_fraction=0.1)
    cuts = cache.load(own, BYTE, tmp_path / "cache", stream=True).summary["cuts"]
    assert bool(cuts) is one_file
    expected = list(own.splits().documents["train"])
    monkeypatch.setattr(type(own), "splits", None)
    assert list(own.documents("train", cuts)) == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["loader.shuffle=10"], r"loader\.shuffle=10 is about a stream.*loader\.stream=true"),
        (["loader.stream=true", "loader.workers=2"], r"loader\.workers=1 or 0, not 2"),
        (["loader.stream=true", "loader.shuffle=0"], r"loader\.shuffle must be at least 1"),
    ],
)
def test_streaming_options_out_of_range_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(ZooError, match=complaint):
        config.compose(words)
