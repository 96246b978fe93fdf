"""torch_xla on the simulated device: the interface of PyTorch/XLA's documentation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from neurontools.compat.dependency import torch
from neurontools.compat.unsupported import missing_name
from neurontools.xla import api, device_name
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.debugging.metrics import metric_data as _metric_data
from neurontools.xla.distributed import workers

__version__ = "2.13.0"
_SUBMODULES = frozenset(
    {"_XLAC", "amp", "core", "debug", "distributed", "experimental", "runtime", "test", "utils"}
)

os.environ.setdefault("PJRT_DEVICE", "NEURON")  # as torch_xla does with libneuronxla; libraries read it
workers.assign_core(os.environ)
try:
    device_name.choose(device_name.XLA)
except DeviceError as error:  # libraries that try several accelerators expect this one
    raise ImportError(f"{error.message}: {error.remedy}", name="torch_xla") from None
api.activate()

# `import torch_xla` alone offers torch_xla.runtime, torch_xla.core.xla_model and the backend of torch.distributed.
from torch_xla import runtime  # noqa: E402
from torch_xla.core import xla_model  # noqa: E402
from torch_xla.distributed import xla_backend, xla_multiprocessing  # noqa: E402, F401

__all__ = ["runtime"]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"torch_xla.{name}")
    return missing_name(__name__, name)


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
    """Return the runtime's names of the devices, such as NEURON:0."""
    names: list[str] = xla_model.xla_real_devices()
    return names


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the pending graph and the step closures.

    Args:
        wait: block until the graph has run; graphs run synchronously here.
        reset_scope: forget the names of scopes, which only text dumps of graphs show.
    """
    api.mark_step(wait=wait)


def step() -> Any:
    """Run the pending graph before and after a block."""
    return compile()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, Any] | None = None,
) -> Any:
    """Make each call of a function, or a `with` block, a graph of its own.

    Args:
        f: the function; without one, a decorator that is a context manager too.
        full_graph: raise when the code reads a value in the middle, which would split the graph.
        name: name of the graph in messages.
        max_different_graphs: raise when the code produces more graphs than this.
        custom_compile_options: options of XLA's own compilers; there are none here.

    Raises:
        ValueError: compile options were given.
    """
    if custom_compile_options:
        raise ValueError(
            f"custom_compile_options {sorted(custom_compile_options)} are options of other compilers; "
            "set NEURON_CC_FLAGS"
        )
    region = _compiled_region(full_graph, max_different_graphs, [])
    return region if f is None else region(f)


@contextmanager
def _compiled_region(full_graph: bool, limit: int | None, compiled: list[int]) -> Iterator[None]:
    # As a decorator it runs anew for each call, with the same list.
    eager = api.engine().eager
    api.set_eager(False)
    _clear_pending_ops_before_compile()
    executed, known = _sample_count("ExecuteTime"), _sample_count("CompileTime")
    try:
        yield
        if full_graph and _sample_count("ExecuteTime") != executed:
            raise RuntimeError(
                "torch_xla.compile(full_graph=True): a value was read in the middle, which split the graph"
            )
    finally:
        sync()
        api.set_eager(eager)
    compiled.append(_sample_count("CompileTime") - known)
    if limit is not None and sum(compiled) > limit:
        raise RuntimeError(
            f"torch_xla.compile(max_different_graphs={limit}): the code produced {sum(compiled)} different graphs"
        )


def _clear_pending_ops_before_compile() -> None:
    # Debugging output tells this synchronization from the one at the end by the function's name.
    sync()


def _sample_count(metric: str) -> int:
    data = _metric_data(metric)
    return 0 if data is None else data[0]


def manual_seed(seed: int, device: torch.device | None = None) -> None:
    """Seed the device's random numbers."""
    api.engine().seed(int(seed))


def launch(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Run a function in every process of the run, with the process's index first.

    Under torchrun this process is one of them. Otherwise `xla_multiprocessing.spawn` starts them, or, with
    `debug_single_process`, runs the function here.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        fn(workers.local_rank(), *args)
    else:
        xla_multiprocessing.spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)
