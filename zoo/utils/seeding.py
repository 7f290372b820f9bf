"""Derives seeds for named RNG streams, so that a new use of randomness shifts no other."""

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the RNG stream of these names, e.g. derive(0, "data", epoch).

    It is the SHA-256 of the seed and the names, so it is the same on every machine, and
    neighbouring seeds share nothing.
    """
    return int.from_bytes(hashlib.sha256(repr((seed, *names)).encode()).digest()[:8], "big") >> 1
