"""Counts the memory of training: what a forward pass keeps for the backward pass, by block.

torch is imported where it is used, so that the facade zoo.cost costs a command little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.cost import cluster
from zoo.cost.cluster_plan import Plan
from zoo.cost.counting import BACKWARD_AND_FORWARD, active_children, flops, made
from zoo.registry import build
from zoo.utils import compat

if TYPE_CHECKING:
    from torch import Tensor, nn


class ActivationRecorder:
    """Records the storages that a forward pass saves for the backward pass, and the block that
    first saves each.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.blocks = blocks
        self.inputs: list[Tensor] = []  # of each block
        self._running: nn.Module | None = None
        self._saved: dict[int, tuple[int, nn.Module | None]] = {}  # bytes and block by storage
        self._alive: list[Tensor] = []  # else the id of a storage may be used again

    def save(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self._saved.setdefault(compat.storage_key(x), (storage.nbytes(), self._running))
        self._alive.append(x)
        return x

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what autograd saves, until the end of the context."""
        from torch.autograd.graph import saved_tensors_hooks

        hooks = [block.register_forward_pre_hook(self._enter) for block in self.blocks]
        hooks += [block.register_forward_hook(self._leave) for block in self.blocks]
        try:
            with saved_tensors_hooks(self.save, lambda x: x):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def by_block(self, parameters: set[int]) -> tuple[int, list[int]]:
        """Bytes saved outside the blocks and by each block; the storages of parameters are not
        counted.
        """
        outside, inside = 0, dict.fromkeys(self.blocks, 0)
        for storage, (size, block) in self._saved.items():
            if storage in parameters:
                continue
            if block is None:
                outside += size
            else:
                inside[block] += size
        return outside, list(inside.values())

    def _enter(self, block: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._running = block
        self.inputs.append(arguments[0])

    def _leave(self, *_: Any) -> None:
        self._running = None


def figures(config: Mapping[str, Any], model: Any = None, sequences: int = 1) -> cluster.Figures:
    """Count what zoo.cost.cluster needs to know of a model, for a micro-batch of this many
    sequences.

    The forward pass runs on fake tensors of the CPU, which choose the kernels of real ones and hold
    no memory. A model that is given, on the meta device, has its own tensors back at the end.
    """
    from zoo import optim
    from zoo.components.residual import Residual

    loader, vocab = config["loader"], config["arch"]["vocab"]
    model = model or made(config)
    blocks = [block for stack in model.stacks for block in stack.blocks]
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    states = optim.state_size(model, config["optim"], config["init"])
    forward = flops(model, loader["length"])
    objective, batch = _batch(config, sequences)
    recorder = ActivationRecorder(blocks)
    with (
        compat.fake_tensor_mode() as fake,
        _fake_tensors(model),
        recorder.recording(),
    ):
        weights = {compat.storage_key(parameter) for parameter in model.parameters()}
        fakes = {name: fake.from_tensor(tensor) for name, tensor in batch.items()}
        hidden = objective.run_model(model, fakes, lambda hidden, head, embedding: hidden)
        recorder.save(hidden)
    outside, by_block = recorder.by_block(weights)
    inputs = [x.numel() * x.element_size() for x in recorder.inputs]
    return cluster.Figures(
        parameters=total,
        states=states,
        outer=total - sum(sizes),
        block=max(sizes),
        flops=BACKWARD_AND_FORWARD * forward,
        length=loader["length"],
        stream=max(inputs) / sequences,
        residuals=sum(isinstance(module, Residual) for module in model.modules()),
        kept=sum(by_block) / sequences,
        kept_block=max(by_block) / sequences,
        inputs=sum(inputs) / sequences,
        logits=(outside + _logits_bytes(len(hidden), vocab)) / sequences,
    )


def _batch(config: Mapping[str, Any], sequences: int) -> tuple[Any, dict[str, Tensor]]:
    """The objective, and a batch of zeros as it prepares it."""
    import numpy as np

    from zoo.data.dataset import Blocks
    from zoo.data.tokens import Tokens

    loader = config["loader"]
    tokenizer = build("tokenizer", config["tokenizer"])
    objective = build("objective", config["objective"], tokenizer, loader["length"])
    ids = np.zeros(sequences * loader["length"] + 1, dtype=np.int64)
    tokens = Tokens(ids, ids[:1], 0, tokenizer.eot)
    dataset = Blocks(tokens, loader["length"], isolate=loader["isolate"])
    return objective, objective.prepare(dataset.__getitems__(range(sequences)), config["seed"])


def _logits_bytes(positions: int, vocab: int) -> int:
    """Bytes of a chunk's logits and their logarithms, then of these and their gradient, while
    all else is there.
    """
    from zoo.objectives import loss

    return 2 * 4 * min(positions, loss.positions_at_once(vocab)) * vocab


@contextlib.contextmanager
def _fake_tensors(model: nn.Module) -> Iterator[None]:
    """Replace the tensors that a token passes through by tensors of the CPU, which a fake tensor
    mode makes fake.

    Not those of every expert: a mixture can have tens of thousands.
    """
    import torch

    originals: list[tuple[nn.Module, str, Tensor]] = []
    for module in _active_modules(model):
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        originals += [(module, name, tensor) for name, tensor in own]
    for module, name, tensor in originals:
        empty = torch.empty_like(tensor, device="cpu")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        setattr(module, name, torch.nn.Parameter(empty) if is_parameter else empty)
    try:
        yield
    finally:
        for module, name, tensor in originals:
            setattr(module, name, tensor)


def _active_modules(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    for child in active_children(module):
        yield from _active_modules(child)


def layout(config: Mapping[str, Any]) -> Plan:
    """How a run is laid out: devices, precision, and how much of the batch each device takes at
    once.
    """
    loader, trainer = config["loader"], config["trainer"]
    gpus = trainer["devices"] * trainer["nodes"]
    return Plan(
        gpus=gpus,
        strategy="fsdp" if "fsdp" in trainer["strategy"] else "ddp",
        precision=trainer["precision"],
        checkpointing=trainer["gradient_checkpointing"],
        micro=max(1, loader["batch_size"] // (trainer["accumulate"] * gpus)),
    )


def memory(config: Mapping[str, Any], model: Any = None) -> dict[str, float]:
    """Bytes that a run needs on each device, by what takes them; see `figures` for a model that
    is given.
    """
    plan = layout(config)
    return cluster.memory(figures(config, model, plan.micro), plan)


def training_memory(config: Mapping[str, Any], model: Any = None) -> int:
    """Bytes of weights, gradients, optimiser, and of what one micro-batch keeps for the backward
    pass.
    """
    return int(sum(memory(config, model).values()))
