"""torch_xla on the simulated device: the interface of PyTorch/XLA's documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from neurontools.compat.dependency import torch
from neurontools.xla import api

__version__ = "2.13.0"
T = TypeVar("T")

api.activate()


def device(index: int | None = None) -> torch.device:
    """Return the device of this process."""
    return torch.device("xla", index or 0)


def devices() -> list[torch.device]:
    """Return every device that this process may use."""
    return [torch.device("xla", index) for index in range(api.device_count())]


def device_count() -> int:
    """Return the number of NeuronCores that this process may use."""
    return api.device_count()


def real_devices() -> list[str]:
    """Return the names of the devices."""
    return [str(found) for found in devices()]


def sync(wait: bool = False) -> None:
    """Run the pending graph and the step closures."""
    api.mark_step(wait=wait)


@contextmanager
def step() -> Iterator[None]:
    """Run the pending graph before and after a block."""
    sync()
    try:
        yield
    finally:
        sync()


def compile(f: Callable[..., T] | None = None, full_graph: bool = False, name: str | None = None) -> Any:
    """Make each call of a function a graph of its own."""

    def wrap(function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any, **kwargs: Any) -> T:
            with step():
                return function(*args, **kwargs)

        return call

    return wrap if f is None else wrap(f)


def manual_seed(seed: int, device: torch.device | None = None) -> None:
    """Seed the device's random numbers."""
    api.manual_seed(seed)


def launch(fn: Callable[..., None], args: tuple[Any, ...] = (), start_method: str = "spawn") -> None:
    """Run a function once per process of the run; this machine runs one process."""
    fn(0, *args)
