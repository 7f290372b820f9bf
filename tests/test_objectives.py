"""Objectives: their batches and losses worked out by hand, and their random draws."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.components import BASE, close
from zoo import config, cost, generation, models, objectives, registry
from zoo.context import Trace
from zoo.data.dataset import Blocks
from zoo.data.tokenizers import Byte
from zoo.data.tokens import Tokens
from zoo.errors import ZooError
from zoo.generation import prompting
from zoo.objectives import IGNORE

VOCAB, EOT = Byte.vocab, Byte.eot
each_objective = pytest.mark.parametrize("name", list(registry.entries("objective")))
Batch = dict[str, Tensor]


def objective(name: str, length: int = 64, **options: Any) -> Any:
    return registry.build("objective", {"name": name, **options}, Byte(), length)


def blocks(length: int, count: int, short: int = 0, seed: int = 0) -> Blocks:
    """Random bytes with an end-of-text now and then, `short` tokens less than fill the blocks."""
    ids = np.random.default_rng(seed).integers(0, 256, length * count + 1 - short)
    ids[::37] = EOT
    return Blocks(Tokens(ids, np.array([0]), 0, EOT), length, isolate=False)


class Fixed(torch.nn.Module):
    """A model of any family whose logits are given, and which remembers what it was called with."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.given: dict[str, Any] = {}
        self.answer = logits

    def forward(self, places: Tensor | None = None, *, head_fn: Any, **given: Any) -> Any:
        self.given = given
        answer = self.answer.flatten(0, 1)
        return head_fn(
            answer if places is None else answer[places],
            lambda x, _: x,
            torch.empty(answer.shape[1], 0),
        )


def test_clm_labels_each_next_token_once() -> None:
    """A model that copies what it sees is right about the label a place later, and only there."""
    made, raw = objective("clm", 8), blocks(8, 3, short=5)
    batch = made.prepare(raw.__getitems__(range(3)), 0)
    copied = F.one_hot(batch["tokens"], VOCAB).float() * 50
    ahead = F.one_hot(batch["labels"].clamp(min=0), VOCAB).float() * 50
    assert made(Fixed(ahead), batch)[0].item() == pytest.approx(0, abs=1e-6)
    loss, count = made(Fixed(copied), batch)
    assert count.item() == len(raw.tokens.ids) - 1 == 19
    assert loss.item() == pytest.approx(19 * 50, rel=0.01)
    assert batch["labels"].flatten()[:19].tolist() == raw.tokens.ids[1:].tolist()


def test_end_of_text_is_a_label_although_it_also_pads() -> None:
    for name in ("clm", "span", "seq2seq"):
        batch = objective(name).prepare(blocks(64, 40, short=30).__getitems__(range(40)), 0)
        assert (batch["labels"] == EOT).any(), name
    raw = Blocks(Tokens(np.array([EOT, 1, 2, EOT]), np.array([0, 3]), 0, EOT), 4, isolate=False)
    batch = objective("clm", 4).prepare(raw.__getitems__([0]), 0)
    assert batch["tokens"].tolist() == [[EOT, 1, 2, EOT]]
    assert batch["labels"].tolist() == [[1, 2, EOT, IGNORE]]


def test_mask_and_random_proportions_follow_the_options() -> None:
    """Within four standard errors of a binomial: 15 % chosen, of which 80 % masked, 10 % another
    token, 10 % kept.
    """
    made, raw = objective("mlm", 256), blocks(256, 800)
    before = raw.__getitems__(range(800))["tokens"]
    batch = made.prepare(raw.__getitems__(range(800)), 0)
    chosen = batch["labels"] != IGNORE
    shown, was = batch["tokens"][chosen], before[chosen]
    masked, kept = shown == made.mask, shown == was
    among = chosen[before != EOT]
    # another token is by chance the one that was: 1 of the 256 that are drawn from
    for part, share in (
        (among, 0.15),
        (masked, 0.8),
        (kept, 0.1 + 0.1 / 256),
        (~masked & ~kept, 0.1 - 0.1 / 256),
    ):
        error = (share * (1 - share) / part.numel()) ** 0.5
        assert abs(part.double().mean().item() - share) < 4 * error
    others = shown[~masked & ~kept]
    assert not (others == EOT).any()
    assert others.unique().numel() == 256
    assert others.max() < VOCAB


