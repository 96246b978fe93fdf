"""Iterations of `affine_range` loops, which a kernel declares independent of each other.

Sources: AWS Neuron documentation 2.26, "nki.language" (affine_range) and "NKI API Errors"
(err_unexpected_output_dependencies); 2.32, "nki.language" and "NKI Dynamic Loops".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.nki.locations import UserLine


class AffineLoop:
    """A loop that has run, at a line of the kernel."""

    __slots__ = ("location",)

    def __init__(self, location: UserLine) -> None:
        self.location = location


class Iteration:
    """An iteration of a loop, within one of the loop around it."""

    __slots__ = ("depth", "loop", "outer")

    def __init__(self, loop: AffineLoop, outer: Iteration | None) -> None:
        self.loop = loop
        self.outer = outer
        self.depth: int = outer.depth + 1 if outer else 0

    def is_within(self, loop: AffineLoop) -> bool:
        """Return whether the iteration is one of a loop, or in it."""
        inner: Iteration | None = self
        while inner is not None and inner.loop is not loop:
            inner = inner.outer
        return inner is not None


def separating_loop(first: Iteration | None, second: Iteration | None) -> AffineLoop | None:
    """Return the loop of which two instructions are in different iterations, None if there is none."""
    if first is None or second is None:
        return None
    while first.depth > second.depth:
        assert first.outer is not None
        first = first.outer
    while second.depth > first.depth:
        assert second.outer is not None
        second = second.outer
    if first is second:
        return None
    while first.outer is not second.outer:
        assert first.outer is not None
        assert second.outer is not None
        first, second = first.outer, second.outer
    return first.loop if first.loop is second.loop else None
