"""The runtime of one process: its cores, its device memory, its models, and what they execute.

Any thread may call it. Executions on one core follow each other, those on different cores don't wait for each other.
A forked child is not the owner: it closes connection and telemetry page, and every call there fails.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

from neurontools import env
from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.base.procfs import read_stat
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import MemoryCategory, MemoryUse
from neurontools.runtime import host_activity
from neurontools.runtime.core_claim import CoreClaim, claim_cores, release_cores
from neurontools.runtime.faults import Faults
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.memory import DeviceMemory, MemoryInfo
from neurontools.runtime.models import ExecutionObserver, Model, ModelTable
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["ExecutionObserver", "MemoryInfo", "Model", "Runtime"]

T = TypeVar("T")
DUMP_INPUTS = "NEURON_RT_DBG_DUMP_INPUTS_ON_ERR"
_HOST_MEMORY_PERIOD_NS = 1_000_000_000
_FORKED = (
    "Cannot re-initialize Neuron runtime in forked subprocess. "
    "To use Neuron with multiprocessing, you must use the 'spawn' start method"
)


class Runtime:
    """What a process uses of the machine. Made by `open`; one per process.

    `cores` are the claimed machine-wide logical ids; a process numbers its own cores (`nc`) by position in it.
    `observers` are called at every load, execution and unload, `on_profile_request` before the first execution after
    a viewer asked for a profile of this process; it must not raise.
    """

    def __init__(self, claim: CoreClaim, environ: Mapping[str, str], log: RuntimeLog) -> None:
        registration = claim.registration
        self.cores = registration.cores
        self.instance = claim.instance
        self.lnc = claim.lnc
        self.machine = registration.machine
        self.observers: list[ExecutionObserver] = []
        self.on_profile_request: Callable[[], None] | None = None
        self._seen_request = 0
        self._log = log
        self._client = claim.client
        self._paced = env.flag(env.PACE, environ)
        try:
            self._writer = PageWriter(registration.page_fd)
        finally:
            os.close(registration.page_fd)
        self._faults = Faults(claim.client, self._writer, log, environ, registration.instance_type)
        self._memory = DeviceMemory(
            claim.client,
            self._writer,
            log,
            self._faults,
            cores_per_device=claim.instance.cores_per_device(claim.lnc),
            device_bytes=claim.instance.device.memory_bytes,
        )
        self._models = ModelTable(self._memory, self._writer)
        self._dumped_status = _dumped_status(environ)
        self._turns = tuple(_Turn() for _ in self.cores)
        self._ended: tuple[NrtStatus, str] | None = None
        self._update_host_memory(time.monotonic_ns())
        _process.runtime = self

    @classmethod
    def open(
        cls,
        *,
        tag: str | None = None,
        environ: Mapping[str, str] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> Runtime:
        """Claim the cores that NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES ask for (all by default).

        Args:
            tag: shown by the tools; NEURON_PROCESS_TAG when None.
            environ: instead of the process's environment.
            on_notice: gets a line when a machine was started.

        Raises:
            NrtError: cores not free (NRT_RESOURCE), an invalid request (NRT_INVALID), a runtime that is open already
                or was open before a fork (NRT_FAILURE).
            NoMachineError: no machine runs and none may be started.
            DaemonError: the daemon refuses or fails.
        """
        _check_may_open()
        chosen = os.environ if environ is None else environ
        log = RuntimeLog(chosen)
        runtime = None
        try:
            with InterruptHold(HOLD_S):  # cores that are claimed belong to a runtime
                claim = claim_cores(chosen, log, tag=tag, on_notice=on_notice)
                try:
                    runtime = cls(claim, chosen, log)
                except BaseException:
                    release_cores(claim.client)
                    raise
        except BaseException:
            if runtime is not None:
                runtime.close()
            raise
        return runtime

    @property
    def faults_armed(self) -> bool:
        """Whether the daemon has armed a fault for this process."""
        return self._ended is None and self._writer.armed_faults > 0

    def allocate(self, nc: int, nbytes: int, category: MemoryCategory = MemoryCategory.TENSORS) -> None:
        """Take device memory of a core.

        Raises:
            NrtError: NRT_RESOURCE when the device is full.
        """
        self._check("nrt_tensor_allocate", nc)
        self._memory.allocate(nc, nbytes, category)

    def free(self, nc: int, nbytes: int, category: MemoryCategory = MemoryCategory.TENSORS) -> None:
        """Give device memory of a core back; safe in finalizers, where an ended runtime is not an error."""
        if self._ended is None:
            self._memory.free(nc, nbytes, category)

    def memory_info(self, nc: int) -> MemoryInfo:
        """Return the memory in use on a core, its peak, and the size of its device's memory."""
        self._check("nrt_get_vnc_memory_stats", nc)
        return self._memory.info(nc)

    def reset_peak_memory(self, nc: int) -> None:
        """Let the peak of a core's memory start again at the memory in use."""
        self._check("nrt_get_vnc_memory_stats", nc)
        self._memory.reset_peak(nc)

    def memory_use(self, nc: int) -> MemoryUse:
        """Return the memory in use on a core by category."""
        self._check("nrt_get_vnc_memory_stats", nc)
        return self._memory.use(nc)

    def load(
        self,
        nc: int,
        *,
        name: str,
        uuid: bytes,
        neff: bytes,
        code_bytes: int,
        constant_bytes: int,
        scratch_bytes: int,
        modelled_ns: int,
        flops: int,
        gpsimd_ns: int = 0,
        collective: bool = False,
    ) -> Model:
        """Load a NEFF onto a core.

        Args:
            nc: the process's own index of the core.
            name: shown by the tools.
            uuid: the NEFF's identity.
            neff: its bytes; kept for observers.
            code_bytes: device memory of instructions.
            constant_bytes: device memory of weights that are part of the NEFF.
            scratch_bytes: device memory that all models of a core share, each at its time.
            modelled_ns: device time of one execution by the cost model.
            flops: floating point operations of one execution by the cost model.
            gpsimd_ns: device time of custom operators in one execution by the cost model.
            collective: whether an execution exchanges data with other cores, which a broken link makes fail.

        Raises:
            NrtError: NRT_RESOURCE when the device is full.
        """
        self._check("nrt_load", nc)
        memory = MemoryUse(
            model_code=code_bytes, constants=constant_bytes, model_shared_scratchpad=scratch_bytes
        )
        model = Model(name, uuid, nc, self.cores[nc], neff, modelled_ns, flops, gpsimd_ns, memory, collective)
        with InterruptHold(HOLD_S):  # a model that takes memory can be unloaded
            return self._load(model)

    def _load(self, model: Model) -> Model:
        nc, code_bytes, constant_bytes = model.nc, model.memory.model_code, model.memory.constants
        start_ns = time.monotonic_ns()
        model = self._models.load(model)
        end_ns = time.monotonic_ns()
        self._update_host_memory(end_ns)
        for observer in self.observers:
            observer.on_load(model, start_ns, end_ns)
        if host_activity.observers:
            host_activity.report_allocation(nc, model, code_bytes + constant_bytes, f"model {model.name}", "")
        return model

    def unload(self, model: Model) -> None:
        """Take a model off its core; no error when it is gone already."""
        if self._ended is None and self._models.unload(model):
            for observer in self.observers:
                observer.on_unload(model)
            if host_activity.observers:
                nbytes = model.memory.model_code + model.memory.constants
                host_activity.report_release(model.nc, model, nbytes)

    @property
    def dumps_inputs(self) -> bool:
        """Whether NEURON_RT_DBG_DUMP_INPUTS_ON_ERR asks for the inputs of executions that fail."""
        return self._dumped_status is not None

    def execute(
        self, model: Model, run: Callable[[], T], inputs: Callable[[], Iterable[bytes]] | None = None
    ) -> T:
        """Execute a model: `run` does the work, everything around it is telemetry.

        An exception of `run` goes through to the caller and counts as NRT_EXEC_COMPLETED_WITH_ERR, an `NrtError` as
        its own status. With NEURONTOOLS_PACE=1 a successful execution lasts at least its modelled time. A fault that
        is armed for this process may let it fail, hang or last longer (docs/reference/faults.md). `inputs` gives the contents
        of its inputs, for when they are to be dumped.

        Raises:
            NrtError: NRT_INVALID_HANDLE when the model is not loaded, NRT_EXEC_NC_BUSY when `run` itself executes on
                the same core, a fault's own status when one makes it fail.
        """
        if self._ended is not None:
            self._check("nrt_execute", model.nc)
        turn = self._turns[model.nc]
        with turn.lock:
            loaded = self._models.find(model)
            if turn.taken:
                raise NrtError(
                    "nrt_execute", NrtStatus.NRT_EXEC_NC_BUSY, f"nc{model.nc} executes this caller"
                )
            status = NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR
            start_ns = 0
            try:
                turn.taken = True
                start_ns = self._writer.begin(model.nc, model.page_slot)
                if self._writer.doorbell:
                    value, status = self._execute_disturbed(model, run, start_ns)
                else:
                    value, status = run(), NrtStatus.NRT_SUCCESS
                    if self._paced:
                        _wait_until(start_ns + model.modelled_ns)
            except NrtError as error:
                status = error.status
                raise
            finally:
                turn.taken = False
                end_ns = time.monotonic_ns()
                start_ns = start_ns or end_ns
                if self._ended is None:
                    flops = 0 if status else model.flops
                    self._writer.end(
                        model.nc, status, end_ns - start_ns, flops, 0 if status else model.gpsimd_ns
                    )
                    loaded.executions += 1
                    if end_ns >= self._host_memory_due_ns:
                        self._update_host_memory(end_ns)
                    self._report(model, loaded.executions, start_ns, end_ns, status)
                    if status == self._dumped_status and inputs is not None:
                        self._dump(model, inputs)
            return value

    def add_observer(self, observer: ExecutionObserver) -> None:
        """Add an observer and report the models to it that are loaded already."""
        now_ns = time.monotonic_ns()
        for model in self._models.models():
            observer.on_load(model, now_ns, now_ns)
        self.observers.append(observer)

    def remove_observer(self, observer: ExecutionObserver) -> None:
        """Report nothing more to an observer; no error if it is none."""
        # A new list: an observer may leave while it is called.
        self.observers = [each for each in self.observers if each is not observer]

    def close(self) -> None:
        """Unload everything and give the cores back; closing twice is fine."""
        if self._ended is not None:
            return
        with InterruptHold(HOLD_S):  # cores that are not given back belong to a runtime
            self._memory.keep_reservations()
            for model in self._models.models():
                self.unload(model)
            for observer in self.observers:
                observer.on_close()
            self._ended = (NrtStatus.NRT_CLOSED, "")
            if _process.runtime is self:
                _process.runtime = None
            self._unmap()
            release_cores(self._client)

    def abandon(self) -> None:
        """Close connection and page in a forked child; the parent keeps both."""
        self._ended = (NrtStatus.NRT_UNINITIALIZED, _FORKED)
        self._writer.close()

    @property
    def profile_request(self) -> int:
        """The number of the request to profile this process for a viewer, 0 for none."""
        return self._writer.profile_request if self._ended is None else 0

    def profile_directory(self) -> str:
        """Return where this process is asked to profile itself to, "" for nowhere.

        Raises:
            NeuronToolsError: the daemon does not answer.
        """
        return self._client.profile_directory()

    def withdraw_profile(self, directory: str) -> None:
        """Tell the daemon that the profile in a directory has no viewer.

        Raises:
            NeuronToolsError: the daemon does not answer.
        """
        self._client.end_profile(os.getpid(), directory)

    def _execute_disturbed(self, model: Model, run: Callable[[], T], start_ns: int) -> tuple[T, NrtStatus]:
        """Execute while faults are armed, or while this process has a viewer."""
        request = self._writer.profile_request
        if request not in {0, self._seen_request}:
            self._seen_request = request
            if self.on_profile_request is not None:
                self.on_profile_request()
        value, status, factor = (
            self._faults.execute(model, run)
            if self._writer.armed_faults
            else (run(), NrtStatus.NRT_SUCCESS, 1.0)
        )
        if self._paced:
            _wait_until(start_ns + model.modelled_ns)
        _wait_until(start_ns + round((time.monotonic_ns() - start_ns) * factor))
        return value, status

    def _update_host_memory(self, now_ns: int) -> None:
        """Show the resident memory of this process, less the buffers that stand in for device memory."""
        self._host_memory_due_ns = now_ns + _HOST_MEMORY_PERIOD_NS
        stat = read_stat(os.getpid())
        if stat is not None:
            on_device = sum(self._memory.use(nc).tensors for nc in range(len(self.cores)))
            used_bytes = max(0, stat.resident_bytes - on_device)
            self._writer.set_host_memory(MemoryCategory.APPLICATION_MEMORY, used_bytes)

    def _unmap(self) -> None:
        # A core that another thread still executes on keeps the page mapped until the process ends.
        taken = [turn for turn in self._turns if turn.lock.acquire(blocking=False)]
        if len(taken) == len(self._turns) and not any(turn.taken for turn in taken):
            self._writer.close()
        for turn in taken:
            turn.lock.release()

    def _check(self, function: str, nc: int) -> None:
        if self._ended is not None:
            status, detail = self._ended
            raise NrtError(function, status, detail=detail)
        if not 0 <= nc < len(self.cores):
            have = f"this process has nc0 to nc{len(self.cores) - 1}"
            raise NrtError(function, NrtStatus.NRT_INVALID, have, detail=f"no core nc{nc}")

    def _dump(self, model: Model, inputs: Callable[[], Iterable[bytes]]) -> None:
        try:
            message = f"inputs of {model.name} are in {_dump_inputs(model, inputs())}"
        except OSError as error:
            message = f"cannot write the inputs of {model.name}: {error}"
        self._log.write(Level.ERROR, Component.NRT, "nrt_execute", message)

    def _report(self, model: Model, execution: int, start_ns: int, end_ns: int, status: NrtStatus) -> None:
        if status:
            where = f"lnc{model.core}:h_model.id{model.model_id}"
            self._log.write(
                Level.ERROR, Component.NRT, "nrt_execute", f"{where}: {status.text} ({status.name})"
            )
        for observer in self.observers:
            observer.on_execute(model, execution, start_ns, end_ns, status)


