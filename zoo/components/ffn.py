"""Position-wise feed-forward. Wiring: dim. Shapes: (B, Q, dim) -> (B, Q, dim).

The projection that writes into the residual stream is named `out`: initialisation policies know it
by that name.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.context import Context, unchanged
from zoo.nn.activations import Activation, gelu_tanh, relu2
from zoo.registry import register


def width_of(hidden: int | None, default: int, multiple_of: int) -> int:
    """The hidden width: as given, or the default rounded up to a multiple."""
    return -(-default // multiple_of) * multiple_of if hidden is None else hidden


@register("ffn", "relu", "relu(x·W₁)·W₂, hidden width 4·dim (Vaswani 2017)", act=F.relu)
@register(
    "ffn",
    "gelu",
    "gelu(x·W₁)·W₂ with the exact x·Φ(x) (Hendrycks & Gimpel 2016; BERT 2018)",
    act=F.gelu,
)
@register(
    "ffn",
    "gelu_tanh",
    "gelu by its tanh approximation (Hendrycks & Gimpel 2016; GPT-2 2019)",
    act=gelu_tanh,
)
@register("ffn", "relu2", "relu(x·W₁)²·W₂ (Primer, So 2021)", act=relu2)
@register(
    "ffn", "silu", "silu(x·W₁)·W₂ with x·σ(x) (Elfwing 2017; Swish, Ramachandran 2017)", act=F.silu
)
class FeedForward(nn.Module):
    """act(x·W₁)·W₂, hidden width 4·dim unless given."""

    def __init__(
        self,
        dim: int,
        *,
        act: Activation,
        hidden: Annotated[int, Ge(1)] | None = None,
        multiple_of: Annotated[int, Ge(1)] = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.act = act
        width = width_of(hidden, 4 * dim, multiple_of)
        self.up = nn.Linear(dim, width, bias=bias)
        self.out = nn.Linear(width, dim, bias=bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.out(self.act(self.up(x)))


@register("ffn", "reglu", "(relu(x·W₁) ⊗ x·W₂)·W₃, hidden width ⅔·4·dim (Shazeer 2020)", act=F.relu)
@register("ffn", "geglu", "(gelu(x·W₁) ⊗ x·W₂)·W₃, hidden width ⅔·4·dim (Shazeer 2020)", act=F.gelu)
@register(
    "ffn",
    "geglu_tanh",
    "geglu with gelu's tanh approximation (T5 v1.1 2020, Gemma 2024)",
    act=gelu_tanh,
)
@register(
    "ffn",
    "bilinear",
    "(x·W₁ ⊗ x·W₂)·W₃, hidden width ⅔·4·dim (Dauphin 2016, Shazeer 2020)",
    act=unchanged,
)
@register(
    "ffn",
    "swiglu",
    "(silu(x·W₁) ⊗ x·W₂)·W₃, hidden width ⅔·4·dim (Shazeer 2020; LLaMA 2023)",
    act=F.silu,
)
class GatedFeedForward(nn.Module):
    """(act(x·W₁) ⊗ x·W₂)·W₃; the hidden width is ⅔ of the ungated one unless given, so that
    parameters match.
    """

    def __init__(
        self,
        dim: int,
        *,
        act: Activation,
        hidden: Annotated[int, Ge(1)] | None = None,
        multiple_of: Annotated[int, Ge(1)] = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.act = act
        width = width_of(hidden, 8 * dim // 3, multiple_of)
        self.gate = nn.Linear(dim, width, bias=bias)
        self.up = nn.Linear(dim, width, bias=bias)
        self.out = nn.Linear(width, dim, bias=bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.out(self.act(self.gate(x)) * self.up(x))


@register("ffn", "none")
def none(dim: int) -> None:
    """No feed-forward: layers of attention only (Elhage 2021)."""
