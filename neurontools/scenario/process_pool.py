"""The synthetic processes of a play on its machine."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine.faults.params import Action
from neurontools.machine.requests import SyntheticSpec
from neurontools.runtime.faults import exec_timeout_s
from neurontools.scenario.synthetic_process import (
    SyntheticPlace,
    SyntheticProcess,
    register_synthetic,
    reserve_synthetic,
    unregister_synthetic,
)
from neurontools.scenario.timeline import RunClock, RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.machine.client import Client
    from neurontools.machine.faults.params import Hit
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.requests import Reservation
    from neurontools.scenario.model import FaultPlan
    from neurontools.scenario.timeline import ProcessRun

# Besides pages: sockets, standard streams, libraries.
_OTHER_DESCRIPTORS = 128
_RATED_DTYPE = "bf16"
# How many questions about faults the processes may ask in a tick.
_MAX_QUERIES_PER_TICK = 64


class PlayEventKind(StrEnum):
    """The kind of an event."""

    PLAYING = "playing"
    STARTED = "started"
    ENDED = "ended"
    WAITING = "waiting"
    NO_MEMORY = "no_memory"
    FAULT = "fault"
    FAULT_REFUSED = "fault_refused"
    LOOPED = "looped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PlayEvent:
    """An event at a scenario time. `process` is a group and rank, "" for an event of no process."""

    scenario_s: float
    kind: PlayEventKind
    process: str = ""
    pid: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "scenario_s": round(self.scenario_s, 3)}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a play is: scenario time, its length (None: endless), running and waiting processes."""

    scenario_s: float
    length_s: float | None
    running: int
    waiting: int


class ProcessPool:
    """The synthetic processes of one play.

    Args:
        client: the machine's.
        instance: its type.
        lnc: its logical NeuronCore configuration.
        speed: scenario seconds in a second of this computer.
        on_event: called with every event.
    """

    def __init__(
        self,
        client: Client,
        instance: InstanceType,
        lnc: int,
        speed: float,
        on_event: Callable[[PlayEvent], None],
    ) -> None:
        self._client = client
        self._speed = speed
        self._emit = on_event
        self._peak_flops_s = instance.device.core.tensor_flops_s(_RATED_DTYPE) * lnc
        self._processes: dict[tuple[int, int], SyntheticProcess] = {}
        self._waiting: dict[tuple[int, int], ProcessRun] = {}
        self._faults: list[int] = []
        self._first_process = 0
        self._timeout_s = exec_timeout_s({}, instance.name)

    @property
    def running(self) -> int:
        """The number of synthetic processes."""
        return len(self._processes)

    @property
    def waiting(self) -> int:
        """The number of processes that wait for cores."""
        return len(self._waiting)

    def start(self, runs: Sequence[ProcessRun], time_s: float) -> None:
        """Register processes; a process whose cores are taken or on a lost device waits for them."""
        needed = [
            SyntheticSpec(
                run.plan.tag,
                run.plan.command,
                run.plan.uses_device,
                run.plan.cores or None,
                None,
                run.plan.runtime_version,
                run.plan.uid,
            )
            for run in runs
        ]
        known = [process.pid for process in self._processes.values()]
        places = register_synthetic(self._client, needed, known)
        for run, place in zip(runs, places, strict=True):
            if isinstance(place, SyntheticPlace):
                self._add(run, place, time_s)
            else:
                self._wait(run, place, time_s)

    def start_waiting(self, time_s: float) -> None:
        """Try to register the waiting processes again."""
        if self._waiting:
            self.start(list(self._waiting.values()), time_s)

    def end(self, runs: Sequence[ProcessRun], now_ns: int) -> None:
        """Unregister processes at the end of their runs, with their final state."""
        pids = []
        for run in runs:
            self._waiting.pop(_key(run), None)
            process = self._processes.pop(_key(run), None)
            if process is not None:
                needed = process.update(run.end_s, now_ns, 0)
                if needed and run.end is RunEnd.OUT_OF_MEMORY:
                    self._reserve([process] * len(needed), needed, run.end_s)
                process.close()
                pids.append(process.pid)
                self._emit(PlayEvent(run.end_s, PlayEventKind.ENDED, _name(run), process.pid, str(run.end)))
        if pids:
            unregister_synthetic(self._client, pids)

    def update(self, time_s: float, now_ns: int, tick_ns: int) -> None:
        """Update every process to a scenario time."""
        processes: list[SyntheticProcess] = []
        changes: list[Reservation] = []
        budget = [_MAX_QUERIES_PER_TICK]
        for process in self._in_turn():
            queries = _FaultQueries(self._client, process, budget) if process.armed_faults else None
            needed = process.update(time_s, now_ns, tick_ns, queries)
            if queries is not None and process.grows and queries.fails_allocation(needed[0]):
                process.refuse()
                detail = "an injected fault made the allocation fail"
                self._emit(
                    PlayEvent(time_s, PlayEventKind.NO_MEMORY, _name(process.run), process.pid, detail)
                )
            elif needed:
                changes += needed
                processes += [process] * len(needed)
        if changes:
            self._reserve(processes, changes, time_s)

    def inject(self, plan: FaultPlan) -> None:
        """Inject a fault of the scenario."""
        spec = plan.spec
        duration_s, every_s = spec.duration_s, spec.every_s
        try:
            fault = self._client.inject(
                spec.kind,
                device=spec.device,
                core=spec.core,
                to=spec.to,
                tag=spec.tag,
                after_executions=spec.after_executions,
                count=spec.count,
                duration_s=None if duration_s is None else duration_s / self._speed,
                factor=spec.factor,
                ecc=spec.ecc,
                amount=spec.amount,
                every_s=None if every_s is None else every_s / self._speed,
            )
        except DaemonError as error:
            self._emit(PlayEvent(plan.at_s, PlayEventKind.FAULT_REFUSED, "", None, error.message))
            return
        self._faults.append(fault.id)
        self._emit(PlayEvent(plan.at_s, PlayEventKind.FAULT, "", None, f"{spec.kind} on {spec.target()}"))

    def check(self) -> None:
        """Check that the daemon answers; a crashed daemon is restarted."""
        self._client.call("describe")

    def clear(self) -> None:
        """Remove all processes and faults of the scenario from the machine."""
        pids = [process.pid for process in self._processes.values()]
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._waiting.clear()
        if pids:
            unregister_synthetic(self._client, pids)
        for number in self._faults:
            try:
                self._client.clear_faults(number)
            except DaemonError:
                continue  # it has ended
        self._faults.clear()

    def _in_turn(self) -> list[SyntheticProcess]:
        # The processes that may ask first change from tick to tick.
        processes = list(self._processes.values())
        self._first_process = (self._first_process + 1) % max(1, len(processes))
        return processes[self._first_process :] + processes[: self._first_process]

    def _add(self, run: ProcessRun, place: SyntheticPlace, time_s: float) -> None:
        flops_s = self._peak_flops_s * run.plan.work.mfu
        self._waiting.pop(_key(run), None)
        self._processes[_key(run)] = SyntheticProcess(
            RunClock(run), place, flops_s, self._speed, self._timeout_s
        )
        self._emit(PlayEvent(max(time_s, run.start_s), PlayEventKind.STARTED, _name(run), place.pid))

    def _wait(self, run: ProcessRun, error: NeuronToolsError, time_s: float) -> None:
        if _key(run) not in self._waiting:
            self._waiting[_key(run)] = run
            self._emit(PlayEvent(time_s, PlayEventKind.WAITING, _name(run), None, error.message))

    def _reserve(self, processes: list[SyntheticProcess], changes: list[Reservation], time_s: float) -> None:
        answers = reserve_synthetic(self._client, changes)
        refused: dict[int, tuple[SyntheticProcess, NeuronToolsError]] = {}
        for process, error in zip(processes, answers, strict=True):
            if error is not None:
                refused[process.pid] = (process, error)
        for process in {process.pid: process for process in processes}.values():
            if process.pid not in refused:
                process.grant()
        back: list[Reservation] = []
        for process, error in refused.values():
            back += process.refuse()
            run = process.run
            self._emit(PlayEvent(time_s, PlayEventKind.NO_MEMORY, _name(run), process.pid, error.message))
        if back:
            reserve_synthetic(self._client, back)


