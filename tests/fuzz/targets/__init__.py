"""All targets, by the part of the project that they belong to."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.target import Target

GROUPS = ("machine", "sources", "files", "cache", "profiles", "customop", "graphs", "arguments")
GUARDED = ("graphs",)
"""Groups that run native code on tensors, whose memory has guard pages."""


def load() -> tuple[Target, ...]:
    """Return every target."""
    return tuple(
        target for group in GROUPS for target in import_module(f"tests.fuzz.targets.{group}").TARGETS
    )
