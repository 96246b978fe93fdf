"""Synthetic processes: how they are put on a machine, and a running one, which writes its telemetry page.

Their pids lie above every pid that the operating system gives. They compete for cores and memory as real processes
do, and they end with their player.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine.pages.page import NO_MODEL, PageWriter
from neurontools.machine.pages.writer import CoreCounters
from neurontools.machine.protocol import MAX_DESCRIPTORS, refused_error
from neurontools.machine.requests import (
    Empty,
    RegisterSyntheticRequest,
    Reservation,
    ReservationOutcomes,
    ReserveSyntheticRequest,
    SyntheticOutcomes,
    SyntheticSpec,
    UnregisterSyntheticRequest,
)
from neurontools.machine.snapshot import MemoryCategory, MemoryUse, ModelState
from neurontools.scenario.curves import digest
from neurontools.scenario.faulted_core import FaultedCore
from neurontools.scenario.timeline import RunEnd, needed_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.client import Client
    from neurontools.scenario.faulted_core import FaultQueries
    from neurontools.scenario.model import ProcessPlan
    from neurontools.scenario.timeline import ProcessRun, RunClock, RunState

_RESERVATIONS_PER_CALL = 2000

FIRST_MODEL_ID = 10001
_HOST = (
    MemoryCategory.APPLICATION_MEMORY,
    MemoryCategory.CONSTANTS,
    MemoryCategory.DMA_BUFFERS,
    MemoryCategory.TENSORS,
)


class SyntheticPlace(NamedTuple):
    """A synthetic process on the machine; the descriptor of its telemetry page is the caller's."""

    pid: int
    start_ticks: int
    cores: tuple[int, ...]
    page_fd: int


def register_synthetic(
    client: Client, processes: Sequence[SyntheticSpec], known: Sequence[int] = ()
) -> list[SyntheticPlace | NeuronToolsError]:
    """Put synthetic processes on a machine.

    Args:
        client: the machine's; they end with this program.
        processes: what they are.
        known: pids of the synthetic processes that this program keeps; all others of it are removed, so that a
            request whose answer was lost can be repeated.

    Returns:
        For each its place, or the reason why it was refused.

    Raises:
        DaemonError, NoMachineError: the daemon refuses all of it or is gone.
    """
    places: list[SyntheticPlace | NeuronToolsError] = []
    for start in range(0, len(processes), MAX_DESCRIPTORS):
        kept = (*known, *(place.pid for place in places if isinstance(place, SyntheticPlace)))
        request = RegisterSyntheticRequest(tuple(processes[start : start + MAX_DESCRIPTORS]), kept)
        result, descriptors = client.request_with_descriptors(request, SyntheticOutcomes, _page_count)
        if _page_count(result) != len(descriptors):
            raise DaemonError("neurond sent no telemetry pages", "see 'neurond logs'")
        page_fds = iter(descriptors)
        places += [
            refused_error(outcome.error)
            if outcome.error is not None
            else SyntheticPlace(outcome.pid, outcome.start_ticks, outcome.cores or (), next(page_fds))
            for outcome in result.processes
        ]
    return places


def unregister_synthetic(client: Client, pids: Sequence[int]) -> None:
    """Take synthetic processes off a machine; those that are not there (any more) are ignored."""
    client.request(UnregisterSyntheticRequest(tuple(pids)), Empty)


def reserve_synthetic(client: Client, changes: Sequence[Reservation]) -> list[NeuronToolsError | None]:
    """Set the device memory that synthetic processes hold, whatever they held before.

    Returns:
        For each None, or why it holds what it held before: `OutOfDeviceMemoryError` when the device is full.
    """
    errors: list[NeuronToolsError | None] = []
    for start in range(0, len(changes), _RESERVATIONS_PER_CALL):
        request = ReserveSyntheticRequest(tuple(changes[start : start + _RESERVATIONS_PER_CALL]))
        outcomes = client.request(request, ReservationOutcomes).changes
        errors += [None if outcome.error is None else refused_error(outcome.error) for outcome in outcomes]
    return errors


