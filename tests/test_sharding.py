"""Shards of two processes against one process that has all: what models give and learn, and how optimisers move them.

The processes are started once, do everything, and what they found is looked at by the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.conftest import make
from zoo import config, decoding, models, optim, registry, sharding
from zoo.registry import ZooError

TINY = ["arch.dim=16", "arch.layers=2", "arch.heads=2", "arch.length=16", "loader.length=16"]
MODELS = {
    "decoder": ["head.bias=true"], "mixture": ["ffn=moe", "ffn.bias=true", "pos=rope", "attn=gqa", "attn.kv_heads=1"],
    "encoder": ["model=bert"], "encoder-decoder": ["model=t5"], "translator": ["model=t5", "objective=seq2seq", "pos=alibi"],
}
Found = dict[str, Any]


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def learned(cut: Callable[[Any, int], None] | None = None) -> Found:
    """Of each model the loss, the gradients, with recomputation too, and what it writes; `cut` puts an empty one in shards."""
    found: Found = {}
    for name, words in MODELS.items():
        composed = config.compose([*TINY, *words])
        model = models.build(composed, seed=0, device="meta" if cut else "cpu")
        if cut:
            cut(model, 0)
        tokenizer = registry.build("tokenizer", composed["tokenizer"])
        objective = registry.build("objective", composed["objective"], tokenizer, 16)
        rows = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
        batch = objective.prepare({"tokens": rows[:, :-1], "labels": rows[:, 1:], "rows": torch.arange(4)}, 0)
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
            values.append(decoding.generate(model, rows[:1, :4], 6, temperature=0, **source))
        found[name] = values
    return found


def moved(cut: Callable[[Tensor], Any]) -> Found:
    """Of each optimiser the weights that three steps on the same gradients give, or why it refuses them as `cut` has them."""
    found: Found = {}
    for name in registry.entries("optim"):
        model = make(head={"name": "linear", "tied": False}, attn={"name": "gqa", "kv_heads": 2, "bias": True})
        draw = torch.Generator().manual_seed(0)
        for module in model.modules():
            for key, parameter in module._parameters.items():
                module._parameters[key] = None if parameter is None else nn.Parameter(cut(parameter.detach()))
        try:
            optimizer = registry.build("optim", {"name": name, "lr": 0.01}, optim.parameter_groups(model))
        except ZooError as refusal:
            found[name] = str(refusal)
            continue
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = cut(torch.randn(parameter.shape, generator=draw))
            optimizer.step()
        found[name] = [whole(parameter.detach()) for parameter in model.parameters()]
    return found


def one_of_two(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    strategy: Any = SimpleNamespace(device_mesh={"data_parallel": mesh}, root_device=torch.device("cpu"))
    found = {"learned": learned(lambda model, seed: sharding.shard(model, strategy, seed)),
             "moved": moved(lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None))}
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("shards")
    processes: Any = torch.multiprocessing.spawn(one_of_two, (folder,), nprocs=2, join=False)
    assert any(processes.join(60) for _ in range(3)), "they hang"
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_models_learn_and_write_what_they_do_in_one_process(in_two: list[Found]) -> None:
    alone = learned()
    for found in in_two:
        assert found["learned"].keys() == alone.keys()
        for name, values in found["learned"].items():
            for value, expected in zip(values, alone[name], strict=True):
                torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6, msg=lambda told, name=name: f"{name}: {told}")


def test_optimisers_move_them_as_they_move_the_whole_or_refuse(in_two: list[Found]) -> None:
    alone = moved(lambda tensor: tensor)
    for found in in_two:
        assert found["moved"].keys() == alone.keys()
        for name, weights in found["moved"].items():
            if isinstance(weights, str):
                assert weights.startswith(f"optim={name} cannot work on shards: choose optim=")
            else:
                torch.testing.assert_close(weights, alone[name], rtol=1e-4, atol=1e-6)
