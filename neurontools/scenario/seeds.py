"""Reproducible random numbers: they depend on a seed and names alone, the same on every computer."""

from __future__ import annotations

from hashlib import blake2b


def digest(*names: str) -> str:
    """Return 32 hexadecimal digits that depend on names alone."""
    return blake2b("\0".join(names).encode(), digest_size=16).hexdigest()


def unit(*names: str) -> float:
    """Return a number from 0 to below 1 that depends on names alone."""
    return int(digest(*names)[:13], 16) / 16**13
