"""Profiles of kernels outside of models: a kernel is a program of its own, a call of it an execution on its cores.

The program is a NEFF whose graph is the call alone, and which has the instructions of one core. Wall times are those of
this computer, times of instructions are modelled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.files import write_atomic
from neurontools.compiler.compile import BUILD_VERSION
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.kernel_program import NAMESPACE
from neurontools.compiler.graph import Graph, Node, Slot, View, contiguous_strides
from neurontools.compiler.neff import pack
from neurontools.compiler.options import flags_for, target_of
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.machine.snapshot import MemoryUse
from neurontools.nki.memory import ON_CHIP
from neurontools.nki.program import device_of_target, program_of, slowest_program
from neurontools.profiler.capture.observer import Capture, capture_process, describe_process
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.runtime.models import FIRST_MODEL_ID, Model
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from neurontools.compiler.engines.instructions import KernelProgram
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.nki.context import Core, Launch
    from neurontools.nki.memory import Allocation
    from neurontools.profiler.capture.format import Meta


def neff_of(launch: Launch, kernel: KernelProgram) -> bytes:
    """Return the NEFF of a kernel: the program of one core of a launch."""
    device = device_of_target(launch.limits.target)
    graph = _graph(launch)
    cost = estimate(graph, device, lnc=1, custom={0: kernel})
    return pack(
        graph,
        cost,
        name=launch.kernel,
        build_version=BUILD_VERSION,
        flags=flags_for(device, 1, ()),
        kernels={0: kernel},
    )


def _graph(launch: Launch) -> Graph:
    """Return the graph that is one call of the kernel: from its arguments to the other tensors in HBM that it writes."""
    arguments = [each for each in launch.allocations if each.is_argument]
    results = [each for each in launch.written() if each.region not in ON_CHIP and not each.is_argument]
    views = [_view(number, each) for number, each in enumerate((*arguments, *results))]
    source = str(arguments[0].location) if arguments else ""
    call = Node(
        f"{NAMESPACE}.{launch.kernel}.default",
        tuple(views[: len(arguments)]),
        (),
        tuple(views[len(arguments) :]),
        source,
    )
    slots = tuple(Slot(each.nbytes) for each in (*arguments, *results))
    return Graph(slots, tuple(range(len(arguments))), 0, (call,), tuple(range(len(arguments), len(slots))))


def _view(slot: int, allocation: Allocation) -> View:
    return View(slot, allocation.dtype, allocation.shape, contiguous_strides(allocation.shape), 0)


class KernelCapture:
    """The profile of the kernels that a process runs.

    Args:
        capture: writes it.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._models: dict[str, tuple[Model, ...]] = {}
        self._executions: dict[str, int] = {}

    def add(self, launch: Launch, start_ns: int, end_ns: int, execution: int | None = None) -> None:
        """Record a launch; equal launches are executions of one program, numbered from 1."""
        key = _digest(launch)
        models = self._models.get(key)
        if models is None:
            models = self._models[key] = tuple(self._load(core, start_ns) for core in launch.cores)
        number = self._executions[key] = execution or self._executions.get(key, 0) + 1
        for model in models:
            self._capture.on_execute(model, number, start_ns, end_ns, NrtStatus.NRT_SUCCESS)

    def _load(self, core: Core, time_ns: int) -> Model:
        neff = neff_of(core.launch, program_of(core))
        number = FIRST_MODEL_ID + sum(map(len, self._models.values())) + core.number
        uuid = hashlib.sha256(neff).digest()[:16]
        model = Model(
            core.launch.kernel, uuid, core.number, core.number, neff, 0, 0, 0, MemoryUse(), model_id=number
        )
        self._capture.on_load(model, time_ns, time_ns)
        return model