def _page_count(outcomes: SyntheticOutcomes) -> int:
    return sum(outcome.error is None for outcome in outcomes.processes)


class SyntheticProcess:
    """A synthetic process.

    Args:
        clock: computes the states of its run.
        place: its pid, cores and page on the machine; the page's descriptor is closed here.
        flops_s: FLOPs a second of a core while it executes.
        speed: scenario seconds in a second of this computer.
        timeout_s: how long an execution may hang, in scenario seconds; 0 without a limit.
    """

    def __init__(
        self, clock: RunClock, place: SyntheticPlace, flops_s: float, speed: float, timeout_s: float
    ) -> None:
        self.run: ProcessRun = clock.run
        self.pid = place.pid
        self.cores = place.cores
        self._clock = clock
        self._flops_s = flops_s
        self._speed = speed
        self._timeout_ns = round(timeout_s / speed * 1e9)
        try:
            self._writer = PageWriter(place.page_fd)
        finally:
            os.close(place.page_fd)
        self._memory = MemoryUse()
        self._refused: MemoryUse | None = None
        self._host_memory = MemoryUse()
        self._models: dict[int, list[int]] = {}
        self._cpu = (0, 0)
        self._core: CoreCounters | None = None
        self._needed: MemoryUse = self._memory
        self._needed_models: tuple[int, ...] = ()
        self._has_failed = False
        self._is_still = clock.is_still
        self._faulted: list[FaultedCore] = []
        self._updated_ns = 0

    @property
    def armed_faults(self) -> int:
        """The number of armed faults that match it."""
        return self._writer.armed_faults

    @property
    def grows(self) -> bool:
        """Whether the last update asked for more device memory than it holds."""
        refused = self._refused is not None and self._needed == self._refused
        return self._needed.total_bytes > self._memory.total_bytes and not refused

    def update(
        self, time_s: float, now_ns: int, tick_ns: int, queries: FaultQueries | None = None
    ) -> list[Reservation]:
        """Write the state at a scenario time; return the reservations that it needs, if they changed.

        Args:
            time_s: scenario time.
            now_ns: CLOCK_MONOTONIC.
            tick_ns: time until the next update.
            queries: asks about the faults of its executions, None while no fault is armed for it.
        """
        if self._is_still and self._core is not None and self._needed in (self._memory, self._refused):
            return []
        state = self._clock.state(time_s)
        self._write_host(state)
        self._write_cores(state, now_ns, tick_ns, queries)
        self._needed, self._needed_models = state.memory, state.models
        failed = self.run.end is RunEnd.OUT_OF_MEMORY and time_s >= (self.run.fails_s or 0.0)
        if failed and not self._has_failed:
            # Ask for the allocation that is refused, so that the machine counts the refusal.
            self._has_failed = True
            fails_s = self.run.fails_s or 0.0
            self._needed = needed_memory(self.run.plan, fails_s - self.run.start_s)
        if self._needed in (self._memory, self._refused):
            self._write_models()
            return []
        return [Reservation(self.pid, core, self._needed.total_bytes) for core in self.cores]

    def grant(self) -> None:
        """Publish the memory that `update` asked for: the machine has granted it."""
        before, self._memory, self._refused = self._memory, self._needed, None
        for slot in range(len(self.cores)):
            for category in MemoryCategory:
                nbytes = getattr(self._memory, category)
                if nbytes != getattr(before, category):
                    self._writer.set_memory(slot, category, nbytes)
            self._writer.set_reserved(slot, self._memory.total_bytes)
        self._write_models()

    def refuse(self) -> list[Reservation]:
        """Keep the memory that it has; return the reservations that undo those granted on some of its cores."""
        self._refused = self._needed
        return [Reservation(self.pid, core, self._memory.total_bytes) for core in self.cores]

    def close(self) -> None:
        """Unmap the page."""
        self._writer.close()

    def _write_cores(self, state: RunState, now_ns: int, tick_ns: int, queries: FaultQueries | None) -> None:
        busy_share = state.utilization / 100
        since_ns = _executing_since(busy_share, now_ns, tick_ns)
        slots = self._models.get(state.models[0]) if state.models else None
        model = NO_MODEL if slots is None or not since_ns else slots[0]
        counters = scripted_counters(state, self._flops_s, self._speed, since_ns, model)
        if queries is not None and not self._faulted:
            so_far, then_ns = self._core or counters, self._updated_ns or now_ns
            self._faulted = [FaultedCore(core, so_far, then_ns, self._timeout_ns) for core in self.cores]
        self._updated_ns = now_ns
        if counters == self._core and not self._faulted:
            return
        self._core = counters
        for slot in range(len(self.cores)):
            shown = counters
            if self._faulted:
                faulted = self._faulted[slot]
                shown = faulted.advance(counters, queries, now_ns)
                since_ns = _executing_since(faulted.busy_share(busy_share), now_ns, tick_ns)
            model = NO_MODEL if slots is None or not since_ns else slots[slot]
            if (shown.executing_since_ns, shown.model_slot) != (since_ns, model):
                shown = replace(shown, executing_since_ns=since_ns, model_slot=model)
            self._writer.write_core(slot, shown)

    def _write_host(self, state: RunState) -> None:
        if state.host_memory != self._host_memory:
            self._host_memory = state.host_memory
            for category in _HOST:
                self._writer.set_host_memory(category, getattr(state.host_memory, category))
        cpu = (round(state.cpu_user_s / self._speed * 1e9), round(state.cpu_system_s / self._speed * 1e9))
        cpu = (max(cpu[0], self._cpu[0]), max(cpu[1], self._cpu[1]))
        if cpu != self._cpu:
            self._cpu = cpu
            self._writer.set_cpu_time(*cpu)

    def _write_models(self) -> None:
        if self._needed is self._refused:
            return
        for index in [index for index in self._models if index not in self._needed_models]:
            for slot in self._models.pop(index):
                self._writer.remove_model(slot)
        for index in self._needed_models:
            if index not in self._models:
                self._models[index] = [
                    self._writer.add_model(model) for model in model_states(self.run.plan, index, self.cores)
                ]


