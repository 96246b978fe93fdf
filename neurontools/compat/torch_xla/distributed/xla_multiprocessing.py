"""torch_xla.distributed.xla_multiprocessing (`xmp`): the processes of a run."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from neurontools.compat import ranks
from neurontools.compat.missing import missing_name
from neurontools.xla import api

T = TypeVar("T")


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Run a function with the process's index and `args` in each process of the run.

    With `nprocs=1` it runs in this process. Several workers are not simulated yet: without `nprocs` one worker runs,
    and a warning says so where the process has more cores.

    Raises:
        ValueError: `nprocs` is neither 1 nor None.
    """
    if nprocs not in {None, 1}:
        raise ValueError(
            f"Unsupported nprocs ({nprocs}). Please use nprocs=1 or None (default). If None, spawn will use all "
            "available devices. Use the environment variable X_NUM_DEVICES (where X is CPU, TPU, NEURONCORE, etc) to "
            "limit the number of devices used."
        )
    ranks.require_single("xla_multiprocessing.spawn")
    if nprocs is None and (cores := api.device_count()) > 1:
        warnings.warn(
            f"xla_multiprocessing.spawn runs 1 worker on 1 of {cores} NeuronCores: several workers are not simulated yet",
            stacklevel=2,
        )
    fn(0, *args)


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