class _FaultQueries:
    """Questions of one process about faults, as long as the budget of the tick lasts. A silent daemon has none."""

    def __init__(self, client: Client, process: SyntheticProcess, budget: list[int]) -> None:
        self._client = client
        self._process = process
        self._budget = budget

    @property
    def left(self) -> int:
        """How many executions may ask before the next tick."""
        return self._budget[0]

    def take(self, core: int) -> Hit | None:
        """Return how a fault hits an execution on a core."""
        self._budget[0] -= 1
        plan = self._process.run.plan
        try:
            return self._client.take_fault(core, pid=self._process.pid, collective=plan.has_collectives)
        except DaemonError:
            return None  # the fault was cleared, or the process is gone

    def holds(self, hit: Hit, core: int) -> bool:
        """Return whether an execution must keep hanging."""
        try:
            return self._client.holds_fault(hit.fault, core, pid=self._process.pid)
        except DaemonError:
            return False

    def release(self, core: int) -> None:
        """Report that an execution no longer hangs."""
        with suppress(DaemonError):
            self._client.release_fault(core, pid=self._process.pid)

    def fails_allocation(self, needed: Reservation) -> bool:
        """Return whether a fault makes an allocation fail."""
        try:
            hit = self._client.take_fault(
                needed.core, pid=self._process.pid, action=Action.ALLOCATION, nbytes=needed.nbytes
            )
        except DaemonError:
            return False
        return hit is not None


def raise_descriptor_limit(processes: int) -> None:
    """Raise the limit of open files for the telemetry pages of a number of processes.

    Raises:
        NeuronToolsError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = processes + _OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise NeuronToolsError(
            f"{processes} processes need {needed} open files, the limit is {hard}", "raise it with ulimit -Hn"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _key(run: ProcessRun) -> tuple[int, int]:
    return run.process, run.attempt


def _name(run: ProcessRun) -> str:
    again = f" (start {run.attempt + 1})" if run.attempt else ""
    return f"{run.plan.group} {run.plan.rank}{again}"
