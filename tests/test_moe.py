"""Mixture of experts: against loops over tokens, closed forms and transformers; and what
training makes of its trace.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.helpers.components import Choice, close, made, make, said, tokens
from zoo import registry
from zoo.components.moe import MixtureOfExperts
from zoo.context import Cache, Context, Trace
from zoo.errors import ZooError

DIM = 16
V3 = {
    "gate": "sigmoid",
    "groups": 4,
    "top_groups": 2,
    "gate_scale": 2.5,
    "shared": {"name": "swiglu", "hidden": 20},
}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moe(dim: int = DIM, **options: Any) -> MixtureOfExperts:
    made = registry.build(
        "ffn", {"name": "moe", "expert": {"name": "swiglu", "hidden": 24}} | options, dim
    )
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=number) / 4)
        if made.balance is not None:
            made.balance.copy_(draw(len(made.experts), seed=99) / 4)
    return made


def seen(layer: nn.Module, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Trace]:
    trace = Trace()
    return layer(
        x, Context(torch.arange(x.shape[1])[None], True, x.shape[1], padding, trace=trace)
    ), trace


class Says(nn.Module):
    """An expert that says which one it is."""

    def __init__(self, number: int, dim: int) -> None:
        super().__init__()
        self.word = F.one_hot(torch.tensor(number), dim).float()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.word.expand_as(x)


@pytest.mark.parametrize(
    ("options", "gates"),
    [
        ({}, [0.7311, 0.2689, 0, 0]),
        ({"renormalize": False}, [0.6439, 0.2369, 0, 0]),
        ({"renormalize": False, "top_k": 1}, [0.6439, 0, 0, 0]),
        ({"gate": "sigmoid"}, [0.5464, 0.4536, 0, 0]),
        ({"gate": "sigmoid", "renormalize": False, "gate_scale": 2.0}, [1.7616, 1.4621, 0, 0]),
        ({"top_k": 4}, [0.6439, 0.2369, 0.0871, 0.0321]),
    ],
    ids=said,
)
def test_gates_of_logits_two_one_zero_minus_one(options: Choice, gates: list[float]) -> None:
    """By hand: e²/(e² + e) = .7311, e²/Σ = .6439; σ(2) = .8808, σ(1) = .7311."""
    layer = moe(4, experts=4, **options)
    layer.experts = nn.ModuleList(Says(number, 4) for number in range(4))
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(4))
    close(seen(layer, torch.tensor([[[2.0, 1, 0, -1]]]))[0][0, 0], torch.tensor(gates), 5e-5)


def by_loop(layer: MixtureOfExperts, x: Tensor, context: Context) -> Tensor:
    """One token at a time, with Python's own sorting, in float64."""
    layer, size = copy.deepcopy(layer).double(), len(layer.experts) // layer.groups
    rows = []
    for token in x.double().flatten(0, 1):
        logits = (layer.router.weight @ token).tolist()
        score = torch.tensor(logits, dtype=torch.float64)
        score = (
            score.exp() / score.exp().sum() if layer.gate == "softmax" else 1 / (1 + (-score).exp())
        )
        wanted = (score + (0 if layer.balance is None else layer.balance)).tolist()
        groups = [
            sorted(wanted[first : first + size])[::-1] for first in range(0, len(wanted), size)
        ]
        worth = [group[0] if layer.gate == "softmax" else sum(group[:2]) for group in groups]
        best = sorted(range(layer.groups), key=lambda group: -worth[group])[: layer.top_groups]
        candidates = [expert for expert in range(len(wanted)) if expert // size in best]
        chosen = sorted(candidates, key=lambda expert: -wanted[expert])[: layer.top_k]
        total = sum(score[expert] for expert in chosen) if layer.renormalize else 1.0
        rows.append(
            sum(
                score[e] / total * layer.gate_scale * layer.experts[e](token, context)
                for e in chosen
            )
        )
        if layer.shared is not None:
            rows[-1] = rows[-1] + layer.shared(token, context)
    return torch.stack(rows).view_as(x)


COMBINATIONS = list(
    itertools.product(["softmax", "sigmoid"], [True, False], [1, 4], [None, "relu"], [False, True])
)


@pytest.mark.parametrize(("gate", "renormalize", "groups", "shared", "bias"), COMBINATIONS)
def test_it_is_a_loop_over_tokens(
    gate: str, renormalize: bool, groups: int, shared: Any, bias: bool
) -> None:
    layer = moe(
        gate=gate,
        renormalize=renormalize,
        groups=groups,
        top_groups=-(-groups // 2),
        shared=shared,
        bias=bias,
        gate_scale=1.5,
        top_k=3,
    )
    x = draw(3, 7, DIM, seed=50)
    close(seen(layer, x)[0].double(), by_loop(layer, x, Context(torch.arange(7)[None], True, 7)))


def test_nothing_is_dropped_and_idle_experts_have_zero_gradients() -> None:
    """All tokens to the experts 0 and 1."""
    layer, x = moe(), draw(2, 9, DIM, seed=50).abs()
    with torch.no_grad():
        layer.router.weight.copy_(-torch.arange(8.0)[:, None].expand(8, DIM))
    y, trace = seen(layer, x)
    close(y.double(), by_loop(layer, x, Context(torch.arange(9)[None], True, 9)))
    (y.square().sum() + sum(trace.losses)).backward()
    for number, expert in enumerate(layer.experts):
        for parameter in expert.parameters():
            assert parameter.grad is not None
            assert (parameter.grad != 0).any() == (number < 2)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_routed(side: str) -> None:
    layer, x = moe(z_loss=0.1, bias=True, shared="relu"), draw(2, 9, DIM, seed=50)
    where = slice(4, 9) if side == "left" else slice(0, 5)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0], padding[1, where] = True, True
    x[~padding] *= 1000
    y, trace = seen(layer, x, padding)
    alone, of_each = zip(*(seen(layer, row[None]) for row in (x[0], x[1, where])), strict=True)
    close(y[0], alone[0][0])
    close(y[1, where], alone[1][0])
    assert torch.equal(
        y[~padding], layer.shared(x, Context(torch.arange(9)[None], True, 9))[~padding]
    )
    for number, loss in enumerate(trace.losses):
        close(loss, of_each[0].losses[number] + of_each[1].losses[number])
    assert torch.equal(trace.loads[0][1], of_each[0].loads[0][1] + of_each[1].loads[0][1])
    assert trace.loads[0][1].sum() == 2 * (9 + 5)


def test_nothing_but_padding() -> None:
    layer, nothing = moe(z_loss=0.1, bias=True), torch.zeros(2, 4, dtype=torch.bool)
    y, trace = seen(layer, draw(2, 4, DIM), nothing)
    assert (y == 0).all()
    assert [loss.item() for loss in trace.losses] == [0, 0]
    assert trace.loads[0][1].tolist() == [0] * 8
    (y.sum() + sum(trace.losses)).backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in layer.parameters()
    )


