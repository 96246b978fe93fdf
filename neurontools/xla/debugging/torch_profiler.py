"""`torch.profiler` with the device: modelled operators beside the CPU's measured ones, in tables and Chrome traces.

PyTorch's profiler gets the events of a device from a C++ plugin of Kineto. This device has none: after a profile with
`ProfilerActivity.PrivateUse1`, the schedules of what was executed in it are added to Kineto's events. Their times are
modelled and their names say so; they begin where the execution began.
"""

# ruff: noqa: ARG002, SLF001
# The interface of observers, torch's private API.

from __future__ import annotations

import functools
import json
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_util

from neurontools.base.json_reader import load_json
from neurontools.errors import NeuronToolsError
from neurontools.profiler.capture.format import DEVICE_TRACKS, program_of_neff
from neurontools.xla.device_name import device_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.compiler.engines.cost import OpCost
    from neurontools.profiler.capture.format import NeffProgram
    from neurontools.runtime.models import Model
    from neurontools.runtime.session import Runtime
    from neurontools.runtime.status import NrtStatus

# Two ways to time any device: by markers that the device sets, or by its own profiler, whose part this module takes.
_WITH_MARKERS = autograd_profiler.ProfilerState.KINETO_PRIVATEUSE1_FALLBACK
_WITHOUT_MARKERS = autograd_profiler.ProfilerState.KINETO_PRIVATEUSE1
_MODELLED = " [modelled]"
_FIRST_PROCESS = 1_000_000  # Kineto numbers processes by pid and by device
_ENGINES = tuple(track.label for track in DEVICE_TRACKS)