def scripted_counters(
    state: RunState, flops_s: float, speed: float = 1.0, since_ns: int = 0, model_slot: int = NO_MODEL
) -> CoreCounters:
    """Return the counters of each core of a run.

    Args:
        state: of the run.
        flops_s: FLOPs a second of a core while it executes.
        speed: scenario seconds in a second of this computer.
        since_ns: when the current execution began, 0 without one.
        model_slot: the model of that execution.
    """
    busy_s = state.busy_s / speed
    return CoreCounters(
        since_ns,
        model_slot,
        round(busy_s * 1e9),
        state.executions,
        round(busy_s * flops_s),
        0,
        state.failures,
        state.latency_counts,
    )


def model_states(plan: ProcessPlan, index: int, cores: tuple[int, ...]) -> list[ModelState]:
    """Return the model states that a telemetry page shows of a model of a plan, one for each core."""
    model = plan.models[index]
    memory = MemoryUse(
        model_code=model.code_bytes,
        constants=model.constant_bytes,
        model_shared_scratchpad=model.scratchpad_bytes,
    )
    uuid = digest(plan.seed, "model", model.name)
    first = FIRST_MODEL_ID + index * len(cores)
    return [
        ModelState(first + place, model.name, uuid, core, False, memory) for place, core in enumerate(cores)
    ]


def _executing_since(busy_share: float, now_ns: int, tick_ns: int) -> int:
    # A core executes in the last part of a tick, so that a reader sees time pass between two ticks.
    return now_ns + round(tick_ns * (1 - busy_share)) if busy_share > 0 and tick_ns else 0
