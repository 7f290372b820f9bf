"""Breaks an evaluation's loss down by document and by position in a block."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from zoo.data.tokens import Tokens
from zoo.objectives.base import IGNORE


class EvalBreakdown:
    """Sums the nats and tokens of a split's Blocks by document and by position."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self.starts = torch.as_tensor(np.asarray(tokens.starts, dtype=np.int64))
        self.by_document = torch.zeros(2, tokens.documents, dtype=torch.float64)
        self.by_position = torch.zeros(2, length, dtype=torch.float64)

    def add(self, indices: Tensor, nats: Tensor, labels: Tensor) -> None:
        """Add a batch: indices of blocks (B,), and nats and labels of tokens (B, T)."""
        labelled, length = labels.cpu() != IGNORE, labels.shape[1]
        place = indices.cpu()[:, None] * length + torch.arange(1, length + 1)
        # The end-of-text that starts a document is the label that ends the one before.
        document = torch.searchsorted(self.starts, place) - 1
        nats = nats.cpu().double()
        sums = torch.stack([nats, torch.ones_like(nats)]) * labelled
        self.by_document.index_add_(1, document[labelled], sums[:, labelled])
        self.by_position += sums.sum(1)

    def dumps(self) -> bytes:
        """An npz file of four arrays, which numpy reads without pickle."""
        file = io.BytesIO()
        np.savez(
            file,
            document_nats=self.by_document[0].numpy(),
            document_tokens=self.by_document[1].numpy(),
            position_nats=self.by_position[0].numpy(),
            position_tokens=self.by_position[1].numpy(),
        )
        return file.getvalue()
