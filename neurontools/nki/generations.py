"""The two generations of NKI: which names and arguments belong to one alone, and what the other has instead."""

from __future__ import annotations

from neurontools.nki.limits import document

FIRST, SECOND = "neuronxcc.nki, the first generation", "nki, the second generation"


def title(*, first: bool) -> str:
    """Return what messages call a generation."""
    return FIRST if first else SECOND


def foreign_name(name: str, *, in_first: bool) -> tuple[str, str] | None:
    """Return the generation that alone has a name, and what a kernel of the other uses instead.

    Args:
        name: of a function, an attribute, or an argument.
        in_first: whether a kernel of the first generation uses it.

    Returns:
        None for names that no generation has, or both.
    """
    instead = document()["generations"]["second" if in_first else "first"].get(name)
    return None if instead is None else (title(first=not in_first), str(instead))
