"""Synthetic tasks: exactly the predictable tokens are labelled, and each block has its own draw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zoo import config, objectives, registry
from zoo.errors import ZooError

TASKS = ["induction", "copy"]
LENGTH = 32


def batch(name: str, rows: list[int], seed: int = 0, length: int = LENGTH) -> dict[str, Tensor]:
    task = registry.build(
        "objective", {"name": name, "symbols": 50}, registry.build("tokenizer", "byte"), length
    )
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    return task.prepare({"tokens": tokens, "labels": tokens, "indices": torch.tensor(rows)}, seed)


def test_induction_labels_tokens_after_the_first_segment() -> None:
    made = batch("induction", list(range(200)))
    for tokens, labels in zip(made["tokens"].tolist(), made["labels"].tolist(), strict=True):
        first = next(place for place, label in enumerate(labels) if label != objectives.IGNORE)
        assert LENGTH // 4 <= first <= LENGTH // 2 + 1
        assert all(label != objectives.IGNORE for label in labels[first:])
        for place in range(first, LENGTH):  # the segment is `first` tokens long
            assert tokens[place] == tokens[place - first]
            assert labels[place] == tokens[place - first + 1]
    assert len({int((row == objectives.IGNORE).sum()) for row in made["labels"]}) > 5


def test_copy_labels_the_second_string() -> None:
    made = batch("copy", list(range(20)))
    tokens, labels = made["tokens"], made["labels"]
    half = LENGTH // 2
    assert (tokens[:, half] == 50).all()
    assert torch.equal(labels[:, half:], tokens[:, :half])
    assert (labels[:, :half] == objectives.IGNORE).all()


@pytest.mark.parametrize("name", TASKS)
def test_synthetic_block_depends_on_its_index_alone(name: str) -> None:
    together, again = batch(name, [3, 0, 8]), batch(name, [0])
    assert torch.equal(together["tokens"][1], again["tokens"][0])
    assert not torch.equal(together["tokens"][0], together["tokens"][2])
    assert not torch.equal(batch(name, [3], seed=1)["tokens"][0], together["tokens"][0])
    assert batch(name, [0], length=64)["tokens"].shape == (1, 64)


def test_synthetic_options_out_of_range_are_refused() -> None:
    for wrong, message in (
        ("objective.symbols=300", "symbols=300"),
        ("loader.length=4", "at least 8"),
    ):
        with pytest.raises(ZooError, match=message):
            config.compose(["objective=copy", wrong])
