"""From hidden states to logits. Wiring: dim, vocab. Shapes: (..., dim) and the embedding (vocab,
dim) -> (..., width).

`width` is the vocabulary, but for the pooler, whose numbers are not `of_tokens`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.nn.activations import ACTIVATIONS, capped
from zoo.registry import Component, build, register


@register("head", "linear")
class LinearHead(nn.Module):
    """x·Eᵀ with the embedding's own weight (tied: Press & Wolf 2017), or with a matrix of its own.

    `scaled` divides x by √dim before, as T5 ties; `softcap` bounds the logits by
    cap·tanh(logits/cap) (Gemma 2 2024).
    """

    def __init__(
        self,
        dim: int,
        vocab: int,
        *,
        tied: bool = True,
        bias: bool = False,
        scaled: bool = False,
        softcap: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__()
        self.width, self.cost, self.softcap = vocab, 2 * dim * vocab, softcap
        self.scale = dim**-0.5 if scaled else None
        self.weight = None if tied else nn.Parameter(torch.empty(vocab, dim))
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        x = x if self.scale is None else x * self.scale
        return capped(
            F.linear(x, embedding if self.weight is None else self.weight, self.bias), self.softcap
        )

    def flops(self, length: int) -> int:
        return self.cost


@register("head", "transform")
class TransformHead(LinearHead):
    """norm(act(x·W))·Eᵀ + b: a layer of its own before the product (BERT's masked language model,
    Devlin 2018).
    """

    def __init__(
        self,
        dim: int,
        vocab: int,
        *,
        act: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu",
        norm: Component = "layer",
        tied: bool = True,
        bias: bool = True,
        transform_bias: bool = True,
    ) -> None:
        super().__init__(dim, vocab, tied=tied, bias=bias)
        self.transform, self.act = nn.Linear(dim, dim, bias=transform_bias), ACTIVATIONS[act]
        self.norm = build("norm", norm, dim, path="head.norm")

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return super().forward(self.norm(self.act(self.transform(x))), embedding)

    def flops(self, length: int) -> int:
        return self.cost + 2 * self.transform.weight.numel()


@register("head", "pooler")
class Pooler(nn.Module):
    """tanh(x·W + b), of whose first token a classifier reads (BERT, Devlin 2018); with `classes`,
    their logits from it.
    """

    of_tokens = False  # however many classes there are

    def __init__(
        self, dim: int, vocab: int, *, classes: Annotated[int, Ge(2)] | None = None
    ) -> None:
        super().__init__()
        self.width = classes or dim
        self.dense = nn.Linear(dim, dim)
        self.classes = nn.Linear(dim, classes) if classes else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.classes(torch.tanh(self.dense(x)))
