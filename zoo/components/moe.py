"""Mixture of experts: a feed-forward of many, of which each token uses a few. Wiring and shapes as
in ffn.py.

Nothing is dropped: the tokens are sorted by expert, and each expert runs once, on those that chose
it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.context import Context
from zoo.errors import ZooError
from zoo.registry import Component, build, register
from zoo.utils import compat


@register("ffn", "moe")
class MixtureOfExperts(nn.Module):
    """Σₑ gₑ·expertₑ(x) over the top_k of g(x·W), + shared(x) (Shazeer 2017; Switch 2021; Mixtral,
    DeepSeek-V3 2024).

    s = gate(x·W) in float32, over all experts; the top_k by s (by s + balance with `bias`) are
    chosen, and weigh s, divided by its sum over them with `renormalize`, times `gate_scale`. With
    groups, only the experts of the `top_groups` best are candidates, a group being worth its best s
    (softmax; DeepSeek-V2), or the sum of its two best (sigmoid; DeepSeek-V3).

    Auxiliary losses go to the trace, as sums over tokens (T in a row, of which expert e is given
    nₑ, with mean share Pₑ): balance_loss·T·experts/top_k·Σₑ nₑ/T·Pₑ for each row (Switch, equation
    4, a sequence at a time as in DeepSeek-V3; a row of packed documents counts as one), and
    z_loss·Σ logsumexp(x·W)² (ST-MoE, Zoph 2022). `bias` balances without a loss (Wang 2024): after
    each step the training moves it by `bias_rate` for experts with too few tokens, against those
    with too many. `expert` and `shared` choose feed-forwards, as in `{name: swiglu, hidden: 64}`.
    """

    balance: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        experts: Annotated[int, Ge(2), Le(10_000)] = 8,  # 2,048 were trained (Fedus 2021)
        top_k: Annotated[int, Ge(1)] = 2,
        expert: Component = "swiglu",
        shared: Component = None,
        gate: Literal["softmax", "sigmoid"] = "softmax",
        renormalize: bool = True,
        gate_scale: Annotated[float, Gt(0)] = 1.0,
        groups: Annotated[int, Ge(1)] = 1,
        top_groups: Annotated[int, Ge(1)] = 1,
        balance_loss: Annotated[float, Ge(0)] = 0.01,
        z_loss: Annotated[float, Ge(0)] = 0.0,
        bias: bool = False,
        bias_rate: Annotated[float, Ge(0)] = 0.001,
    ) -> None:
        super().__init__()
        _check(experts, top_k, groups, top_groups, renormalize)
        if expert in (None, "none", {"name": "none"}):
            raise ZooError("ffn.expert must be a feed-forward, like swiglu")
        self.top_k, self.gate = top_k, gate
        self.renormalize, self.gate_scale = renormalize, gate_scale
        self.groups, self.top_groups = groups, top_groups
        self.balance_loss, self.z_loss, self.bias_rate = balance_loss, z_loss, bias_rate
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            build("ffn", expert, dim, path="ffn.expert") for _ in range(experts)
        )
        self.shared = build("ffn", shared, dim, path="ffn.shared") if shared is not None else None
        if sum(isinstance(module, MixtureOfExperts) for module in self.modules()) > 1:
            raise ZooError(
                "an expert cannot be a mixture itself: choose another ffn for ffn.expert and"
                " ffn.shared"
            )
        self.register_buffer("balance", torch.zeros(experts, dtype=torch.float32) if bias else None)

    def reset_parameters(self) -> None:
        if self.balance is not None:
            nn.init.zeros_(self.balance)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`balance` moves with the module but stays float32: in bfloat16 a step of .001 would soon
        be lost.
        """
        kept = self.balance
        super()._apply(fn, recurse)
        if kept is not None and self.balance is not None and self.balance.dtype != kept.dtype:
            self.balance = kept.to(self.balance.device)
        return self

    def forward(self, x: Tensor, context: Context) -> Tensor:
        tokens = (
            x.new_ones(x.shape[:2], dtype=torch.bool) if context.tokens is None else context.tokens
        )
        logits = self.logits(x)
        scores = logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid()
        gates, chosen = self.route(scores)
        chosen = chosen.masked_fill(
            ~tokens[..., None], len(self.experts)
        )  # padding chooses an expert that is not there
        counts = (
            chosen.flatten(1)[..., None] == torch.arange(len(self.experts), device=x.device)
        ).sum(1)
        self._report(context, logits, scores, counts, tokens)
        y = self._mixed(x, gates, chosen, counts.sum(0), context)
        return y if self.shared is None else y + self.shared(x, context)

    def logits(self, x: Tensor) -> Tensor:
        """(B, Q, dim) -> (B, Q, experts) in float32 or finer, also under autocast (which knows no
        meta device).
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            return F.linear(x.to(wide), self.router.weight.to(wide))

    def route(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """scores (B, Q, experts) -> the gates (B, Q, top_k) and which experts they are of."""
        wanted = scores.detach()
        if self.balance is not None:
            wanted = wanted + self.balance
        if self.top_groups < self.groups:
            grouped = wanted.unflatten(-1, (self.groups, -1))
            best = grouped.topk(
                1 if self.gate == "softmax" else min(2, grouped.shape[-1])
            ).values.sum(-1)
            left = torch.ones_like(best, dtype=torch.bool).scatter(
                -1, best.topk(self.top_groups).indices, False
            )
            wanted = grouped.masked_fill(left[..., None], -torch.inf).flatten(-2)
        chosen = wanted.topk(self.top_k).indices
        gates = scores.gather(-1, chosen)
        return (_shares(gates) if self.renormalize else gates) * self.gate_scale, chosen

    def rebalance(self, loads: Tensor) -> None:
        """Make experts with too few tokens likelier; loads (experts,) are those of a whole step."""
        assert self.balance is not None
        loads = loads.to(self.balance)
        self.balance += self.bias_rate * (loads.mean() - loads).sign()

    def active(self) -> list[nn.Module]:
        """What a token passes through, for its cost."""
        return [
            self.router,
            *self.experts[: self.top_k],
            *([self.shared] if self.shared is not None else []),
        ]

    def _mixed(
        self, x: Tensor, gates: Tensor, chosen: Tensor, loads: Tensor, context: Context
    ) -> Tensor:
        """The experts' part. Each runs, if on no token, so that every parameter has a gradient on
        every rank.

        Rows are put back by a copy, not a scattered sum, so that the result does not depend on the
        order of a GPU's threads.
        """
        sizes = self._sizes(loads, chosen.numel())
        order = chosen.flatten().argsort(stable=True)  # by expert; padding is last, and gives zeros
        *rows, padding = x.flatten(0, 1)[order // self.top_k].split(
            [*sizes, chosen.numel() - sum(sizes)]
        )
        made = [
            expert(row[None], context)[0] for expert, row in zip(self.experts, rows, strict=False)
        ]
        y = torch.cat([*made, torch.zeros_like(padding, dtype=made[0].dtype)])
        y = torch.empty_like(y).index_copy(0, order, y)
        return (y.view(*chosen.shape, -1) * gates.to(y.dtype)[..., None]).sum(2)

    def _sizes(self, loads: Tensor, total: int) -> list[int]:
        """How many rows each expert gets; of tensors without content, as the cost is found on, the
        first top_k get all.
        """
        if compat.is_fake(loads):
            return [
                (total + number) // self.top_k for number in range(self.top_k)
            ]  # which sum to the total
        return loads.tolist()

    def _report(
        self, context: Context, logits: Tensor, scores: Tensor, counts: Tensor, tokens: Tensor
    ) -> None:
        """Write into the trace; counts (B, experts) are the tokens given to each expert by each
        row.
        """
        if self.balance_loss:
            share = (_shares(scores) * tokens[..., None]).sum(1)
            rows = (counts * share).sum(1) / tokens.sum(1).clamp(min=1)
            context.trace.losses.append(
                self.balance_loss * len(self.experts) / self.top_k * rows.sum()
            )
        if self.z_loss:
            context.trace.losses.append(
                self.z_loss * (logits.logsumexp(-1).square() * tokens).sum()
            )
        if self.balance is not None:
            context.trace.loads.append((self, counts.sum(0)))


def _check(experts: int, top_k: int, groups: int, top_groups: int, renormalize: bool) -> None:
    """Raise ZooError for numbers that do not fit each other."""
    if top_k > experts:
        raise ZooError(f"ffn.top_k={top_k} must be at most ffn.experts={experts}")
    if experts % groups:
        raise ZooError(f"ffn.experts={experts} cannot be divided into ffn.groups={groups}")
    if top_groups > groups:
        raise ZooError(f"ffn.top_groups={top_groups} must be at most ffn.groups={groups}")
    if top_k > top_groups * experts // groups:
        raise ZooError(
            f"ffn.top_groups={top_groups} of ffn.groups={groups} have too few experts for"
            f" ffn.top_k={top_k}"
        )
    if top_k == 1 and renormalize:
        raise ZooError(
            "a single gate that is renormalised is always 1: write ffn.renormalize=false for"
            " ffn.top_k=1"
        )


def _shares(scores: Tensor) -> Tensor:
    """Divided by their sum, which sigmoids can bring near zero."""
    return scores / (scores.sum(-1, keepdim=True) + 1e-20)
