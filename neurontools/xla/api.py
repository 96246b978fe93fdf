"""The lazy device for Python programs: the interface under the torch_xla shims and the command line."""

# ruff: noqa: ARG001, PLW0603
# Torch's signatures, one device per process.

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from neurontools.base.garbage import without_collection
from neurontools.errors import NeuronToolsError
from neurontools.runtime.host_activity import HostEvent, observers, report, report_step
from neurontools.runtime.session import is_forked
from neurontools.xla import device
from neurontools.xla.accelerator import Accelerator, DeviceError
from neurontools.xla.debugging import debug_analysis, metrics
from neurontools.xla.debugging.compile_log import event_source
from neurontools.xla.device_name import XLA, device_name, explain_at_exit
from neurontools.xla.device_name import choose as choose_device_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.runtime.session import Runtime
    from neurontools.xla.engine import DeviceEngine

_lock = threading.Lock()
_engine: DeviceEngine | None = None
_registry: Any = None
_EAGER_VARIABLES = ("NEURON_USE_EAGER_DEBUG_MODE", "XLA_USE_EAGER_DEBUG_MODE")
_closures: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


def activate(open_accelerator: Callable[[], Accelerator] | None = None, name: str = XLA) -> None:
    """Make the device known to torch; once per process, further calls do nothing.

    Args:
        open_accelerator: opens the cores; the simulated machine by default.
        name: the device's name in this process.

    Raises:
        DeviceError: the torch version is not supported, or the device of this process has another name.
    """
    global _engine, _registry
    with _lock, without_collection():  # all that is made here stays
        choose_device_name(name)
        if _engine is not None:
            return
        device.check_torch()  # before modules that another version cannot import
        from neurontools.xla import tensor_kernels
        from neurontools.xla.debugging import torch_profiler
        from neurontools.xla.device_module import make_module
        from neurontools.xla.distributed import collectives
        from neurontools.xla.engine import DeviceEngine
        from neurontools.xla.memory import keep_freed_memory
        from neurontools.xla.registry import Registry

        device.rename()
        explain_at_exit()
        device.install_guard(engine)
        device.self_test()
        opened = DeviceEngine(open_accelerator or _open_accelerator)
        _registry = Registry(opened)
        collectives.define()
        _registry.install()
        device.install(make_module(opened))
        tensor_kernels.install_storages()
        torch_profiler.install(runtime)
        opened.set_eager(any(os.environ.get(name) == "1" for name in _EAGER_VARIABLES))
        keep_freed_memory()
        _engine = opened
        atexit.register(shutdown)


def is_active() -> bool:
    """Return whether torch knows the device in this process."""
    return _engine is not None


def engine() -> DeviceEngine:
    """Return the engine of this process.

    Raises:
        DeviceError: the device is not activated.
    """
    if _engine is None:
        raise DeviceError(
            f"the {device_name()} device is not active", "call neurontools.xla.api.activate() first"
        )
    return _engine


def mark_step(wait: bool = False) -> None:
    """Run the pending graphs, then the step closures; graphs run synchronously, so `wait` changes nothing."""
    metrics.count("MarkStep")
    start_ns = time.monotonic_ns()
    engine().sync()
    if observers:
        report_step(start_ns, "mark_step", event_source())
    if debug_analysis.shows_compilations():
        debug_analysis.show_metrics()
    metrics.append_to_file()
    closures, _closures[:] = tuple(_closures), []
    for closure, arguments in closures:
        closure(*arguments)


def set_eager(enabled: bool) -> None:
    """Turn eager mode on or off; runs the recorded operators first."""
    engine().set_eager(enabled)


def wait_device_ops() -> None:
    """Return when the device has nothing left to do: at once, as graphs run synchronously."""
    if observers:
        now_ns = time.monotonic_ns()
        report(HostEvent.WAIT, now_ns, now_ns, name="wait_device_ops", source=event_source())


def add_step_closure(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Call a function after the next mark_step."""
    _closures.append((fn, tuple(args)))


def device_count() -> int:
    """Return the number of NeuronCores of this process; opens the device."""
    return engine().accelerator.core_count()


def runtime() -> Runtime:
    """Return the runtime of this process; opens it.

    Raises:
        DeviceError: the device does not run on the simulated machine.
    """
    from neurontools.xla.simulated_accelerator import SimulatedAccelerator

    accelerator = engine().accelerator
    if not isinstance(accelerator, SimulatedAccelerator):
        raise DeviceError("the device was activated without the simulated machine")
    return accelerator.runtime


def shutdown() -> None:
    """Drop pending graphs and give the cores back; the next use opens them again."""
    if _engine is not None and not is_forked():  # the parent keeps the cores
        try:
            _engine.shutdown()
        except NeuronToolsError:
            return


def _open_accelerator() -> Accelerator:
    from neurontools.xla.simulated_accelerator import SimulatedAccelerator

    return SimulatedAccelerator.open()