def _digest(launch: Launch) -> str:
    """Return what equal launches have in common: their instructions, in order, and the tensors that these access."""
    digest = hashlib.sha256(repr((launch.kernel, launch.limits.target)).encode())
    numbers: dict[Allocation, int] = {}
    for core in launch.cores:
        for record in core.records:
            accesses = [
                (numbers.setdefault(access.allocation, len(numbers)), *access[1:5])
                for access in (*record.reads, *record.writes)
            ]
            values = record.opcode, record.engine, record.location, record.options, accesses
            digest.update(repr(values).encode())
        digest.update(b"core")
    return digest.hexdigest()


def _instance(target: str) -> InstanceType:
    """Return the machine of neuron-run if it has the device, else the first instance type with it."""
    device = device_of_target(target)
    names = list(instance_names())
    if env.flag(env.RUN):
        from neurontools.runtime.core_claim import read_machine

        names.insert(0, read_machine(os.environ).instance_type)
    instances = (instance_type(name) for name in names)
    return next(each for each in instances if target_of(each.device) == target_of(device))


def save_profile(directory: str, launch: Launch, start_ns: int, end_ns: int, execution: int = 1) -> None:
    """Write the profile of one launch.

    Args:
        directory: gets a directory for this process.
        launch: what ran.
        start_ns: when it began, CLOCK_MONOTONIC.
        end_ns: when it ended.
        execution: its number.

    Raises:
        ProfileError: the directory cannot be made, or written to.
    """
    options = CaptureOptions(device=DeviceProfile.SESSION)
    capture = Capture(directory, _describe(launch, options), options)
    KernelCapture(capture).add(launch, start_ns, end_ns, execution)
    capture.on_close()


def _describe(launch: Launch, options: CaptureOptions) -> Meta:
    instance = _instance(launch.limits.target)
    return describe_process(instance, 1, tuple(range(len(launch.cores))), options)


def save_files(
    launch: Launch,
    start_ns: int,
    *,
    neff: str | None,
    trace: str | None,
    execution: int = 1,
    overwrites: bool = False,
) -> None:
    """Write the NEFF and the profile of a launch that has ended, as decorators of the first generation ask for them.

    Args:
        launch: what ran.
        start_ns: when it began, CLOCK_MONOTONIC.
        neff: file for the NEFF of the slowest core, None for none.
        trace: directory for the profile, None for none. The number of an execution after the first is in its name.
        execution: number of the execution.
        overwrites: whether files of an earlier process are replaced; those of this process are kept.

    Raises:
        NeuronToolsError: a file is there already, or cannot be written.
    """
    end_ns = time.monotonic_ns()
    if trace and execution > 1:
        stem, ending = os.path.splitext(trace)
        trace = f"{stem}_exec_{execution}{ending}"
    paths = [os.path.abspath(path) for path in (neff, trace) if path]
    if _saved.issuperset(paths):
        return
    for path in paths:
        if os.path.lexists(path) and not overwrites:
            raise NeuronToolsError(f"{path} exists", "set overwrite=True, or choose another name")
    try:
        for path in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if neff:
            write_atomic(neff, neff_of(launch, slowest_program(launch)), sync=False)
        if trace and os.path.isdir(trace):
            shutil.rmtree(trace)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write {error.filename}: {error.strerror}", "choose another directory"
        ) from error
    if trace:
        save_profile(trace, launch, start_ns, end_ns, execution)
    _saved.update(paths)


_saved: set[str] = set()


class _Process:
    """The profile of the kernels that this process runs outside of models."""

    pid = 0
    capture: KernelCapture | None = None


def record_launch(launch: Launch, start_ns: int) -> None:
    """Add a launch that has ended to the profile of this process, if one is captured (NEURON_RT_INSPECT_*).

    Raises:
        UsageError: a variable is invalid.
        ProfileError: the output directory cannot be made.
    """
    end_ns = time.monotonic_ns()
    if _Process.pid != os.getpid():
        capture = capture_process(lambda options: _describe(launch, options))
        _Process.pid, _Process.capture = os.getpid(), None if capture is None else KernelCapture(capture)
    if _Process.capture is not None:
        _Process.capture.add(launch, start_ns, end_ns)