def test_losses_add_up_over_rows() -> None:
    layer, x = moe(z_loss=0.1, bias=True), draw(4, 9, DIM, seed=50)
    whole, parts = seen(layer, x)[1], [seen(layer, part)[1] for part in x.split([1, 3])]
    for number, loss in enumerate(whole.losses):
        assert loss.shape == ()
        close(loss, parts[0].losses[number] + parts[1].losses[number])


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_losses_by_hand(gate: str) -> None:
    """Without a preference the balance loss is its coefficient for each token, and logsumexp is
    log(experts).
    """
    layer = moe(gate=gate, balance_loss=0.5, z_loss=2.0)
    with torch.no_grad():
        layer.router.weight.zero_()
    balance, z = seen(layer, draw(2, 9, DIM))[1].losses
    assert balance.item() == pytest.approx(0.5 * 18)
    assert z.item() == pytest.approx(2 * 18 * torch.tensor(8.0).log().item() ** 2)
    assert seen(moe(balance_loss=0.0), draw(2, 9, DIM))[1].losses == []


def test_the_balance_loss_is_that_of_transformers() -> None:
    """Theirs, of one sequence and layer, is a mean over tokens that is top_k at balance; ours a
    sum that is 1 a token.
    """
    theirs = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral"
    ).load_balancing_loss_func
    layer, x = moe(balance_loss=0.3, top_k=3), draw(1, 11, DIM, seed=50)
    expected = theirs((layer.logits(x)[0],), 8, 3)
    close(seen(layer, x)[1].losses[0], 0.3 * 11 / 3 * expected, 1e-6)


FAMILIES: list[tuple[str, str, str, Choice]] = [
    ("mixtral", "MixtralSparseMoeBlock", "MixtralConfig", {}),
    ("deepseek_v3", "DeepseekV3MoE", "DeepseekV3Config", V3 | {"bias": True}),
    (
        "deepseek_v2",
        "DeepseekV2Moe",
        "DeepseekV2Config",
        V3 | {"gate": "softmax", "renormalize": False},
    ),
]


@pytest.mark.parametrize(
    ("module", "block", "settings", "options"), FAMILIES, ids=[family[0] for family in FAMILIES]
)
def test_it_is_that_of_transformers(
    module: str, block: str, settings: str, options: Choice
) -> None:
    code = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    ours = moe(**options)
    sizes = {"hidden_size": DIM, "num_attention_heads": 4, "num_experts_per_tok": 2}
    width = (
        {"intermediate_size": 24}
        if module == "mixtral"
        else {"moe_intermediate_size": 24, "n_shared_experts": 1}
    )
    names = {
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "topk_method": "group_limited_greedy",
    }
    made = getattr(code, settings)(
        **sizes, **width, **(names if options else {"num_local_experts": 8})
    )
    made._experts_implementation = "eager"
    theirs = getattr(code, block)(made)
    if options:  # a shared expert of another width than theirs would be
        theirs.shared_experts = type(theirs.shared_experts)(config=made, intermediate_size=20)
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        joined = [torch.cat([expert.gate.weight, expert.up.weight]) for expert in ours.experts]
        theirs.experts.gate_up_proj.copy_(torch.stack(joined))
        theirs.experts.down_proj.copy_(torch.stack([expert.out.weight for expert in ours.experts]))
        if ours.balance is not None:
            theirs.gate.e_score_correction_bias.copy_(ours.balance)
        if ours.shared is not None:
            for to, name in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "out")):
                getattr(theirs.shared_experts, to).weight.copy_(getattr(ours.shared, name).weight)
        x = draw(3, 11, DIM, seed=50)
        close(seen(ours, x)[0], theirs(x))


