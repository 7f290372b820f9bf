"""torch.compile takes components in one graph. What is counted is the tracing; what becomes of a
graph is torch's affair.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo import explain

from tests.helpers.components import Case, cases, made, tokens
from zoo.objectives import IGNORE, loss

KNOWN = {  # where a graph ends, and why
    # it would take a recurrence apart, a step for each token
    "lstm": "Dynamo does not support RNN, GRU, or LSTM",
    "rnn": "Dynamo does not support RNN, GRU, or LSTM",
}


@pytest.mark.slow
@cases("embed", "norm", "residual", "block", "pos", "attn", "ffn", "head")
def test_no_component_breaks_the_graph_but_those_that_are_known_to(case: Case) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # as Model.compile has it
        found = explain(made(case))(tokens())
    reasons = [str(reason.reason) for reason in found.break_reasons]
    known = KNOWN.get(case[1]["name"])
    assert (found.graph_count > 1) == (known is not None), reasons
    assert all(known is not None and known in reason for reason in reasons)


def test_nor_does_the_loss() -> None:
    torch._dynamo.reset()
    model, ids = made(("ffn", {"name": "swiglu"})), tokens()
    read = partial(loss.summed_nats, labels=ids.flatten(), ignore=IGNORE, smoothing=0.1)
    whole = torch.compile(model, backend="eager", fullgraph=True)(ids, head_fn=read)
    torch.testing.assert_close(whole, model(ids, head_fn=read))