class DeviceTimeline:
    """The executions of this process while a profile is taken; an `ExecutionObserver`."""

    def __init__(self) -> None:
        self._unix_ns = time.time_ns() - time.monotonic_ns()
        self._programs: dict[bytes, NeffProgram | None] = {}
        self._executions: list[tuple[Model, int]] = []

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Do nothing: a model is known from its executions."""

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: NrtStatus) -> None:
        """Note an execution that succeeded."""
        if not status:
            self._executions.append((model, start_ns))

    def on_unload(self, model: Model) -> None:
        """Do nothing."""

    def on_close(self) -> None:
        """Do nothing: the profile may be read after the runtime has ended."""

    def operations(self) -> Iterator[tuple[int, int, OpCost]]:
        """Yield NeuronCore, start in unix ns and operation of everything that the executions did.

        An execution begins at its wall start, or at the end of the one before on its core if that is later.
        """
        free_ns: dict[int, int] = {}
        for model, wall_ns in self._executions:
            program = self._program(model.neff)
            if program is not None:
                start_ns = max(wall_ns + self._unix_ns, free_ns.get(model.nc, 0))
                free_ns[model.nc] = start_ns + program.total_ns
                for operation in program.operations:
                    yield model.nc, start_ns + operation.start_ns, operation

    def _program(self, neff: bytes) -> NeffProgram | None:
        if neff not in self._programs:
            try:
                self._programs[neff] = program_of_neff(neff)
            except NeuronToolsError:
                self._programs[neff] = None
        return self._programs[neff]


def install(runtime: Callable[[], Runtime]) -> None:
    """Let profiles of PyTorch with `ProfilerActivity.PrivateUse1` show the device.

    Args:
        runtime: returns the runtime of this process, or raises a NeuronToolsError.
    """
    profile: Any = autograd_profiler.profile
    prepare, start, end = profile._prepare_trace, profile._start_trace, profile.__exit__
    parse, export = profile._parse_kineto_results, profile.export_chrome_trace

    @functools.wraps(prepare)
    def prepare_trace(self: Any) -> None:
        if self.use_device == device_name() and self.profiler_kind is _WITH_MARKERS:
            self.profiler_kind = _WITHOUT_MARKERS
        prepare(self)

    @functools.wraps(start)
    def start_trace(self: Any) -> None:
        if self.use_device == device_name():
            observers = None
            with suppress(NeuronToolsError):  # without a machine, the CPU alone is profiled
                observers = runtime().observers
            if observers is not None:
                _import_early()
                _tell(self.experimental_config, "begin_capture")
                self._neuron = DeviceTimeline()
                observers.append(self._neuron)
        start(self)

    @functools.wraps(end)
    def exit_(self: Any, *error: Any) -> Any:
        outcome = end(self, *error)
        timeline = _timeline(self)
        if timeline is not None:
            with suppress(NeuronToolsError):  # the runtime has ended
                runtime().remove_observer(timeline)
            _tell(self.experimental_config, "end_capture")
        return outcome

    @functools.wraps(parse)
    def parse_results(self: Any, result: Any, *arguments: Any, **options: Any) -> Any:
        events = parse(self, result, *arguments, **options)
        timeline = _timeline(self)
        if timeline is not None:
            events += _function_events(timeline, result.trace_start_ns())
            events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return events

    @functools.wraps(export)
    def export_trace(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        outcome = export(self, path, *arguments, **options)
        timeline = _timeline(self)
        if timeline is not None:
            _extend_chrome_trace(timeline, path)
        return outcome

    profile._prepare_trace, profile._start_trace, profile.__exit__ = prepare_trace, start_trace, exit_
    profile._parse_kineto_results, profile.export_chrome_trace = parse_results, export_trace


def _import_early() -> None:
    """Import what a first compile and `record_function` import.

    With `with_stack=True`, torch reads the names of modules that are imported meanwhile after Python has freed them.
    """
    for name in ("yaml", "torch.profiler._cupti_monitor"):
        with suppress(ImportError):
            import_module(name)


def _tell(config: Any, what: str) -> None:
    """Tell a configuration of `torch_neuronx.profiling` that the profile begins or ends; others want nothing."""
    act = getattr(config, what, None)
    if act is not None:
        act()


def _timeline(profile: Any) -> DeviceTimeline | None:
    found: DeviceTimeline | None = getattr(profile, "_neuron", None)
    return found


def _function_events(timeline: DeviceTimeline, origin_ns: int) -> list[Any]:
    """Return the operations as events of PyTorch's tables; `origin_ns` is the start of the profile, in unix ns."""
    return [
        profiler_util.FunctionEvent(
            id=0,
            name=operation.name + _MODELLED,
            thread=_ENGINES.index(operation.engine) + 1,
            start_us=(start_ns - origin_ns) / 1000,
            end_us=(start_ns - origin_ns + operation.duration_ns) / 1000,
            overload_name="",
            input_shapes=[],
            stack=[],
            use_device=device_name(),
            device_type=profiler_util.DeviceType.PrivateUse1,
            device_index=nc,
            flops=operation.flops or None,
        )
        for nc, start_ns, operation in timeline.operations()
    ]


def _extend_chrome_trace(timeline: DeviceTimeline, path: str) -> None:
    """Add the operations to a Chrome trace that Kineto wrote: a process a NeuronCore, a thread an engine."""
    with open(path, "rb") as file:
        trace = load_json(file.read(), any_text=True)
    origin_ns = int(trace.get("baseTimeNanoseconds", 0))
    events: list[dict[str, Any]] = trace["traceEvents"]
    named: set[tuple[int, int]] = set()
    for nc, start_ns, operation in timeline.operations():
        process, thread = _FIRST_PROCESS + nc, _ENGINES.index(operation.engine) + 1
        if (process, 0) not in named:
            named.add((process, 0))
            events.append(_name("process_name", process, 1, f"NeuronCore {nc} (modelled)"))
        if (process, thread) not in named:
            named.add((process, thread))
            events.append(_name("thread_name", process, thread, str(operation.engine)))
        about = {"shape": operation.shape, "source": operation.source, "layer": operation.layer}
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": operation.name,
                "pid": process,
                "tid": thread,
                "ts": (start_ns - origin_ns) / 1000,
                "dur": operation.duration_ns / 1000,
                "args": {"modelled": True, **{key: text for key, text in about.items() if text}},
            }
        )
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
