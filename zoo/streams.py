"""Named random streams: initialisation, data order, dropout and evaluation each draw from their own, all from one seed."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A seed of 63 bits for the stream of this name; equal inputs give equal streams on every machine."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
