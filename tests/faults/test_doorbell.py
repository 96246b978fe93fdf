"""Whatever happens: a process whose doorbell is silent can't be hit, and one that rings is not told nonsense."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neurontools.machine.devices import Layout
from neurontools.machine.events import (
    Effect,
    Event,
    FaultTaken,
    Joined,
    Leave,
    Process,
    Register,
    TakeFault,
    Tick,
)
from neurontools.machine.faults.kinds import ECC, EccType, FaultKind
from neurontools.machine.faults.params import Action, FaultSpec, Phase, Victim
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import RefusedError
from neurontools.machine.requests import ClearFaults, ProcessSpec, ReleaseFault, ResetDevice
from neurontools.machine.state import MachineState

LINKS = ((1,), (0, 2), (1,))
LAYOUT = Layout(device_count=3, cores_per_device=2, memory_bytes=1000, links=LINKS)
CLAIMS = {1: (0, 1), 2: (2, 3, 4), 3: (5,)}
KEYS = {pid: ProcessKey(pid, pid) for pid in CLAIMS}
TAGS = {1: "a", 2: "b", 3: "a"}

specs = st.builds(
    FaultSpec,
    kind=st.sampled_from(list(FaultKind)),
    device=st.none() | st.integers(0, 3),
    core=st.none() | st.integers(0, 6),
    to=st.none() | st.integers(0, 2),
    pid=st.none() | st.integers(0, 4),
    tag=st.none() | st.sampled_from(["a", "b", "c"]),
    after_s=st.sampled_from([0.0, 0.0, 1.0, -1.0]),
    after_executions=st.sampled_from([0, 0, 2]),
    count=st.none() | st.integers(0, 3),
    duration_s=st.none() | st.sampled_from([0.5, 3.0]),
    ecc=st.sampled_from(list(EccType)),
    amount=st.integers(1, 3),
    every_s=st.none() | st.sampled_from([0.4, 2.0]),
)


class AnyFaults(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = MachineState(LAYOUT)
        self.now_ns = 0
        self.here: dict[int, Process] = {}

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Return the effects of an event, none when it is refused."""
        try:
            return self.machine.handle(event, self.now_ns)
        except RefusedError:
            return ()

    def victims(self, process: Process) -> list[Victim]:
        return [
            Victim(process.key.pid, process.tag, core, action, collective, process.cores)
            for core in process.cores
            for action, collective in (
                (Action.EXECUTION, False),
                (Action.EXECUTION, True),
                (Action.ALLOCATION, False),
            )
        ]

    @rule(spec=specs)
    def inject(self, spec: FaultSpec) -> None:
        self.handle(spec)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.handle(Tick())

    @rule(number=st.integers(1, 8))
    def clear(self, number: int) -> None:
        self.handle(ClearFaults((number,)))

    @rule(pid=st.sampled_from(list(CLAIMS)), reset=st.booleans())
    def come_or_go(self, pid: int, reset: bool) -> None:
        if pid in self.here:
            del self.here[pid]
            self.machine.handle(Leave(KEYS[pid]), self.now_ns)
            return
        spec = ProcessSpec(TAGS[pid], cores=CLAIMS[pid])
        for effect in self.handle(Register(KEYS[pid], 0, spec, reset_cores=reset)):
            assert isinstance(effect, Joined)
            self.here[pid] = effect.process

    @rule(pick=st.integers(0, 1000))
    def take(self, pick: int) -> None:
        victims = [victim for process in self.here.values() for victim in self.victims(process)]
        if victims:
            self.handle(TakeFault(victims[pick % len(victims)]))

    @rule(pid=st.sampled_from(list(CLAIMS)), core=st.integers(0, 5))
    def release(self, pid: int, core: int) -> None:
        self.handle(ReleaseFault(core, pid))

    @rule(device=st.integers(0, 2), force=st.booleans())
    def reset(self, device: int, force: bool) -> None:
        self.handle(ResetDevice(device, force))

    @invariant()
    def who_hears_nothing_is_not_hit(self) -> None:
        record = self.machine.faults.record()
        for process in self.here.values():
            if self.machine.faults.armed_for(process) == 0:
                for victim in self.victims(process):
                    copy = MachineState(LAYOUT, None, record)
                    answer, *_ = copy.handle(TakeFault(victim), self.now_ns)
                    assert answer == FaultTaken(None)

    @invariant()
    def every_fault_is_in_a_phase_that_its_facts_allow(self) -> None:
        for fault in self.machine.faults.faults():
            assert fault.phase is not Phase.OVER
            assert fault.spec.count is None or fault.hits <= fault.spec.count
            assert fault.phase is not Phase.HOLDING or fault.held
            assert fault.phase is not Phase.BROKEN or fault.broken_cores
            assert not fault.broken_cores or ECC[fault.spec.ecc].breaks
            assert {pid for pid, _ in fault.held} <= set(self.here)
            due = self.machine.faults.next_ns()
            assert due is None or due > self.now_ns


TestAnyFaults = pytest.mark.timeout(120)(AnyFaults.TestCase)
TestAnyFaults.settings = settings(max_examples=60, stateful_step_count=25)
