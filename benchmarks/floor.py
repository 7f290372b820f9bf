"""The floor: a GPT by hand in the fewest operations, with nothing to choose. It tells what the zoo's convenience costs.

Pre-norm, learned positions, no biases, exact GELU, tied head. Shape legend: B batch, T tokens, H heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FloorGPT(nn.Module):
    """tokens (B, T) -> logits (B, T, vocab); the parameters of each layer are a list, in the order of their use."""

    def __init__(self, layers: int, dim: int, heads: int, length: int, vocab: int) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.embed = nn.Parameter(torch.empty(vocab, dim))
        self.places = nn.Parameter(torch.empty(length, dim))
        shapes = [(dim,), (3 * dim, dim), (dim, dim), (dim,), (4 * dim, dim), (dim, 4 * dim)]
        blocks = [nn.ParameterList(torch.empty(shape) for shape in shapes) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Parameter(torch.empty(dim))
        self.layers = [list(block) for block in blocks]  # plain lists, without ParameterList's look-ups

    def forward(self, tokens: Tensor) -> Tensor:
        (batch, length), dim, heads, width = tokens.shape, self.dim, self.heads, (self.dim,)
        x = F.embedding(tokens, self.embed) + self.places[:length]
        for norm1, qkv, out, norm2, up, down in self.layers:
            packed = F.linear(F.layer_norm(x, width, norm1), qkv).view(batch, length, 3, heads, dim // heads)
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(y.transpose(1, 2).reshape(batch, length, dim), out)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, width, norm2), up)), down)
        return F.linear(F.layer_norm(x, width, self.norm), self.embed)

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy, in nats a token."""
        return F.cross_entropy(self(tokens).flatten(0, 1), labels.flatten())

    def optimiser(self, lr: float) -> torch.optim.Optimizer:
        """Fused AdamW; weight decay on matrices only."""
        split = [[p for p in self.parameters() if (p.ndim >= 2) is decays] for decays in (True, False)]
        groups = [{"params": split[0], "weight_decay": 0.1}, {"params": split[1], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


@torch.no_grad()
def from_zoo(model: nn.Module, *, heads: int) -> FloorGPT:
    """The floor with a copy of the weights of `zoo.build("gpt", "norm.bias=false", ...)`; KeyError for another."""
    state = model.state_dict()
    (vocab, dim), length = state["embed.weight"].shape, len(state["stack.positions.0.weight"])
    layers = sum(name.endswith("attn.norm.weight") for name in state)
    floor = FloorGPT(layers, dim, heads, length, vocab)
    floor.embed.copy_(state.pop("embed.weight"))
    floor.places.copy_(state.pop("stack.positions.0.weight"))
    floor.norm.copy_(state.pop("stack.norm.weight"))
    names = ["attn.norm", "attn.sublayer.qkv", "attn.sublayer.out", "ffn.norm", "ffn.sublayer.up", "ffn.sublayer.out"]
    for layer, parameters in enumerate(floor.layers):
        for name, parameter in zip(names, parameters, strict=True):
            parameter.copy_(state.pop(f"stack.blocks.{layer}.{name}.weight"))
    if state:
        raise KeyError(f"the floor has no place for {', '.join(state)}")
    return floor