class _Turn:
    """Whose turn it is on a core; `taken` tells an execution inside of an execution."""

    __slots__ = ("lock", "taken")

    def __init__(self) -> None:
        self.lock = RLock()
        self.taken = False


def _wait_until(when_ns: int) -> None:
    while (left_ns := when_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def _dumped_status(environ: Mapping[str, str]) -> int | None:
    """Return the status whose executions leave their inputs, None: no execution does."""
    text = environ.get(DUMP_INPUTS, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _dump_inputs(model: Model, inputs: Iterable[bytes]) -> str:
    """Write the inputs of an execution and return the directory's path.

    Raises:
        OSError: it can't be written.
    """
    directory = os.path.abspath(f"input_dump_{secrets.token_hex(4)}_h_nn_{model.model_id}")
    os.mkdir(directory)
    with open(f"{directory}/model_name.txt", "w", encoding="utf-8") as file:
        file.write(f"{model.name}\n")
    for index, content in enumerate(inputs):
        with open(f"{directory}/input{index}.bin", "wb") as binary:
            binary.write(content)
    return directory


def current() -> Runtime | None:
    """Return the process's open runtime."""
    return _process.runtime


def is_forked() -> bool:
    """Return whether this process is a forked child of one with a runtime, and so cannot have one."""
    return _process.forked


def _check_may_open() -> None:
    """Refuse a second runtime, and one in a forked child of a process that had one.

    Raises:
        NrtError: NRT_FAILURE.
    """
    if _process.forked:
        raise NrtError("nrt_init", NrtStatus.NRT_FAILURE, "start it with exec or spawn", detail=_FORKED)
    if _process.runtime is not None:
        detail = "the runtime is open already in this process"
        raise NrtError("nrt_init", NrtStatus.NRT_FAILURE, "use that one, or close it first", detail=detail)


class _Process:
    """The one open runtime of this process: closed at exit, abandoned in a forked child."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.forked = False

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close()

    def abandon(self) -> None:
        if self.runtime is not None:
            self.forked = True
            self.runtime.abandon()
            self.runtime = None


_process = _Process()
atexit.register(_process.close)
os.register_at_fork(after_in_child=_process.abandon)
