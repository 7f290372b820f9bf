"""Blocks and their order: labels, isolation, permutations, ranks and resuming."""

import itertools

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from zoo.data.dataset import Blocks, GlobalBatches, identity_collate
from zoo.data.tokens import Tokens
from zoo.errors import ZooError
from zoo.objectives import IGNORE


def take(batches, count):
    return list(itertools.islice(iter(batches), count))


@pytest.mark.parametrize("length", [1, 4, 7, 11, 44, 45, 60])
def test_each_id_but_the_first_is_a_label_once(tokens, length):
    blocks = Blocks(tokens, length, isolate=False)
    batch = blocks.__getitems__(range(len(blocks)))
    labels = batch["labels"].flatten()
    real = labels != IGNORE
    assert batch["tokens"].shape == batch["labels"].shape == (len(blocks), length)
    assert batch["tokens"].dtype == batch["labels"].dtype == torch.int64
    assert labels[real].tolist() == tokens.ids[1:].tolist()
    assert batch["tokens"].flatten()[real].tolist() == tokens.ids[:-1].tolist()
    assert (batch["tokens"].flatten()[~real] == tokens.eot).all()
    assert real[: int(real.sum())].all()
    assert (~real).sum() < length
    assert set(batch) == {"tokens", "labels", "indices"}
    later = blocks.__getitems__([index + 3 * len(blocks) for index in range(len(blocks))])
    assert all(torch.equal(later[name], batch[name]) for name in ("tokens", "labels"))
    assert (later["indices"] - batch["indices"]).unique().tolist() == [3 * len(blocks)]


def test_batch_has_its_blocks_in_the_requested_order(tokens):
    blocks = Blocks(tokens, 7, isolate=True)
    batch = blocks.__getitems__([5, 0, 6, 0])
    for name, rows in batch.items():
        assert torch.equal(rows, torch.stack([blocks[index][name] for index in (5, 0, 6, 0)]))
    batch["tokens"][:] = -1
    assert blocks[0]["tokens"].tolist() == tokens.ids[:7].tolist()


@pytest.mark.parametrize("length", [4, 7, 13, 60])
def test_isolated_documents_have_own_numbers_and_positions(tokens, length):
    blocks = Blocks(tokens, length, isolate=True)
    owner = np.searchsorted(tokens.starts, np.arange(len(tokens.ids)), side="right")
    for index in range(len(blocks)):
        block = {name: row.tolist() for name, row in blocks[index].items()}
        span = owner[index * length : (index + 1) * length][
            : sum(label != IGNORE for label in block["labels"])
        ]
        documents = [*(span - span[0]).tolist(), *[span[-1] - span[0] + 1] * (length - len(span))]
        assert block["documents"] == documents
        assert block["positions"] == [
            documents[:place].count(number) for place, number in enumerate(documents)
        ]


def test_empty_split_has_no_block():
    assert (
        len(
            Blocks(Tokens(np.array([], np.uint16), np.array([], np.int64), 0, 256), 8, isolate=True)
        )
        == 0
    )
    with pytest.raises(ZooError, match=r"loader\.length=0"):
        Blocks(Tokens(np.arange(5), np.array([0]), 0, 0), 0, isolate=False)


def test_epoch_is_a_permutation_and_batches_cross_its_end():
    stream = list(itertools.chain(*take(GlobalBatches(10, 4, seed=3), 15)))
    epochs = [stream[start : start + 10] for start in range(0, 60, 10)]
    assert [sorted(epoch) for epoch in epochs] == [
        list(range(start, start + 10)) for start in range(0, 60, 10)
    ]
    assert len({tuple(index % 10 for index in epoch) for epoch in epochs}) == 6
    assert stream == list(itertools.chain(*take(GlobalBatches(10, 4, seed=3), 15)))
    assert stream != list(itertools.chain(*take(GlobalBatches(10, 4, seed=4), 15)))


def test_batch_larger_than_the_split_repeats_it():
    (batch,) = take(GlobalBatches(3, 8, seed=0), 1)
    assert [sorted(batch[start : start + 3]) for start in (0, 3)] == [[0, 1, 2], [3, 4, 5]]
    assert len(batch) == 8


@pytest.mark.parametrize(
    ("world", "accumulate"), [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2), (8, 1)]
)
def test_blocks_of_a_step_do_not_depend_on_world_size_and_accumulation(world, accumulate):
    whole = take(GlobalBatches(29, 8, seed=1), 20)
    ranks = [
        take(GlobalBatches(29, 8, 1, rank, world, accumulate), 20 * accumulate)
        for rank in range(world)
    ]
    for step, expected in enumerate(whole):
        parts = range(step * accumulate, (step + 1) * accumulate)
        assert [block for part in parts for rank in ranks for block in rank[part]] == expected


def test_indivisible_batch_size_is_refused():
    with pytest.raises(
        ZooError, match=r"loader\.batch_size=12 must be a multiple of 8 \(4 ranks x 2"
    ):
        GlobalBatches(100, 12, 0, world=4, accumulate=2)
    with pytest.raises(ZooError, match=r"batch_size=0"):
        GlobalBatches(100, 0, 0)
    with pytest.raises(ZooError, match="no block"):
        GlobalBatches(0, 4, 0)


def loader(tokens, workers, seed=5, **options):
    blocks = Blocks(tokens, 4, isolate=True)
    batches = GlobalBatches(len(blocks), 4, seed, **options)
    return StatefulDataLoader(
        blocks, batch_sampler=batches, collate_fn=identity_collate, num_workers=workers
    )


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seen", [1, 2, 7])
def test_resumed_loader_continues_with_the_same_batches(tokens, workers, seen):
    first = loader(tokens, workers, accumulate=2)
    stream = iter(first)
    for _ in range(seen):
        next(stream)
    state = first.state_dict()
    expected = take(stream, 9)
    second = loader(tokens, workers, accumulate=2)
    second.load_state_dict(state)
    for one, other in zip(expected, take(second, 9), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_late_resume_is_free_and_resume_with_other_data_is_refused():
    far = iter(GlobalBatches(50, 4, seed=0))
    far.load_state_dict({**far.state_dict(), "start": 4 * 10**12})
    assert next(far) == GlobalBatches(50, 4, seed=0).micro_batch(4 * 10**12, 0)
    for other in (GlobalBatches(51, 4, 0), GlobalBatches(50, 4, 1)):
        with pytest.raises(ZooError, match="cannot resume"):
            iter(other).load_state_dict(far.state_dict())
    two = iter(GlobalBatches(50, 4, 0, rank=1, world=2))
    two.load_state_dict(far.state_dict())
    assert next(two) == GlobalBatches(50, 4, seed=0).micro_batch(4 * 10**12 + 4, 0)[2:]
