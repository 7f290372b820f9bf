"""What an evaluation says beyond its mean: the loss of each document, and at each position of a block."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from zoo.data.cache import Tokens
from zoo.objectives import IGNORE


class EvalBreakdown:
    """Nats and tokens of one split, summed by document and by position; of blocks as zoo.data.dataset.Blocks cuts them."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self.starts = torch.as_tensor(np.asarray(tokens.starts, dtype=np.int64))
        self.by_document = torch.zeros(2, tokens.documents, dtype=torch.float64)
        self.by_position = torch.zeros(2, length, dtype=torch.float64)

    def add(self, rows: Tensor, nats: Tensor, labels: Tensor) -> None:
        """rows (B,) are the indices of the blocks, nats and labels (B, T) what was said of each next token, and which it is."""
        real, length = labels.cpu() != IGNORE, labels.shape[1]
        place = rows.cpu()[:, None] * length + torch.arange(1, length + 1)
        document = (
            torch.searchsorted(self.starts, place) - 1
        )  # the end-of-text that starts a document ends the one before
        found = (
            torch.stack(
                [nats.cpu().double(), torch.ones_like(nats, dtype=torch.float64, device="cpu")]
            )
            * real
        )
        self.by_document.index_add_(1, document[real], found[:, real])
        self.by_position += found.sum(1)

    def dumps(self) -> bytes:
        """As an npz file of four arrays, which numpy reads without pickles."""
        file = io.BytesIO()
        np.savez(
            file,
            document_nats=self.by_document[0].numpy(),
            document_tokens=self.by_document[1].numpy(),
            position_nats=self.by_position[0].numpy(),
            position_tokens=self.by_position[1].numpy(),
        )
        return file.getvalue()
