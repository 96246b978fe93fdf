"""Pauses of garbage collection."""

from __future__ import annotations

import gc

import pytest

from neurontools.base.garbage import without_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_pauses_and_then_is_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
