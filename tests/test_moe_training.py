"""What a mixture of experts costs, and what training makes of its trace."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.components import ARCH, Choice, close, gradients, loss_of, made, shaken, tokens
from zoo import config, cost, models, registry
from zoo.components.moe import MixtureOfExperts
from zoo.context import Trace
from zoo.training import module as lightning_module


def test_recomputing_writes_the_trace_once_and_frees_it() -> None:
    model, found = made(("ffn", {"name": "moe", "bias": True, "z_loss": 0.1})), []
    for model.stack.checkpointing in (False, True):
        trace = Trace()
        loss = loss_of(model, trace=trace) + sum(trace.losses)
        found.append({"loss": loss.detach(), **gradients(model, loss)})
        assert len(trace.losses) == 2 * len(trace.loads) == 2 * ARCH["layers"]
    for name in found[0]:
        close(found[1][name], found[0][name], 1e-7)
    unread = Trace()
    loss, freed = loss_of(model, trace=unread), weakref.ref(unread.losses[0])
    loss.backward()
    del unread, loss
    gc.collect()
    assert freed() is None


def test_cost_is_of_the_active_experts() -> None:
    expert = {"name": "relu", "hidden": 24}
    each = 2 * 2 * 16 * 24
    given: list[tuple[Choice, int]] = [
        ({}, 2),
        ({"experts": 64}, 2),
        ({"top_k": 4}, 4),
        ({"shared": expert}, 3),
    ]
    for options, active in given:
        layer = registry.build("ffn", {"name": "moe", "expert": expert} | options, 16)
        assert cost.flops(layer, 10) == active * each + 2 * layer.router.weight.numel()


def test_memory_of_training_is_found_without_any() -> None:
    """Twice the tokens, twice the activations: as rows that are shared out among the experts,
    whatever their number.
    """
    words = ["ffn=moe", "ffn.top_k=3", "arch.dim=16", "arch.layers=1", "arch.length=32"]
    one, two, four = (
        cost.training_memory(config.compose([*words, f"loader.batch_size={size}"]))
        for size in (1, 2, 4)
    )
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)


@torch.no_grad()
def test_compiling_is_done_once() -> None:
    """However the tokens fall among the experts, in one graph."""
    torch._dynamo.reset()  # what other tests have compiled of this code, with gradients
    padding = torch.ones_like(tokens(), dtype=torch.bool)
    padding[0, :3] = False
    model, compiled = made(("ffn", {"name": "moe"})), made(("ffn", {"name": "moe"}))
    with torch._dynamo.config.patch(
        error_on_recompile=True, capture_scalar_outputs=False
    ):  # what is set is set back
        compiled.compile(backend="eager", fullgraph=True)
        for seed in range(5):
            close(compiled(tokens(seed=seed), padding), model(tokens(seed=seed), padding))


class Tokens:
    vocab, eot = ARCH["vocab"], 0

    def byte_lengths(self) -> list[int]:
        return [1] * ARCH["vocab"]


def batch(rows: slice, seed: int) -> dict[str, Tensor]:
    """Of uneven numbers of labels."""
    labels = tokens(4, 12, seed + 100)
    labels[0, 3:] = -100
    return {"tokens": tokens(4, 12, seed)[rows], "labels": labels[rows]}


def trained(
    accumulate: int, checkpointing: bool = False, lr: float = 1e-2, **options: Any
) -> lightning_module.LMModule:
    """After three steps on the same rows, in one or several micro-batches."""
    words = [f"arch.{name}={ARCH[name]}" for name in ("dim", "layers", "heads", "length", "vocab")]
    words += [
        "ffn=moe",
        "pos=rope",
        f"optim.lr={lr}",
        "optim.eps=0.1",
    ]  # else Adam makes noise as large as the rest
    made = config.compose([*words, *(f"ffn.{name}={value}" for name, value in options.items())])
    module = lightning_module.LMModule(made, shaken(models.build(made)), Tokens())
    module.model.stack.checkpointing = checkpointing
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    size = 4 // accumulate
    data = [
        batch(slice(start, start + size), step) for step in range(3) for start in range(0, 4, size)
    ]
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
    return module


def state(module: lightning_module.LMModule) -> dict[str, Tensor]:
    return module.model.state_dict()


@pytest.mark.parametrize(("accumulate", "checkpointing"), [(2, False), (4, True)])
def test_training_is_the_same_in_micro_batches(accumulate: int, checkpointing: bool) -> None:
    """The auxiliary losses, and what a step's tokens did to the bias, too."""
    options = {"bias": True, "z_loss": 0.1, "balance_loss": 1.0}
    whole, parts = (
        state(trained(1, **options)),
        state(trained(accumulate, checkpointing, **options)),
    )
    for name, value in whole.items():
        close(parts[name], value)
    balances = [value for name, value in whole.items() if name.endswith("balance")]
    assert len(balances) == ARCH["layers"]
    assert all(value.abs().max() > 0 for value in balances)
    router = "stack.blocks.0.ffn.sublayer.router.weight"
    assert not torch.allclose(
        state(trained(1, **options | {"balance_loss": 0.0}))[router], whole[router]
    )


def test_the_bias_is_moved_once_a_step_by_all_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(
        MixtureOfExperts, "rebalance", lambda self, loads: seen.append(loads.sum().item())
    )
    trained(2, bias=True)
    assert seen == [4 * 12 * 2] * 3 * ARCH["layers"]


def test_what_is_shown_and_validated_is_the_cross_entropy() -> None:
    """Also where the auxiliary losses are far larger; so small a rate leaves the weights."""
    module = trained(1, lr=1e-12, balance_loss=1e3)
    nats, number = zip(
        *(module.objective(module.model, batch(slice(0, 4), step)) for step in range(3)),
        strict=True,
    )
    close(module.row_sums, torch.stack([sum(nats, torch.zeros(())), sum(number, torch.zeros(()))]))
    given, trace = batch(slice(0, 4), 0), Trace()
    logits = module.model(given["tokens"]).flatten(0, 1)
    close(nats[0], F.cross_entropy(logits, given["labels"].flatten(), reduction="sum"))
    assert torch.equal(module.objective(module.model, given, trace)[0], nats[0])
    assert len(trace.losses) == ARCH["layers"]
