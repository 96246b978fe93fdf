"""Kernels run for trn2 unless a test names another target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def target(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the target to trn2 and return a function that sets another."""

    def choose(name: str) -> None:
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)

    choose("trn2")
    return choose
