"""JSON as Go's encoder writes it: what the real neuron-monitor's lines are made of."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from neurontools.machine.listing.json_text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["number", "object_text", "quoted", "sorted_object"]


def number(value: float) -> str:
    """Return a number: shortest digits that give it back, integers without `.0`, exponents below 1e-6 and from 1e21.

    Args:
        value: neither infinite nor NaN, which JSON does not have.
    """
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    if "e" not in text:
        return text
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return f"{Decimal(text):f}"
    digits, _, exponent = text.partition("e")
    power = int(exponent)
    return f"{digits.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"


def object_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return an object of keys and encoded values, in this order: a struct of Go."""
    return "{" + ",".join([f'"{key}":{value}' for key, value in pairs]) + "}"


def sorted_object(pairs: Iterable[tuple[str, str]]) -> str:
    """Return an object with its keys sorted as text: a map of Go."""
    return object_text(sorted(pairs))
