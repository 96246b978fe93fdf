"""torch_xla.experimental: nothing of it is simulated."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