def test_random_replacements_are_never_end_of_text() -> None:
    for eot in range(4):
        made = registry.build(
            "objective",
            {"name": "mlm", "rate": 1.0, "mask_share": 0.0, "random_share": 1.0},
            SimpleNamespace(vocab=4, eot=eot),
            64,
        )
        tokens = torch.full((1, 64), (eot + 1) % 4)
        shown = made.prepare(
            {"tokens": tokens, "labels": tokens, "indices": torch.zeros(1).long()}, 0
        )["tokens"]
        assert set(shown.flatten().tolist()) == {0, 1, 2, 3} - {eot}


def test_only_chosen_tokens_are_labelled() -> None:
    made, raw = objective("mlm", 64, rate=0.5), blocks(64, 4, short=40)
    before = raw.__getitems__(range(4))
    batch = made.prepare(before, 0)
    chosen = batch["labels"] != IGNORE
    assert not chosen[before["tokens"] == EOT].any(), "end-of-text is not hidden, nor is padding"
    assert torch.equal(batch["labels"][chosen], before["tokens"][chosen])
    assert torch.equal(batch["tokens"][~chosen], before["tokens"][~chosen])
    assert torch.equal(batch["places"], chosen.flatten().nonzero()[:, 0])
    assert torch.equal(batch["padding_mask"], before["labels"] != IGNORE)
    assert "padding_mask" not in made.prepare(raw.__getitems__(range(3)), 0)
    logits = torch.randn(4, 64, VOCAB + 1)
    loss, count = made(Fixed(logits), batch)
    assert count == chosen.sum()
    close(loss, F.cross_entropy(logits[chosen], before["tokens"][chosen], reduction="sum"))


def test_eval_rate_replaces_rate_in_evaluations() -> None:
    raw = blocks(64, 8).__getitems__(range(8))
    learns, asked = objective("mlm", 64, rate=0.8, eval_rate=0.1), objective("mlm", 64, rate=0.1)
    for given, like in (
        (learns.prepare(raw, 0), objective("mlm", 64, rate=0.8)),
        (learns.eval_objective.prepare(raw, 0), asked),
    ):
        assert torch.equal(given["labels"], like.prepare(raw, 0)["labels"])
    assert learns.loss_scope == asked.loss_scope != objective("mlm", 64, rate=0.8).loss_scope
    assert (learns.labelled_fraction, learns.rate) == (0.8, 0.8), "it learns as before"


def test_step_with_no_masked_token_has_zero_loss() -> None:
    made = objective("mlm", 4, rate=1e-9)
    loss, count = made(
        Fixed(torch.randn(1, 4, VOCAB + 1)), made.prepare(blocks(4, 1).__getitems__([0]), 0)
    )
    assert (loss.item(), count.item()) == (0, 0)


def restored(made: Any, inputs: Sequence[int], targets: Sequence[int]) -> list[int]:
    """The text, from inputs and targets: each sentinel exchanged for what the targets have behind
    it.
    """
    fills = iter(made.parse_output(targets))
    return [
        token for seen in inputs for token in (next(fills) if seen >= made.sentinel else [seen])
    ]


@pytest.mark.parametrize("length", [8, 31, 64, 256, 512])
def test_spans_and_inputs_together_restore_the_text(length: int) -> None:
    made, raw = objective("span", length), blocks(length, 6)
    batch = made.prepare(raw.__getitems__(range(6)), 3)
    assert batch["tokens"].shape == (6, made.inputs)
    assert batch["labels"].shape == batch["decoder_tokens"].shape == (6, made.targets)
    assert "padding_mask" not in batch
    for row in range(6):
        inputs, targets = batch["tokens"][row].tolist(), batch["labels"][row].tolist()
        assert restored(made, inputs, targets) == raw[row]["tokens"].tolist()
        sentinels = [token for token in targets if token >= made.sentinel]
        assert sentinels == list(range(made.sentinel, made.sentinel + made.spans + 1)), (
            "in order, and one to end"
        )
        assert [token for token in inputs if token >= made.sentinel] == sentinels[:-1]
        assert batch["decoder_tokens"][row].tolist() == [made.start, *targets[:-1]]
        assert max(sentinels) == VOCAB + made.extra - 1


def test_span_lengths_match_the_t5_paper() -> None:
    """T5's 512 inputs come from blocks of 568 and have 114 targets, an end-of-text in each; here,
    targets end by a sentinel.

    Raffel et al. 2019, section 3.1.4: 15 % of the tokens, spans of 3 on average.
    """
    made = objective("span", 568)
    assert (made.inputs, made.targets, made.spans) == (512 - 1, 114, 28)
    noise = np.stack([made.noise_mask(568, np.random.default_rng(seed)) for seed in range(400)])
    assert (noise.sum(1) == 85).all()
    begins = noise & ~np.pad(noise, ((0, 0), (1, 0)))[:, :-1]
    assert (begins.sum(1) == 28).all()
    assert not noise[:, 0].any(), "a text begins with what is seen"
    inner = noise[:, 20:-20].mean()
    assert inner == pytest.approx(0.15, abs=0.01)


