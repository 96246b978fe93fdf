"""Copies of whole caches, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.cache.copy.plan import CopyFilter
from neurontools.cache.copy.runner import plan_copy, run_copy

if TYPE_CHECKING:
    from neurontools.cache.copy.runner import CopyResult


def copy_all(source: object, target: object) -> CopyResult:
    """Copy every entry from one place to another."""
    with plan_copy(str(source), str(target), CopyFilter(lambda _: True), force=True) as plan:
        return run_copy(plan)
