"""Shards a model (FSDP2): each rank holds rows of all parameters, and a whole block only in use."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from zoo.checkpoints import reading, saving, weights
from zoo.checkpoints.reading import Rows
from zoo.errors import ZooError
from zoo.models.init import initialise
from zoo.utils import files


def shard(model: Any, strategy: Sharded, seed: int) -> None:
    """Shard a model on the meta device, and give each rank the initial values of its rows.

    The values are those of one device (FSDP, Zhao 2023). Raises ZooError for a parameter without
    rows.
    """
    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise ZooError(
                f"trainer.strategy=fsdp cuts parameters into rows, and {name} is a number: give it"
                " the shape (1,)"
            )
    for stack in model.stacks:
        for block in stack.blocks:
            fully_shard(block, mesh=strategy.device_mesh["data_parallel"])
    fully_shard(model, mesh=strategy.device_mesh["data_parallel"])
    for name in model.entrances:
        register_fsdp_forward_method(model, name)
    model.to_empty(device=strategy.root_device)
    initialise(model, model.config["init"], seed)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; all of it where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with checkpoints of tensors and plain data."""

    lightning_restore_optimizer = True

    def __init__(self, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return Strategy.lightning_module_state_dict(self)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return Strategy.optimizer_state(self, optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Each rank writes its rows into a new folder, to which the path points once all have."""
        path, name = self.broadcast((Path(filepath), uuid.uuid4().hex[:8]))
        folder = path.with_name(f".{path.name}.{name}")
        own = _in_rows(checkpoint | {reading.PARTS: self.world_size})
        files.write_atomically(folder / f"{self.global_rank}.pt", saving.dumps(own))
        self.barrier()
        if self.is_global_zero:
            saving.repoint(path, folder)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Each rank checks its share of the parts: checksums, finite numbers; one failure ends
        all.
        """
        path = Path(checkpoint_path)
        share = slice(self.global_rank, None, self.world_size)
        whole = all(map(reading.is_whole, sorted(path.glob("*.pt"))[share]))
        self._put_aside_unless(whole, path, "damaged: a checksum differs")
        checkpoint = reading.read_checkpoint(path, whole=False)
        assert self.lightning_module is not None
        learned = weights.learned(checkpoint, self.lightning_module.model)
        mine = (
            (name, Rows(value.parts[share]) if isinstance(value, Rows) else value, bound)
            for name, value, bound in learned
        )
        finite = weights.not_finite(mine) is None
        self._put_aside_unless(
            finite, path, "of a run that had diverged: not all its numbers are finite"
        )
        return checkpoint

    def _put_aside_unless(self, fine: bool, path: Path, why: str) -> None:
        """Raises Damaged on all ranks where a checkpoint is not fine on one, and renames it."""
        if self.reduce_boolean_decision(fine):
            return
        aside = path.with_suffix(".damaged")
        if self.is_global_zero:
            path.replace(aside)
        raise reading.Damaged(
            f"{path} is {why}. It is {aside.name} now, so that resume=auto takes the one before"
        )

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        own, state = self.lightning_module.state_dict(), checkpoint["state_dict"]
        self.lightning_module.load_state_dict(
            {name: _placed(state[name], own.get(name)) for name in state}, strict=strict
        )

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            state = {
                index: {key: _placed(value, parameters[index]) for key, value in entries.items()}
                for index, entries in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": state})


def _in_rows(value: Any) -> Any:
    """A checkpoint with this rank's rows of each sharded tensor."""
    if isinstance(value, DTensor):
        return saving.rows(value.to_local())
    if isinstance(value, dict):
        return {key: _in_rows(item) for key, item in value.items()}
    return [_in_rows(item) for item in value] if isinstance(value, list | tuple) else value


def _placed(value: Any, like: Any) -> Any:
    """A tensor of a checkpoint, sharded like the parameter that it belongs to."""
    if (
        not isinstance(like, DTensor)
        or not isinstance(value, Tensor | Rows)
        or value.shape != like.shape
    ):
        return value.whole() if isinstance(value, Rows) else value
    mesh, parts = like.device_mesh, value.parts if isinstance(value, Rows) else [value]
    if len(parts) == mesh.size():
        own = parts[mesh.get_local_rank()].to(like.device)
        return DTensor.from_local(
            own, mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
        )
    whole = value.whole() if isinstance(value, Rows) else value
    return distribute_tensor(whole.to(like.device), mesh, [Shard(0)], src_data_rank=None)