def test_padded_last_block_is_corrupted() -> None:
    for short in range(62):
        made, raw = objective("span", 64), blocks(64, 2, short=short)
        batch, last = made.prepare(raw.__getitems__([0, 1]), 0), raw[1]
        real = batch.get("padding_mask", torch.ones_like(batch["tokens"], dtype=torch.bool))[1]
        targets = [token for token in batch["labels"][1].tolist() if token != IGNORE]
        assert (
            restored(made, batch["tokens"][1][real].tolist(), targets)
            == last["tokens"][last["labels"] != IGNORE].tolist()
        )
        assert (batch["decoder_tokens"] >= 0).all()


def test_seq2seq_predicts_the_second_half_from_the_first() -> None:
    raw = blocks(9, 2, short=7)
    batch = objective("seq2seq", 9).prepare(raw.__getitems__([0, 1]), 0)
    ids = raw.tokens.ids.tolist()
    assert batch["tokens"].tolist() == [ids[:4], [ids[9], ids[10], EOT, EOT]]
    assert batch["labels"].tolist() == [ids[4:9], [IGNORE] * 5]
    assert batch["decoder_tokens"][0].tolist() == [VOCAB, *ids[4:8]]
    assert batch["padding_mask"].tolist() == [[True] * 4, [True, True, False, False]]


def test_label_smoothing_spreads_over_the_vocabulary_and_ignores_padding() -> None:
    """Szegedy et al. 2016, section 7: (1 - ε)·H(label) + ε·mean over the vocabulary; an evaluation
    is without it.
    """
    made = objective("seq2seq", 8, smoothing=0.1)
    batch = made.prepare(blocks(8, 2, short=2).__getitems__([0, 1]), 0)
    logits = torch.randn(2, 4, VOCAB + 1)
    minus = -logits.log_softmax(-1)
    real = batch["labels"] != IGNORE
    exact = minus.gather(-1, batch["labels"].clamp(min=0)[..., None])[..., 0]
    expected = (0.9 * exact + 0.1 * minus.mean(-1))[real].sum()
    model = Fixed(logits)
    loss, count = made(model, batch)
    close(loss, expected)
    assert count == real.sum() < real.numel()
    nats, right, labels = made.evaluate(model, batch)
    close(nats.view_as(exact)[real], exact[real])
    assert (nats.view_as(exact)[~real] == 0).all()
    assert torch.equal(right, logits.flatten(0, 1).argmax(-1) == labels)


@each_objective
def test_random_draws_depend_on_the_block_index_alone(name: str) -> None:
    made, raw = pickle.loads(pickle.dumps(objective(name))), blocks(64, 5)  # noqa: S301

    def rows(indices: list[int], seed: int = 7) -> list[tuple[list[int], list[int]]]:
        batch = made.prepare(raw.__getitems__(indices), seed)
        return list(zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True))

    together = rows([3, 0, 8])
    assert together == rows([3]) + rows([0]) + rows([8])
    drawn = name not in ("clm", "seq2seq")
    assert (together[0] != together[2]) == drawn, "block 3 again, in the next epoch"
    assert (together != rows([3, 0, 8], seed=8)) == drawn


