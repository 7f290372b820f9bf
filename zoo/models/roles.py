"""The role of each parameter in a model, known from the modules around it.

Initialisation, optimisers, muP, costs and training monitors read it from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from torch import nn

from zoo.components.pos import Position
from zoo.components.residual import Residual
from zoo.nn.attention import FusedLinear

Kind = Literal["embedding", "head", "table", "matrix", "gain", "bias"]
M = TypeVar("M", bound=nn.Module)
SUBLAYERS = ("attn", "cross", "ffn")  # the names by which a block is given its sublayers


@dataclass(frozen=True)
class Role:
    """What a parameter is for.

    kind: `embedding` (of tokens) and `head` have the vocabulary on one side; a `table` is another
    one that is looked up (positions, segments); any other matrix is a `matrix`; what has one
    dimension is a `gain` or a `bias`. projection: what the module around its own calls that (q,
    out, router), or its name among the splits of a fused matrix. within: the modules around it,
    from the model to the one that owns it. block, layer, sublayer: where in a stack it is, as in
    stack.blocks.3, 3, attn; None outside. splits: the rows of each projection that shares the
    matrix, by name; empty where there is one.
    """

    kind: Kind
    projection: str
    within: tuple[nn.Module, ...]
    block: str | None = None
    layer: int | None = None
    sublayer: str | None = None
    splits: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_matrix(self) -> bool:
        return self.kind not in ("gain", "bias")

    @property
    def writes_residual(self) -> bool:
        """Whether its product is what a sublayer adds to the residual stream: its projection is
        named `out`.
        """
        return self.projection == "out" and self.innermost(Residual) is not None

    @property
    def part(self) -> str:
        """The part of a model that it counts to: embed, head, norm, positions, attn, cross, ffn,
        residual or other.
        """
        model: Any = self.within[0]
        owner = self.within[-1]
        for name in ("embed", "head"):
            if getattr(model, name, None) in self.within:
                return name
        if is_norm(owner):
            return "norm"
        if self.innermost(Position) is not None:
            return "positions"
        return self.sublayer or ("other" if self.block is None else "residual")

    def innermost(self, kind: type[M]) -> M | None:
        """The closest module around it that is of a class."""
        return next((module for module in reversed(self.within) if isinstance(module, kind)), None)

    def projections(self, name: str) -> Iterator[tuple[str, int | None, Role]]:
        """Name, rows and role of each projection in a matrix of this name; None stands for all
        rows.

        A split is named as if it had a module of its own beside the fused one.
        """
        if not self.splits:
            yield name, None, self
            return
        around, _, weight = name.rsplit(".", 2)
        for projection, rows in self.splits.items():
            yield f"{around}.{projection}.{weight}", rows, replace(self, projection=projection)


def is_norm(module: nn.Module) -> bool:
    """Whether a module learns vectors only and has no children, as norms do."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not list(module.children()) and all(each.ndim < 2 for each in own)


def roles(model: nn.Module) -> dict[str, Role]:
    """The role of each parameter by its name; a tied weight is one parameter, under its first
    name.
    """
    blocks = {
        id(block): layer
        for stack in getattr(model, "stacks", ())
        for layer, block in enumerate(stack.blocks)
    }
    by_name: dict[str, Role] = {}
    seen: set[nn.Parameter] = set()
    for path, within in _owners(model):
        owner = within[-1]
        own = [pair for pair in owner.named_parameters(recurse=False) if pair[1] not in seen]
        if not own:
            continue
        depth = next((n for n, module in enumerate(within) if id(module) in blocks), None)
        place: dict[str, Any] = {}
        if depth is not None:
            place["block"] = ".".join(path[:depth])
            place["layer"] = blocks[id(within[depth])]
            place["sublayer"] = next((name for name in path[depth:] if name in SUBLAYERS), None)
        for name, parameter in own:
            kind = _kind(within, parameter)
            splits: Mapping[str, int] = {}
            if isinstance(owner, FusedLinear) and parameter.ndim >= 2:
                splits = owner.split_sizes
            projection = path[-1] if path else ""
            by_name[".".join((*path, name))] = Role(
                kind, projection, within, **place, splits=splits
            )
            seen.add(parameter)
    return by_name


def _owners(
    module: nn.Module, path: tuple[str, ...] = (), within: tuple[nn.Module, ...] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[nn.Module, ...]]]:
    """Each module's path in words, and the modules from the model to it."""
    within = (*within, module)
    yield path, within
    for name, child in module.named_children():
        yield from _owners(child, (*path, name), within)


def _kind(within: tuple[nn.Module, ...], parameter: nn.Parameter) -> Kind:
    model: Any = within[0]
    owner = within[-1]
    if parameter.ndim < 2:
        is_bias = getattr(owner, "bias", None) is parameter or isinstance(owner, nn.RNNBase)
        return "bias" if is_bias else "gain"
    if getattr(getattr(model, "embed", None), "weight", None) is parameter:
        return "embedding"
    if getattr(getattr(model, "head", None), "weight", None) is parameter:
        return "head"
    in_position = any(isinstance(module, Position) for module in within)
    return "table" if in_position or isinstance(owner, nn.Embedding) else "matrix"
