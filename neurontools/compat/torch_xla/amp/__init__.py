"""torch_xla.amp: automatic mixed precision."""

from __future__ import annotations

from typing import NoReturn

from torch_xla.amp.autocast_mode import autocast  # type: ignore[import-not-found, unused-ignore]

from neurontools.compat.unsupported import missing_name

__all__ = ["autocast"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
