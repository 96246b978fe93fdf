"""torch_xla.experimental: eager mode, in which operators outside `torch_xla.compile` run at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neurontools.compat.unsupported import missing_names
from neurontools.xla import api

__getattr__ = missing_names(__name__)


def eager_mode(enable: bool) -> None:
    """Turn eager mode on or off."""
    api.set_eager(enable)


def is_eager_mode() -> bool:
    """Return whether eager mode is on."""
    return api.engine().eager


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[bool]:
    """Turn eager mode on or off in a block, whose value is the mode outside of it."""
    before = api.engine().eager
    api.set_eager(enable)
    try:
        yield before
    finally:
        api.set_eager(before)
