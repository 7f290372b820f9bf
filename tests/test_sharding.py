"""Two processes against one that has all: what models in shards give and learn, how optimisers move
them, and training steps.

The processes are started once, do everything, and what they found is looked at by the tests.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.helpers.components import make
from tests.helpers.ranks import in_ranks
from zoo import config, generation, models, optim, registry
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights
from zoo.errors import ZooError
from zoo.training import divergence, fsdp
from zoo.training import module as lightning_module
from zoo.training.callbacks import LossLogger

TINY = ["arch.dim=16", "arch.layers=2", "arch.heads=2", "arch.length=16", "loader.length=16"]
MODELS = {
    "decoder": ["head.bias=true"],
    "mixture": ["ffn=moe", "ffn.bias=true", "pos=rope", "attn=gqa", "attn.kv_heads=1"],
    "encoder": ["model=bert"],
    "encoder-decoder": ["model=t5"],
    "translator": ["model=t5", "objective=seq2seq", "pos=alibi"],
}
Found = dict[str, Any]


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def learned(cut: Callable[[Any, int], None] | None = None) -> Found:
    """Of each model the loss, the gradients, with recomputation too, and what it writes; `cut`
    puts an empty one in shards.
    """
    found: Found = {}
    for name, words in MODELS.items():
        composed = config.compose([*TINY, *words])
        model = models.build(composed, seed=0, device="meta" if cut else "cpu")
        if cut:
            cut(model, 0)
        tokenizer = registry.build("tokenizer", composed["tokenizer"])
        objective = registry.build("objective", composed["objective"], tokenizer, 16)
        rows = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
        batch = objective.prepare(
            {"tokens": rows[:, :-1], "labels": rows[:, 1:], "indices": torch.arange(4)}, 0
        )
        values: list[Any] = []
        for checkpointing in (False, True):
            for stack in model.stacks:
                stack.checkpointing = checkpointing
            nats, count = objective(model, batch)
            (nats / count).backward()
            values += [nats.detach(), *(whole(parameter.grad) for parameter in model.parameters())]
            model.zero_grad()
        if model.family != "encoder":
            source = {"source": rows[:1, :8]} if model.family == "encoder_decoder" else {}
            values.append(generation.generate(model, rows[:1, :4], 6, temperature=0, **source))
        found[name] = values
    return found


def moved(cut: Callable[[Tensor], Any]) -> Found:
    """Of each optimiser the weights that three steps on the same gradients give, or why it
    refuses them as `cut` has them.
    """
    found: Found = {}
    for name in registry.entries("optim"):
        model = make(
            head={"name": "linear", "tied": False},
            attn={"name": "gqa", "kv_heads": 2, "bias": True},
        )
        draw = torch.Generator().manual_seed(0)
        for module in model.modules():
            for key, parameter in module._parameters.items():
                module._parameters[key] = (
                    None if parameter is None else nn.Parameter(cut(parameter.detach()))
                )
        try:
            optimizer = registry.build(
                "optim", {"name": name, "lr": 0.01}, optim.parameter_groups(model)
            )
        except ZooError as refusal:
            found[name] = str(refusal)
            continue
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = cut(torch.randn(parameter.shape, generator=draw))
            optimizer.step()
        found[name] = [whole(parameter.detach()) for parameter in model.parameters()]
    return found


class PlainSGD(torch.optim.SGD):
    """w -= lr·g, which unlike Adam knows the scale of its gradient."""

    def __init__(self, groups: list[optim.Group], *, lr: float = 0.5) -> None:
        super().__init__([group["params"][0] for group in groups], lr=lr)

    def state_size(self, shape: torch.Size, group: optim.Group) -> int:
        return 0


STEPS, ROWS = 2, 8
CLIPS = {"above": 1e6, "below": 0.01}  # of the gradient's norm
WAYS = [
    ("ddp", 1, "above"),
    ("ddp", 2, "below"),
    ("fsdp", 2, "above"),
    ("fsdp", 1, "below"),
]  # strategy, accumulate, clip


def read() -> tuple[Tensor, Tensor]:
    """Tokens and labels of all steps. No two rows of a step have as many labels, and the first
    two have none.
    """
    rows = torch.randint(256, (STEPS * ROWS, 17), generator=torch.Generator().manual_seed(1))
    number = torch.arange(len(rows))
    labelled = (5 * number % 16) * (number > 1)
    return rows[:, :-1], rows[:, 1:].where(torch.arange(16) < labelled[:, None], -100)


def stepped(strategy: Any, accumulate: int, clip: float, rank: int = 0, world: int = 1) -> Found:
    """The norms of the gradients before they are clipped, and the weights that plain steps make
    of the first ones.
    """
    registry.register("optim", "plain")(PlainSGD)
    words = [
        *TINY,
        f"loader.batch_size={ROWS}",
        f"trainer.accumulate={accumulate}",
        "schedule=constant",
        "schedule.warmup=0",
    ]
    composed = config.compose(words) | {"optim": {"name": "plain", "lr": 0.5}}
    model = models.build(composed, seed=0, device="meta" if strategy == "fsdp" else "cpu")
    module = lightning_module.LMModule(
        composed, model, registry.build("tokenizer", composed["tokenizer"])
    )
    micro = ROWS // (world * accumulate)
    parts = zip(*(x.split(micro) for x in read()), strict=True)
    batches = [
        {"tokens": tokens, "labels": labels}
        for tokens, labels in itertools.islice(parts, rank, None, world)
    ]
    norms, scaled = [], module.on_before_optimizer_step

    def record(optimizer: Any) -> None:
        scaled(optimizer)
        norms.append(torch.stack([whole(p.grad).norm() for p in module.model.parameters()]).norm())

    module.on_before_optimizer_step = record  # type: ignore[method-assign]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=fsdp.Sharded(world) if strategy == "fsdp" else strategy,
        max_steps=STEPS,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    weights = {
        name: whole(parameter.detach()).clone()
        for name, parameter in module.model.named_parameters()
    }
    return {"norms": torch.stack(norms), "weights": weights}


def resumed(folder: Path) -> list[Found]:
    """A run in shards at its first step, where it is saved, and at its end; and the run resumed
    from there at start and end.

    At each the weights, the state of the optimiser, and the losses that no row of metrics has yet,
    over both ranks.
    """
    seen: list[Found] = []
    path, (tokens, labels) = folder / "last.ckpt", read()
    mine = slice(distributed.get_rank(), ROWS, 2)

    def look(trainer: Any, module: Any) -> None:
        shown, optimizer = module.row_sums.clone(), trainer.optimizers[0]
        distributed.all_reduce(shown)
        state = [
            whole(value)
            for parameter in module.model.parameters()
            for value in optimizer.state[parameter].values()
        ]
        weights = [whole(parameter.detach()).clone() for parameter in module.model.parameters()]
        seen.append(
            {"shown": shown, "state": [value.clone() for value in state], "weights": weights}
        )

    def save(trainer: Any, module: Any, *_: Any) -> None:
        if trainer.global_step == 1:
            look(trainer, module)
            trainer.save_checkpoint(path)

    for first in (True, False):
        composed = config.compose([*TINY, f"loader.batch_size={ROWS}"])
        model = models.build(composed, seed=0, device="meta")
        module = lightning_module.LMModule(
            composed, model, registry.build("tokenizer", composed["tokenizer"])
        )
        hooks: dict[str, Any] = {"on_train_batch_end": save} if first else {"on_train_start": look}
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=fsdp.Sharded(2),
            max_steps=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[LambdaCallback(**hooks), LossLogger(9, 9)],
        )
        batches: Any = [{"tokens": tokens[mine], "labels": labels[mine]}] * 2
        trainer.fit(
            module,
            torch.utils.data.DataLoader(batches, batch_size=None),
            ckpt_path=None if first else str(path),
            weights_only=True,
        )
        look(trainer, module)
    return seen


class Ranks:
    """What a strategy gives to the ranks that train together."""

    def reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:
        distributed.all_reduce(tensor, getattr(distributed.ReduceOp, reduce_op.upper()))
        return tensor


def ends(rank: int, cut: Callable[[Any, int], None]) -> list[str]:
    """How both ranks end where only the second sees what is not finite: in an evaluation, in
    training, in its shard.
    """
    composed = config.compose(TINY)
    model = models.build(composed, seed=0, device="meta")
    cut(model, 0)
    module = lightning_module.LMModule(
        composed, model, registry.build("tokenizer", composed["tokenizer"])
    )
    module._trainer = SimpleNamespace(strategy=Ranks(), world_size=2, global_step=7, loggers=[])
    labels, right = torch.zeros(4, dtype=torch.long), torch.zeros(4)
    for number in range(4):
        nats = torch.full((4,), torch.nan if rank and number == 2 else 1.0)
        module.objective.evaluate = lambda model, batch, nats=nats: (nats, right, labels)
        module.validation_step({}, number)
    module.row_sums[0] = torch.inf if rank else 1.0
    if rank:
        with torch.no_grad():
            fsdp.local(model.stack.blocks[1].ffn.norm.weight)[0] = torch.nan
    saved = {
        "state_dict": {f"model.{name}": value for name, value in model.named_parameters()},
        "global_step": 7,
    }
    found = []
    for look in (
        module.on_validation_epoch_end,
        lambda: LossLogger(1, 1)._read_loss(module.trainer, module),
        lambda: divergence.refuse_weights(module, saved),
    ):
        try:
            look()
            found.append("nothing")
        except divergence.Diverged as error:
            found.append(str(error).partition(":")[0])
    return found


def one_of_two(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)  # by which Lightning knows that the processes are started
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    strategy: Any = SimpleNamespace(
        device_mesh={"data_parallel": mesh}, root_device=torch.device("cpu")
    )
    found = {
        "learned": learned(lambda model, seed: fsdp.shard(model, strategy, seed)),
        "ends": ends(rank, lambda model, seed: fsdp.shard(model, strategy, seed)),
        "moved": moved(
            lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)
        ),
        "stepped": {way: stepped(*way[:2], CLIPS[way[2]], rank, 2) for way in WAYS},
        "resumed": resumed(folder),
    }
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("shards")
    in_ranks(one_of_two, folder)
    return [
        torch.load(folder / f"{rank}.pt") | {"saved": folder / "last.ckpt"} for rank in range(2)
    ]


def test_models_learn_and_write_what_they_do_in_one_process(in_two: list[Found]) -> None:
    alone = learned()
    for found in in_two:
        assert found["learned"].keys() == alone.keys()
        for name, values in found["learned"].items():
            for value, expected in zip(values, alone[name], strict=True):
                torch.testing.assert_close(
                    value,
                    expected,
                    rtol=1e-4,
                    atol=1e-6,
                    msg=lambda told, name=name: f"{name}: {told}",
                )


def test_what_is_not_finite_on_one_rank_ends_both_with_one_sentence(in_two: list[Found]) -> None:
    for found in in_two:
        evaluation, training, weights = found["ends"]
        assert evaluation == "val/loss became nan at step 7"
        assert training == "train/loss became inf at step 7"
        assert weights == "stack.blocks.1.ffn.norm.weight was no longer a finite number at step 7"


def test_optimisers_move_them_as_they_move_the_whole_or_refuse(in_two: list[Found]) -> None:
    alone = moved(lambda tensor: tensor)
    for found in in_two:
        assert found["moved"].keys() == alone.keys()
        for name, weights in found["moved"].items():
            if isinstance(weights, str):
                assert weights.startswith(f"optim={name} cannot work on shards: choose optim=")
            else:
                torch.testing.assert_close(weights, alone[name], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("clip", CLIPS)
def test_a_plain_step_is_that_of_the_mean_over_all_labelled_tokens(
    in_two: list[Found], clip: str
) -> None:
    """By hand, whatever the strategy, the micro-batches and the share of the labelled tokens
    that each rank has.
    """
    expected = by_hand(CLIPS[clip])
    assert (expected["norms"] > CLIPS["below"]).all()
    torch.testing.assert_close(stepped("auto", 1, CLIPS[clip]), expected, rtol=1e-4, atol=1e-6)
    for found, way in itertools.product(in_two, [way for way in WAYS if way[2] == clip]):
        torch.testing.assert_close(
            found["stepped"][way],
            expected,
            rtol=1e-4,
            atol=1e-6,
            msg=lambda told, way=way: f"{way}: {told}",
        )


def by_hand(clip: float) -> Found:
    """The same by torch alone: the gradient of the mean over all labels of a step, clipped, once
    lr.
    """
    model, norms = models.build(config.compose(TINY), seed=0), []
    for step in range(STEPS):
        tokens, labels = (x[step * ROWS : (step + 1) * ROWS] for x in read())
        model.zero_grad()
        nn.functional.cross_entropy(
            model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100
        ).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    return {
        "norms": torch.stack(norms),
        "weights": {name: p.detach() for name, p in model.named_parameters()},
    }


def test_a_run_in_shards_resumes_to_the_bit(in_two: list[Found]) -> None:
    """Each rank has its own rows again, and no loss counts twice in the next row of metrics."""
    for found in in_two:
        saved, ended, restored, ended_again = found["resumed"]
        torch.testing.assert_close(restored, saved, rtol=0, atol=0)
        torch.testing.assert_close(ended_again, ended, rtol=0, atol=0)
        assert saved["shown"][1] == (read()[1][:ROWS] >= 0).sum()
        assert not torch.equal(ended["weights"][0], saved["weights"][0])
        whole_file = checkpoint_weights.weights(reading.read_checkpoint(found["saved"]))
        torch.testing.assert_close(list(whole_file.values()), saved["weights"], rtol=0, atol=0)
