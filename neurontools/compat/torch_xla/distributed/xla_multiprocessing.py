"""torch_xla.distributed.xla_multiprocessing (`xmp`): the processes of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from neurontools.compat.spawning import spawn
from neurontools.compat.unsupported import missing_names

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]
T = TypeVar("T")


__getattr__ = missing_names(__name__)


class MpModelWrapper:
    """A model that each process of the run moves to its device, one process at a time.

    Args:
        model: a model on the CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._lock = threading.Lock()

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """Move the model to a device and return it."""
        with self._lock:
            self._model.to(device)
        return self._model


class MpSerialExecutor:
    """Runs a function in one process of the run at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, fn: Callable[[], T]) -> T:
        """Call the function and return its result."""
        with self._lock:
            return fn()
