"""Checks what must hold of any optimiser, schedule and objective."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo import config, models, objectives, optim, registry
from zoo.conformance.decoder_parts import expect
from zoo.conformance.tiny import Case, Choice, decoder, tokens
from zoo.context import Trace
from zoo.data.dataset import Blocks
from zoo.data.tokenizers import Byte
from zoo.data.tokens import Tokens
from zoo.models import Decoder

STEPS = 100  # of a schedule
BLOCK = 64  # tokens
ROW_KEYS = ("tokens", "labels")


def untied(seed: int = 0) -> Decoder:
    """A tiny decoder with every kind of parameter: matrices, fused matrices, gains, biases, an
    untied head.
    """
    head: Choice = {"name": "linear", "tied": False}
    attn: Choice = {"name": "gqa", "kv_heads": 2, "bias": True}
    return decoder({"head": head, "attn": attn}, seed)


def optimiser(case: Case, model: nn.Module, **options: Any) -> Any:
    return registry.build("optim", case[1] | options, optim.parameter_groups(model))


def step(model: Any, optimizer: Any, seed: int) -> float:
    """Take one step on the tokens of this seed, and give the loss before it."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = model(tokens(seed=seed)).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens(seed=seed).flatten())
        loss.backward()
        return loss

    loss: Tensor = optimizer.step(closure)
    return loss.item()


def learns(case: Case) -> None:
    """Thirty steps on the same tokens lower the loss by more than 40 %."""
    model = decoder()
    given = {"lr": 0.01} if "lr" in registry.resolve("optim", case[1]) else {}
    optimizer = optimiser(case, model, **given)
    losses = [step(model, optimizer, 0) for _ in range(30)]
    expect(losses[-1] < 0.6 * losses[0], f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    for name, parameter in model.named_parameters():
        expect(parameter.isfinite().all(), f"{name} is not finite")


def resumes(case: Case) -> None:
    """A state that is saved and loaded continues to the bit."""
    model = untied()
    optimizer = optimiser(case, model)
    for seed in range(3):
        step(model, optimizer, seed)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = untied(seed=1)
    other.load_state_dict(loaded["model"])
    resumed = optimiser(case, other)
    resumed.load_state_dict(loaded["optimizer"])
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(other, resumed, seed)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        expect(torch.equal(one, two), f"{name} is another after a resume")


def frozen_stays(case: Case) -> None:
    """What is frozen or has no gradient stays as it is."""
    model = decoder()
    model.stack.blocks[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = optimiser(case, model)
    step(model, optimizer, 0)
    moved = _moved(model, before)
    expect(moved, "a step moves nothing")
    frozen = [name for name in moved if name.startswith("stack.blocks.0")]
    expect(not frozen, f"a step moves the frozen {', '.join(frozen)}")
    optimizer.zero_grad()
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    expect(not _moved(model, before), "a step without gradients moves parameters")


def counted_states(case: Case) -> None:
    """The declared numbers of its state are those that it keeps."""
    model = untied()
    declared = optim.state_size(model, case[1], "fan_in")
    optimizer = optimiser(case, model)
    step(model, optimizer, 0)
    held = 0
    for state in optimizer.state.values():
        held += sum(value.numel() for name, value in state.items() if name != "step")
    expect(declared == held, f"{declared:,} numbers of state are declared and {held:,} kept")


def rates(case: Case) -> None:
    """Every factor is a finite number from 0 to 1, and above 0 within the run."""
    factor: Callable[[int], float] = registry.build("schedule", case[1], STEPS)
    for number in range(2 * STEPS):
        value = factor(number)
        expect(math.isfinite(value) and 0 <= value <= 1, f"the factor of step {number} is {value}")
        expect(number >= STEPS or value > 0, f"the factor of step {number} is 0: a step is wasted")


def rows_by_index(case: Case) -> None:
    """What is drawn for a row depends on its index and the seed alone."""
    made = pickle.loads(pickle.dumps(objective(case)))  # noqa: S301  as to a data worker
    blocks = random_blocks(5)

    def rows(indices: list[int]) -> list[Any]:
        batch = made.prepare(blocks.__getitems__(indices), 7)
        return list(zip(*(batch[key].tolist() for key in ROW_KEYS), strict=True))

    together, apart = rows([3, 0, 8]), rows([3]) + rows([0]) + rows([8])
    expect(together == apart, "a row depends on the other rows of its batch")


def loss_of_a_new_model(case: Case) -> None:
    """A new model has about the loss of a uniform guess, and every parameter gets a finite
    gradient.
    """
    made = objective(case)
    arch = ["arch.dim=16", "arch.layers=1", "arch.heads=2", f"arch.length={BLOCK}"]
    composed = config.compose([f"objective={case[1]['name']}", f"arch={made.serves}", *arch])
    model = models.build(composed)
    objectives.check(composed, model)
    batch = made.prepare(random_blocks(2, short=9).__getitems__([0, 1]), 0)
    loss, count = made(model, batch, trace=Trace())
    mean, uniform = (loss / count).item(), math.log(Byte.vocab)
    expect(
        abs(mean / uniform - 1) < 0.3, f"the loss is {mean:.3f}, of a uniform guess {uniform:.3f}"
    )
    loss.backward()
    for name, parameter in model.named_parameters():
        finite = parameter.grad is not None and parameter.grad.isfinite().all()
        expect(finite, f"{name} has no gradient, or one that is not finite")


def objective(case: Case) -> Any:
    return registry.build("objective", case[1], Byte(), BLOCK)


def random_blocks(count: int, short: int = 0, length: int = BLOCK, seed: int = 0) -> Blocks:
    """Random bytes with an end-of-text now and then, `short` tokens less than fill the blocks."""
    ids = np.random.default_rng(seed).integers(0, 256, length * count + 1 - short)
    ids[::37] = Byte.eot
    return Blocks(Tokens(ids, np.array([0]), 0, Byte.eot), length, isolate=False)


def _moved(model: nn.Module, before: dict[str, Tensor]) -> list[str]:
    state = model.state_dict()
    return [name for name, value in state.items() if not torch.equal(value, before[name])]


OPTIMISER_CHECKS = (learns, resumes, frozen_stays, counted_states)
SCHEDULE_CHECKS = (rates,)
OBJECTIVE_CHECKS = (rows_by_index, loss_of_a_new_model)