@each_objective
def test_model_is_called_with_its_inputs_and_fills_the_trace(name: str) -> None:
    made = objective(name)
    composed = config.compose(
        [
            f"objective={name}",
            f"arch={made.serves}",
            "arch.dim=16",
            "arch.layers=1",
            "arch.heads=2",
            "arch.length=64",
        ]
    )
    model = models.build(composed)
    objectives.check(composed, model)
    assert composed["arch"]["vocab"] == VOCAB + made.extra
    batch, trace = made.prepare(blocks(64, 2, short=9).__getitems__([0, 1]), 0), Trace()
    loss, count = made(model, batch, trace=trace)
    assert loss.item() / count.item() == pytest.approx(np.log(VOCAB), rel=0.3)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model = Fixed(torch.zeros(*batch["labels"].shape, VOCAB + made.extra))
    made(model, batch, trace=trace)
    assert model.given["trace"] is trace
    made(model, batch)
    assert "trace" not in model.given
    prompter = prompting.prompter(composed, models.build(composed), Byte())
    assert prompting.FAMILIES[made.serves] is type(prompter)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "objective=mlm",
            "objective=mlm trains arch=encoder, not arch=decoder: choose objective=clm or copy or"
            " induction, or arch",
        ),
        ("arch=encoder", "choose objective=mlm, or arch=decoder"),
        ("model=t5 objective=clm", "choose objective=seq2seq or span, or arch=decoder"),
        (
            "model=bert head=pooler",
            "needs a logit for each of 258 tokens, and head=pooler gives 128 other numbers",
        ),
        (
            "head=pooler head.classes=257",
            "needs a logit for each of 257 tokens, and head=pooler gives 257 other numbers",
        ),
        (
            "model=bert arch.vocab=257",
            "arch.vocab=257 is smaller than the tokenizer's 257 ids and the 1 more of"
            " objective=mlm",
        ),
        (
            "model=t5 arch.vocab=260",
            "260 is smaller than the tokenizer's 257 ids and the 8 more of objective=span",
        ),
        ("arch.vocab=100", "arch.vocab=100 is smaller than the tokenizer's 257$"),
        (
            "model=t5 loader.isolate=true",
            "objective=span cannot keep the documents of a block apart",
        ),
    ],
)
def test_incompatible_objective_and_model_are_refused_by_name(words: str, message: str) -> None:
    composed = config.compose(words.split())
    with pytest.raises(ZooError, match=message):
        objectives.check(composed, models.build(composed, device="meta"))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"name": "mlm", "rate": 0.0}, "objective.rate"),
        ({"name": "mlm", "mask_share": 0.9, "random_share": 0.2}, "objective.mask_share=0.9"),
        (
            {"name": "span", "density": 1.0},
            "objective.density must be above 0 and below 1, not 1.0",
        ),
        ({"name": "span", "mean_span": 0.5}, "objective.mean_span must be at least 1, not 0.5"),
        (
            {"name": "span", "density": 0.9},
            "leaves no room in blocks of loader.length=64, which would have 6",
        ),
        ({"name": "seq2seq", "smoothing": 1.0}, "objective.smoothing"),
    ],
)
def test_objective_options_out_of_range_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError, match=message):
        registry.build("objective", choice, Byte(), 64)


@pytest.mark.parametrize("arch", ["encoder", "encoder_decoder"])
def test_flops_of_encoders_and_encoder_decoders_match_torch(arch: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = {"name": arch, "dim": 16, "layers": 2, "heads": 4, "length": 16, "vocab": 32}
    model = models.build(
        {"arch": shape} | {group: {"name": name} for group, name in BASE.items()}, device="meta"
    )
    with FlopCounterMode(display=False) as counter:
        model(**cost.inputs(model, torch.zeros(2, 12, dtype=torch.long, device="meta")))
    assert 2 * 12 * cost.flops(model, 12) == counter.get_total_flops()


def test_cache_bytes_by_family() -> None:
    """An encoder keeps nothing; a decoder behind one keeps its own keys and values, and those of
    the encoder's memory.
    """
    words = ["arch.dim=16", "arch.layers=3", "arch.heads=4", "arch.length=64"]
    assert cost.of(config.compose(["model=bert", *words]))["kv_cache_bytes"] == 0
    assert cost.of(config.compose(["model=t5", *words]))["kv_cache_bytes_per_token"] == 2 * (
        2 * 3 * 16 * 4
    )


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_training_memory_depends_on_the_objective(model: str) -> None:
    """Few logits of a masked model, and a decoder's short targets, against logits everywhere."""
    few, many = (
        cost.training_memory(config.compose([f"model={model}", *words]))
        for words in (
            [],
            ["objective.rate=1.0"] if model == "bert" else ["objective.density=0.6"],
        )
    )
    assert few < many


def test_encoder_decoder_generates_the_same_with_and_without_cache() -> None:
    """The likeliest token each time, from whole forward passes; and the rows of a batch as each
    alone.
    """
    composed = config.compose(
        ["model=t5", "arch.dim=16", "arch.layers=2", "arch.heads=2", "arch.length=32", "pos=rope"]
    )
    model = models.build(composed, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that every token of the source has an effect
            parameter *= 2
    source = torch.randint(257, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    start = torch.full((2, 1), 257)
    written = generation.generate(model, start, 8, temperature=0, source=source, padding_mask=mask)
    tokens = start
    for _ in range(8):
        tokens = torch.cat([tokens, model(source, tokens, mask)[:, -1:].argmax(-1)], 1)
    assert written.tolist() == tokens[:, 1:].tolist()
    assert (
        generation.generate(model, start[:1], 8, temperature=0, source=source[1:, :5])[0].tolist()
        == written[1].tolist()
    )
    assert len(set(map(tuple, written.tolist()))) == 2, "the source has an effect"