def test_the_bias_chooses_and_does_not_weigh() -> None:
    layer, x = moe(bias=True, renormalize=False), draw(1, 5, DIM, seed=50)
    with torch.no_grad():
        layer.balance.copy_(torch.tensor([0.0, 0, 0, 5, 0, 0, 7, 0]))
    _, trace = seen(layer, x)
    assert trace.loads[0][1].tolist() == [0, 0, 0, 5, 0, 0, 5, 0]
    gates, chosen = layer.route(layer.logits(x).softmax(-1))
    assert (chosen == torch.tensor([6, 3])).all()
    close(gates, layer.logits(x).softmax(-1)[..., [6, 3]])


def test_the_bias_moves_toward_balance() -> None:
    """Wang et al. 2024, algorithm 1: by the rate, with the sign of mean - load; then it does
    balance a skewed router.
    """
    layer = moe(experts=4, bias=True, bias_rate=0.25)
    layer.reset_parameters()
    layer.rebalance(torch.tensor([10, 2, 4, 0]))
    assert layer.balance.tolist() == [-0.25, 0.25, 0, 0.25]
    layer, x = moe(bias=True, bias_rate=0.01), draw(4, 64, DIM, seed=50) + 1
    layer.reset_parameters()
    loads = []
    for _ in range(200):
        loads.append(seen(layer, x)[1].loads[0][1])
        layer.rebalance(loads[-1])
    assert loads[0].max() > 2 * loads[0].float().mean()
    assert loads[-1].max() < 1.2 * loads[-1].float().mean()


def test_the_bias_stays_float32_and_is_kept() -> None:
    layer = moe(bias=True, bias_rate=0.001)
    before = layer.balance.clone()
    layer.to(torch.bfloat16)
    assert torch.equal(layer.balance, before)
    assert layer.router.weight.dtype == torch.bfloat16
    other = moe(bias=True)
    other.reset_parameters()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.balance, before)
    fresh = make(ffn={"name": "moe", "bias": True})
    assert all(
        (buffer == 0).all() for name, buffer in fresh.named_buffers() if name.endswith("balance")
    )
    assert "balance" not in moe().state_dict()


def test_logits_are_float32() -> None:
    layer, x = moe(), draw(1, 5, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.logits(x), layer.logits(x))
        inside = layer.logits(x)
    assert torch.equal(inside, layer.logits(x))
    assert layer.to(torch.bfloat16).logits(x.bfloat16()).dtype == torch.float32


@torch.no_grad()
def test_a_cached_padded_prompt() -> None:
    model, cache = made(("ffn", {"name": "moe"} | V3)), Cache(12)
    mask = torch.tensor([[True] * 7, [False] * 3 + [True] * 4])
    logits = torch.cat(
        [model(tokens()[:, :7], mask, cache=cache), model(tokens()[:, 7:], cache=cache)], 1
    )
    close(logits[1, 3:], model(tokens()[1:, 3:])[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"experts": 1, "top_k": 1}, "ffn.experts must be at least 2"),
        ({"top_k": 9}, "ffn.top_k=9 must be at most ffn.experts=8"),
        ({"top_k": 0}, "ffn.top_k must be at least 1, not 0"),
        ({"top_k": 1}, "write ffn.renormalize=false"),
        ({"groups": 3}, "ffn.experts=8 cannot be divided into ffn.groups=3"),
        ({"groups": 0}, "ffn.groups must be at least 1, not 0"),
        ({"groups": 4, "top_groups": 5}, "ffn.top_groups=5 must be at most ffn.groups=4"),
        ({"groups": 4, "top_k": 3}, "too few experts for ffn.top_k=3"),
        ({"balance_loss": -1.0}, "ffn.balance_loss must be at least 0, not -1.0"),
        ({"z_loss": float("nan")}, "ffn.z_loss=nan"),
        ({"bias_rate": float("inf")}, "ffn.bias_rate=inf"),
        ({"gate_scale": 0.0}, "ffn.gate_scale must be above 0, not 0.0"),
        ({"expert": "moe"}, "an expert cannot be a mixture itself"),
        ({"shared": "moe"}, "an expert cannot be a mixture itself"),
        ({"expert": None}, "ffn.expert must be a feed-forward"),
        ({"expert": "swigli"}, "did you mean 'swiglu'"),
    ],
    ids=said,
)
def test_what_has_no_meaning_is_refused(options: Choice, told: str) -> None:
    with pytest.raises(ZooError, match=told):
        registry.build("ffn", {"name": "moe"} | options, DIM)
