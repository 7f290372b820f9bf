"""The floors: each family by hand in the fewest operations, to show what the zoo's options cost.

Each takes the weights of a zoo model by name, and returns a function from a batch to logits.
Shape legend: B batch, T tokens, H query heads, G key and value heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]
Batch = dict[str, Tensor]


def trainable_copy(model: torch.nn.Module) -> Weights:
    """A copy of the weights of a model, to be trained."""
    return {
        name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()
    }


def layers(weights: Weights, stack: str, *names: str) -> list[list[Tensor]]:
    """The weights of these names, of each layer in order."""
    found: list[list[Tensor]] = []
    while f"{stack}.blocks.{len(found)}.{names[0]}" in weights:
        found.append([weights[f"{stack}.blocks.{len(found)}.{name}"] for name in names])
    return found


def adamw(weights: Weights, lr: float) -> torch.optim.Optimizer:
    """Fused AdamW; weight decay on matrices only."""
    matrices = [weight for weight in weights.values() if weight.ndim >= 2]
    others = [weight for weight in weights.values() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def loss(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy, in nats per label."""
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


class Cache:
    """Keys and values of the tokens so far, in buffers allocated before the first."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.length = 0
        self.pairs = [(torch.empty(shape), torch.empty(shape)) for _ in range(count)]

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end, (keys, values) = self.length + k.shape[2], self.pairs[layer]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
        return keys[:, :, :end], values[:, :, :end]


def gpt(weights: Weights, heads: int) -> Callable[..., Tensor]:
    """Pre-norm, learned positions, no biases, exact GELU, tied head."""
    embed, last = weights["embed.weight"], weights["stack.norm.weight"]
    positions = weights["stack.positions.0.weight"]
    dim = embed.shape[1]
    blocks = layers(
        weights,
        "stack",
        "attn.norm.weight",
        "attn.sublayer.qkv.weight",
        "attn.sublayer.out.weight",
        "ffn.norm.weight",
        "ffn.sublayer.up.weight",
        "ffn.sublayer.out.weight",
    )

    def forward(batch: Batch, cache: Cache | None = None) -> Tensor:
        tokens, start = batch["tokens"], cache.length if cache else 0
        size, length = tokens.shape
        x = F.embedding(tokens, embed) + positions[start : start + length]
        for layer, (norm1, qkv, out, norm2, up, down) in enumerate(blocks):
            packed = F.linear(F.layer_norm(x, (dim,), norm1), qkv).view(
                size, length, 3, heads, dim // heads
            )
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
            k, v = cache.add(layer, k, v) if cache else (k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            x = x + F.linear(y.transpose(1, 2).reshape(size, length, dim), out)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (dim,), norm2), up)), down)
        if cache:
            cache.length += length
            x = x[:, -1:]
        return F.linear(F.layer_norm(x, (dim,), last), embed)

    return forward


def llama(weights: Weights, heads: int, kv_heads: int, length: int) -> Callable[..., Tensor]:
    """RMSNorm, RoPE in halves, GQA, SwiGLU with gate and up in one matmul, no biases, tied head."""
    embed, last = weights["embed.weight"], weights["stack.norm.weight"]
    dim, head_dim = embed.shape[1], embed.shape[1] // heads
    for number in range(len(layers(weights, "stack", "attn.norm.weight"))):
        name = f"stack.blocks.{number}.ffn.sublayer"
        both = torch.cat(
            [weights.pop(f"{name}.gate.weight").detach(), weights.pop(f"{name}.up.weight").detach()]
        )
        weights[f"{name}.both"] = both.requires_grad_()
    blocks = layers(
        weights,
        "stack",
        "attn.norm.weight",
        "attn.sublayer.qkv.weight",
        "attn.sublayer.out.weight",
        "ffn.norm.weight",
        "ffn.sublayer.both",
        "ffn.sublayer.out.weight",
    )
    angles = torch.outer(
        torch.arange(length).float(), 10_000 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    )
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)

    def forward(batch: Batch, cache: Cache | None = None) -> Tensor:
        tokens, start = batch["tokens"], cache.length if cache else 0
        size, length = tokens.shape
        c, s = cos[start : start + length], sin[start : start + length]
        x = F.embedding(tokens, embed)
        for layer, (norm1, qkv, out, norm2, both, down) in enumerate(blocks):
            packed = split_heads(F.linear(F.rms_norm(x, (dim,), norm1, 1e-6), qkv), head_dim)
            rotated, v = packed.split([heads + kv_heads, kv_heads], 1)
            rotated = rotated * c + rotated.roll(head_dim // 2, -1) * s
            q, k = rotated.split([heads, kv_heads], 1)
            k, v = cache.add(layer, k, v) if cache else (k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=True)
            x = x + F.linear(y.transpose(1, 2).reshape(size, length, dim), out)
            gate, up = F.linear(F.rms_norm(x, (dim,), norm2, 1e-6), both).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        if cache:
            cache.length += length
            x = x[:, -1:]
        return F.linear(F.rms_norm(x, (dim,), last, 1e-6), embed)

    return forward


def bert(weights: Weights, heads: int) -> Callable[..., Tensor]:
    """Pre-norm, learned positions, biases, exact GELU, a head with a layer, a padding mask."""
    w = weights
    dim = w["embed.weight"].shape[1]
    both = [
        f"{name}.{kind}"
        for name in (
            "attn.norm",
            "attn.sublayer.qkv",
            "attn.sublayer.out",
            "ffn.norm",
            "ffn.sublayer.up",
            "ffn.sublayer.out",
        )
        for kind in ("weight", "bias")
    ]
    blocks = layers(weights, "stack", *both)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (dim,), w[f"{name}.weight"], w[f"{name}.bias"])

    def forward(batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        size, length = tokens.shape
        mask = batch["padding_mask"][:, None, None, :]
        x = norm(
            F.embedding(tokens, w["embed.weight"]) + w["stack.positions.0.weight"][:length],
            "stack.opening_norm",
        )
        for n1, b1, qkv, b2, out, b3, n2, b4, up, b5, down, b6 in blocks:
            packed = F.linear(F.layer_norm(x, (dim,), n1, b1), qkv, b2).view(
                size, length, 3, heads, dim // heads
            )
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, mask)
            x = x + F.linear(y.transpose(1, 2).reshape(size, length, dim), out, b3)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (dim,), n2, b4), up, b5)), down, b6)
        x = F.gelu(
            F.linear(norm(x, "stack.norm"), w["head.transform.weight"], w["head.transform.bias"])
        )
        return F.linear(norm(x, "head.norm"), w["embed.weight"], w["head.bias"])

    return forward


def t5(
    weights: Weights, heads: int, buckets: int = 32, farthest: int = 128
) -> Callable[..., Tensor]:
    """Pre-RMSNorm, learned relative bias, attention by hand, ReLU, no biases, scaled tied head."""
    embed, dim = weights["embed.weight"], weights["embed.weight"].shape[1]
    own = ["attn.norm.weight", "attn.sublayer.qkv.weight", "attn.sublayer.out.weight"]
    feed = ["ffn.norm.weight", "ffn.sublayer.up.weight", "ffn.sublayer.out.weight"]
    other = [
        "cross.norm.weight",
        "cross.sublayer.q.weight",
        "cross.sublayer.kv.weight",
        "cross.sublayer.out.weight",
    ]
    encoder = layers(weights, "encoder", *own, *feed)
    decoder = layers(weights, "decoder", *own, *feed, *other)
    tables: dict[tuple[int, bool], Tensor] = {}

    def bias(stack: str, length: int, causal: bool) -> Tensor:
        if (length, causal) not in tables:
            ahead = torch.arange(length) - torch.arange(length)[:, None]
            each = buckets if causal else buckets // 2
            far = -ahead.clamp(max=0) if causal else ahead.abs()
            large = (
                torch.log(far.clamp(min=1).float() / (each // 2))
                / math.log(farthest / (each // 2))
                * (each - each // 2)
            )
            near = torch.where(far < each // 2, far, (each // 2 + large.long()).clamp(max=each - 1))
            tables[length, causal] = near if causal else near + each * (ahead > 0)
        learned = weights[f"{stack}.positions.0.weight"]
        table = F.embedding(tables[length, causal], learned).permute(2, 0, 1)
        if not causal:
            return table
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        return table.masked_fill(future, -torch.inf)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        q = split_heads(q, dim // heads)
        k = split_heads(k, dim // heads)
        v = split_heads(v, dim // heads)
        scores = q @ k.mT if bias is None else q @ k.mT + bias
        return F.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(*q.shape[::2], dim), out)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (dim,), weight, 1e-6)

    def forward(batch: Batch) -> Tensor:
        x = F.embedding(batch["tokens"], embed)
        here = bias("encoder", batch["tokens"].shape[1], False)
        for n1, qkv, out, n2, up, down in encoder:
            x = x + attend(*F.linear(norm(x, n1), qkv).chunk(3, -1), here, out)
            x = x + F.linear(F.relu(F.linear(norm(x, n2), up)), down)
        encoded = norm(x, weights["encoder.norm.weight"])
        here = bias("decoder", batch["decoder_tokens"].shape[1], True)
        x = F.embedding(batch["decoder_tokens"], embed)
        for n1, qkv, out, n2, up, down, n3, to_q, to_kv, to_out in decoder:
            x = x + attend(*F.linear(norm(x, n1), qkv).chunk(3, -1), here, out)
            x = x + attend(
                F.linear(norm(x, n3), to_q), *F.linear(encoded, to_kv).chunk(2, -1), None, to_out
            )
            x = x + F.linear(F.relu(F.linear(norm(x, n2), up)), down)
        return F.linear(norm(x, weights["decoder.norm.weight"]) * dim**-0.5, embed)

    return forward


def greedy(forward: Callable[..., Tensor], prompt: Tensor, new: int, cache: Cache) -> Tensor:
    """Generate the likeliest token each time: (B, new)."""
    written, tokens = [], prompt
    for _ in range(new):
        tokens = forward({"tokens": tokens}, cache)[:, -1].argmax(-1, keepdim=True)
        written.append(tokens)
    return torch.cat(written, 1)
