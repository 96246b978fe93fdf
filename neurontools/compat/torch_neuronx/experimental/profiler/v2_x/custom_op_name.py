"""torch_neuronx.experimental.profiler.v2_x.custom_op_name: names of layers in graphs, which they have always here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.compat.unsupported import missing_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["hlo_debug"]
__getattr__ = missing_names(__name__)


@contextmanager
def hlo_debug(add_var_names: bool = False, monitor_modules_list: Sequence[str] = ()) -> Iterator[None]:
    """Do nothing."""
    yield
