"""What is learned: an objective turns a model and a batch into a sum of losses and the number of tokens it is over.

Sums, not means, so that micro-batches, ranks and a partial last batch weigh by their tokens. In training it is given a
Trace, which it hands to the model; what is written there is no part of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.context import Trace
from zoo.registry import register

IGNORE = -100  # a place with no label


@register("objective", "clm")
class CausalLM:
    """Causal language modelling: the cross-entropy of each next token (GPT, Radford 2018), in nats."""

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor], trace: Trace | None = None) -> tuple[Tensor, Tensor]:
        """batch: tokens and labels (B, T), and where documents are isolated, documents and positions (B, T)."""
        given = {key: batch[key] for key in ("positions", "documents") if key in batch}
        logits = model(batch["tokens"], trace=trace, **given)
        labels = batch["labels"]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
        return loss, (labels != IGNORE).sum()
