"""Checks what must hold of a decoder whatever component it is made of: shapes, gradients,
causality, caches.

Each check takes a case (a group and a choice in it) and raises AssertionError with a sentence about
what does not hold.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from zoo import cost
from zoo.conformance.sequences import LENGTH, check_cache, check_documents, check_padding
from zoo.conformance.tiny import (
    ARCH,
    Case,
    close,
    decoder,
    decoder_with,
    gradients,
    honours,
    loss_of,
    tokens,
)
from zoo.utils import compat

BFLOAT16_ERROR = 0.03  # relative; bfloat16 keeps 8 bits: .004 per rounding


def expect(condition: Any, sentence: str) -> None:
    """Raise AssertionError with a sentence, also under python -O."""
    if not condition:
        raise AssertionError(sentence)


def shapes(case: Case) -> None:
    """Logits have shape (batch, length, vocabulary) and are finite."""
    model = decoder_with(case)
    for batch, length in ((1, 1), (3, 16)):
        logits, wanted = model(tokens(batch, length)), (batch, length, model.head.width)
        expect(logits.shape == wanted, f"logits are {tuple(logits.shape)} instead of {wanted}")
        expect(logits.isfinite().all(), f"logits of {batch} x {length} tokens are not finite")


def every_parameter_gets_a_gradient(case: Case) -> None:
    """Every parameter gets a gradient that is finite and not zero."""
    model = decoder_with(case)
    for name, gradient in gradients(model, loss_of(model)).items():
        expect(gradient.isfinite().all(), f"the gradient of {name} is not finite")
        expect(gradient.abs().max() > 1e-7, f"the gradient of {name} is zero")


def recomputed_gradients(case: Case) -> None:
    """Gradient checkpointing changes no gradient, with and without padding."""
    for inputs in ({}, {"padding_mask": torch.arange(LENGTH)[None] < torch.tensor([[12], [9]])}):
        model = decoder_with(case)
        stored = gradients(model, loss_of(model, **inputs))
        model.stack.checkpointing = True
        for name, gradient in gradients(model, loss_of(model, **inputs)).items():
            close(gradient, stored[name], 1e-6)


def causal_gradients(case: Case) -> None:
    """No token sees a later one, by the gradient of each logit."""
    model = decoder_with(case)
    x = model.embed(tokens(1, 8)).detach().requires_grad_()
    logits = model.logits(model.stack(x))
    for t in range(x.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, t].square().sum(), x, retain_graph=True)
        reached = gradient.abs().amax((0, 2)) > 0
        later = (reached[t + 1 :].nonzero().flatten() + t + 1).tolist()
        expect(not later, f"token {t} sees the later tokens {later}")
        expect(reached[t], f"token {t} does not see itself")
        expect(t == 0 or reached[:t].any(), f"token {t} sees nothing before it")


def causal_values(case: Case) -> None:
    """A later token changes no logit before it, also where no gradient shows it (a hard choice of
    experts).
    """
    model, before = decoder_with(case), tokens()
    after = before.clone()
    after[:, 8:] = (after[:, 8:] + 1) % ARCH["vocab"]
    with torch.no_grad():
        close(model(after)[:, :8], model(before)[:, :8], 1e-6)


def pure_forward(case: Case) -> None:
    """forward changes no attribute, parameter or buffer, and gives the same twice."""
    model = decoder_with(case).train()
    before = _state_of(model)
    first = model(tokens())
    expect(torch.equal(model(tokens()), first), "the same tokens give other logits the second time")
    changed = _changes(before, _state_of(model))
    expect(not changed, f"forward changes {', '.join(changed)}")


def functional(case: Case) -> None:
    """torch.func gives the gradients that autograd gives."""
    model = decoder_with(case)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (tokens(),)).square().mean()

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = torch.func.grad(loss)(parameters)
    for name, gradient in gradients(model, model(tokens()).square().mean()).items():
        close(found[name], gradient, 1e-6)


def saved_and_loaded(case: Case) -> None:
    """A state_dict that is saved and loaded gives the same logits to the bit."""
    model, file = decoder_with(case), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = decoder(parts=dict([case]))
    expect(not torch.equal(other(tokens()), model(tokens())), "moved parameters change no logit")
    other.load_state_dict(torch.load(file, weights_only=True))
    expect(torch.equal(other(tokens()), model(tokens())), "loaded weights give other logits")


def cast_to_bfloat16(case: Case) -> None:
    """A model cast to bfloat16 is near float32."""
    model = decoder_with(case).to(torch.bfloat16).float()  # so that only the arithmetic differs
    with torch.no_grad():
        expected = model(tokens())
        _near(model.to(torch.bfloat16)(tokens()), expected)


def autocast_to_bfloat16(case: Case) -> None:
    """A model under autocast to bfloat16 is near float32."""
    model = decoder_with(case).to(torch.bfloat16).float()
    with torch.no_grad():
        expected = model(tokens())
        with torch.autocast("cpu", torch.bfloat16):
            actual = model(tokens())
    _near(actual, expected)


def trains_in_bfloat16(case: Case) -> None:
    """Gradients of a model in bfloat16 are finite and in bfloat16."""
    model = decoder_with(case).to(torch.bfloat16)
    for name, gradient in gradients(model, loss_of(model)).items():
        expect(gradient.isfinite().all(), f"the gradient of {name} is not finite in bfloat16")
        expect(gradient.dtype == torch.bfloat16, f"the gradient of {name} is {gradient.dtype}")


def same_in_any_batch(case: Case) -> None:
    """A sequence gives the same logits alone and in a batch."""
    model = decoder_with(case)
    with torch.no_grad():
        close(model(tokens(5))[2:3], model(tokens(5)[2:3]))


def head_on_some_tokens(case: Case) -> None:
    """model(tokens) is the head of the body, and the head takes any number of hidden states."""
    model = decoder_with(case)
    hidden = model.hidden(tokens())
    expect(hidden.shape == (2, 12, ARCH["dim"]), f"hidden states are {tuple(hidden.shape)}")
    close(model.logits(hidden[:, 3::4].flatten(0, 1)), model(tokens())[:, 3::4].flatten(0, 1))


def all_padding_row(case: Case) -> None:
    """A row of padding only leaves the loss and every gradient finite."""
    if not _honours(case, "padding"):
        return
    model = decoder_with(case)
    loss = loss_of(model, padding_mask=torch.tensor([[True] * LENGTH, [False] * LENGTH]))
    expect(loss.isfinite(), "the loss is not finite")
    for name, gradient in gradients(model, loss).items():
        expect(gradient.isfinite().all(), f"the gradient of {name} is not finite")


def cached_is_full(case: Case) -> None:
    """Decoding in pieces behind a cache gives the logits of the whole sequence."""
    check_cache(decoder_with(case))


def padding_changes_nothing(case: Case) -> None:
    """Padding on either side changes no logit of a real token, unless a mixer declares that it
    reads padding.
    """
    if _honours(case, "padding"):
        check_padding(decoder_with(case))


def documents_stay_apart(case: Case) -> None:
    """Packed documents give the logits that each gives alone, unless a mixer declares that it mixes
    them.
    """
    if _honours(case, "documents"):
        check_documents(decoder_with(case))


def declared_flops(case: Case) -> None:
    """The declared FLOPs are those that torch counts."""
    model = decoder(parts=dict([case])).to("meta")  # no fused kernel escapes the counter there
    with FlopCounterMode(display=False) as counter:
        model(tokens(2, LENGTH).to("meta"))
    declared, counted = 2 * LENGTH * cost.flops(model, LENGTH), counter.get_total_flops()
    expect(declared == counted, f"{declared:,} FLOPs are declared and {counted:,} counted")


CHECKS = (
    shapes,
    every_parameter_gets_a_gradient,
    causal_gradients,
    causal_values,
    cached_is_full,
    padding_changes_nothing,
    all_padding_row,
    documents_stay_apart,
    same_in_any_batch,
    head_on_some_tokens,
    pure_forward,
    functional,
    recomputed_gradients,
    cast_to_bfloat16,
    autocast_to_bfloat16,
    trains_in_bfloat16,
    declared_flops,
    saved_and_loaded,
)


def _honours(case: Case, what: str) -> bool:
    group, choice = case
    return group != "attn" or what in honours(choice["name"])


def _near(actual: Tensor, expected: Tensor) -> None:
    expect(actual.isfinite().all(), "logits in bfloat16 are not finite")
    error = float((actual.double() - expected.double()).norm() / expected.double().norm())
    expect(error < BFLOAT16_ERROR, f"logits in bfloat16 are {error:.1%} away from float32")


def _state_of(model: nn.Module) -> dict[str, Any]:
    """All that forward could change: attributes by identity, plain containers and tensors by
    content.
    """
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            plain = isinstance(value, list | dict | set)
            state[f"{path}.{key}"] = copy.copy(value) if plain else id(value)
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        state[f"the tensor {name}"] = (compat.times_written(tensor), tensor.detach().clone())
    return state


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    changed = list(before.keys() ^ after.keys())
    for key in before.keys() & after.keys():
        one, other = before[key], after[key]
        if isinstance(one, tuple):  # the version of a tensor, and what it holds
            equal = one[0] == other[0] and torch.equal(one[1], other[1])
            changed += [] if equal else [key]
        elif one != other:
            changed.append(key)
    return sorted(changed)
