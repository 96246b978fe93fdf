"""The rules of the machine, by events alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neurontools.machine.devices import Layout
from neurontools.machine.events import (
    Adopt,
    Changed,
    DeviceChanged,
    Event,
    Joined,
    Leave,
    Left,
    Process,
    Register,
    Reserve,
)
from neurontools.machine.faults.kinds import FaultKind
from neurontools.machine.faults.registry import FaultRegistry
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import (
    CoresBusyError,
    InvalidParamsError,
    OutOfDeviceMemoryError,
    RefusedError,
)
from neurontools.machine.requests import CountHardware, ProcessSpec, ResetHardware
from neurontools.machine.snapshot import CoreTotals, HardwareCounter, HardwareCounters, History
from neurontools.machine.state import MachineState

LAYOUT = Layout(device_count=4, cores_per_device=2, memory_bytes=1000)
A, B, C = ProcessKey(10, 1), ProcessKey(11, 2), ProcessKey(12, 3)


def register(key: ProcessKey, **wishes: object) -> Register:
    return Register(key, 0, ProcessSpec("tag", "python a.py", **wishes))  # type: ignore[arg-type]


def cores_of(machine: MachineState, event: Register) -> tuple[int, ...]:
    (effect,) = machine.handle(event, 5)
    assert isinstance(effect, Joined)
    return effect.process.cores


def refusal(machine: MachineState, event: Event) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        machine.handle(event, 5)
    return caught.value


def test_a_process_gets_all_cores_unless_it_asks_for_fewer() -> None:
    assert cores_of(MachineState(LAYOUT), register(A)) == tuple(range(8))
    assert cores_of(MachineState(LAYOUT), register(A, count=0)) == tuple(range(8))


def test_all_cores_means_all_of_the_machine_not_all_that_are_free() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(5,)))
    reason = refusal(machine, register(B, count=0))
    assert isinstance(reason, CoresBusyError)
    assert (reason.requested, reason.count, reason.available) == ((), 8, 7)
    assert reason.owners == (A.pid,)


def test_a_number_of_cores_is_the_first_free_run_of_that_length() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(1,)))
    assert cores_of(machine, register(B, count=2)) == (2, 3)
    assert cores_of(machine, register(C, count=1)) == (0,)


def test_free_cores_that_are_apart_do_not_make_a_run() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(1, 3, 5, 7)))
    reason = refusal(machine, register(B, count=2))
    assert isinstance(reason, CoresBusyError)
    assert reason.available == 4


def test_a_core_has_one_owner() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(2, 3)))
    reason = refusal(machine, register(B, cores=(3, 4)))
    assert isinstance(reason, CoresBusyError)
    assert (reason.requested, reason.available) == ((3, 4), 1)
    assert machine.lifetime == {"processes": 1, "claims_refused": 1}


def test_cores_are_free_again_when_their_owner_left() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A))
    (effect,) = machine.handle(Leave(A, (("executions", 3),)), 6)
    assert isinstance(effect, Left)
    assert cores_of(machine, register(B)) == tuple(range(8))
    assert machine.lifetime == {"processes": 2, "executions": 3}


def test_leaving_twice_does_nothing() -> None:
    machine = MachineState(LAYOUT)
    assert machine.handle(Leave(A), 1) == ()


@pytest.mark.parametrize(
    "wishes",
    [
        {"cores": ()},
        {"cores": (1, 1)},
        {"cores": (8,)},
        {"cores": (-1,)},
        {"count": -1},
        {"uses_device": False, "cores": (1,)},
        {"uses_device": False, "count": 1},
    ],
)
def test_invalid_requests_are_refused(wishes: dict[str, object]) -> None:
    machine = MachineState(LAYOUT)
    assert isinstance(refusal(machine, register(A, **wishes)), InvalidParamsError)
    assert not machine.processes
    assert machine.lifetime == {}


def test_more_cores_than_there_are_is_a_matter_of_availability() -> None:
    reason = refusal(MachineState(LAYOUT), register(A, count=9))
    assert isinstance(reason, CoresBusyError)
    assert (reason.count, reason.available) == (9, 8)


def test_a_process_that_looks_claims_nothing_and_is_not_counted() -> None:
    machine = MachineState(LAYOUT)
    assert cores_of(machine, register(A, uses_device=False)) == ()
    assert machine.lifetime == {}
    assert cores_of(machine, register(B)) == tuple(range(8))


def test_a_process_registers_once() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, count=1))
    assert isinstance(refusal(machine, register(A, count=1)), InvalidParamsError)


def test_the_cores_of_a_device_share_its_memory() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(2, 3, 4)))
    machine.handle(Reserve(A, 2, 600), 1)
    full = refusal(machine, Reserve(A, 3, 401))
    assert isinstance(full, OutOfDeviceMemoryError)
    assert full.facts == {"device": 1, "total": 1000, "used": 600, "needed": 401}
    (effect,) = machine.handle(Reserve(A, 3, 400), 1)
    assert isinstance(effect, Changed)
    assert effect.process.reserved == ((2, 600), (3, 400))
    assert machine.used_bytes(1) == 1000
    assert refusal(machine, Reserve(A, 2, 601)).facts == {
        "device": 1,
        "total": 1000,
        "used": 1000,
        "needed": 1,
    }
    assert isinstance(machine.handle(Reserve(A, 4, 1000), 1)[0], Changed)
    assert machine.lifetime["allocations_refused"] == 2


def test_only_the_owner_of_a_core_reserves_for_it() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(0,)))
    machine.handle(Reserve(A, 0, 10), 1)
    assert isinstance(refusal(machine, Reserve(A, 1, 1)), InvalidParamsError)
    assert isinstance(refusal(machine, Reserve(B, 0, 1)), InvalidParamsError)
    assert isinstance(refusal(machine, Reserve(A, 0, -1)), InvalidParamsError)
    assert machine.used_bytes(0) == 10


def test_a_repeated_reservation_changes_nothing() -> None:
    machine = MachineState(LAYOUT)
    cores_of(machine, register(A, cores=(0,)))
    for total_bytes in (10, 10, 4, 4, 15, 15, 0, 0):
        (effect,) = machine.handle(Reserve(A, 0, total_bytes), 1)
        assert isinstance(effect, Changed)
        assert machine.used_bytes(0) == total_bytes
    assert machine.processes[A].reserved == ()


def process(key: ProcessKey, cores: tuple[int, ...], *reserved: tuple[int, int]) -> Process:
    return Process(key, 0, "", "job", "2.0", bool(cores), cores, 1, reserved)


def test_an_adopted_process_has_what_it_had() -> None:
    machine = MachineState(LAYOUT, History({"processes": 4}))
    (effect,) = machine.handle(Adopt(process(A, (0, 1), (1, 300))), 1)
    assert isinstance(effect, Joined)
    assert machine.used_bytes(0) == 300
    assert isinstance(refusal(machine, register(B, cores=(1,))), CoresBusyError)
    assert machine.lifetime["processes"] == 4


@pytest.mark.parametrize(
    "claim",
    [
        process(A, (1, 2)),
        process(B, (0,), (0, 1001)),
        process(B, (0,), (1, 5)),
        process(B, (0,), (0, -5)),
        process(B, (99,)),
        process(C, (0, 2)),
    ],
)
def test_a_claim_that_contradicts_the_machine_is_not_adopted(claim: Process) -> None:
    machine = MachineState(LAYOUT)
    machine.handle(Adopt(process(A, (2,))), 1)
    refusal(machine, Adopt(claim))
    assert list(machine.processes) == [A]
    assert machine.claimed_count() == 1


keys = st.sampled_from([A, B, C, ProcessKey(10, 9)])
core_ids = st.integers(-1, 8)
sizes = st.integers(-1, 700)


class AnyHistory(RuleBasedStateMachine):
    """Whatever is asked in whatever order, the books are right."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = MachineState(LAYOUT)
        self.joined: dict[ProcessKey, Process] = {}

    def reserved(self, key: ProcessKey, core: int) -> int:
        return self.joined[key].reserved_on(core) if key in self.joined else 0

    def apply(self, event: Event) -> bool:
        """Whether it was granted."""
        try:
            effects = self.machine.handle(event, 1)
        except RefusedError:
            return False
        for effect in effects:
            match effect:
                case Joined() | Changed():
                    self.joined[effect.process.key] = effect.process
                case Left():
                    del self.joined[effect.process.key]
        return True

    @rule(
        key=keys,
        cores=st.none() | st.lists(core_ids, max_size=3).map(tuple),
        count=st.none() | st.integers(-1, 9),
    )
    def register(self, key: ProcessKey, cores: tuple[int, ...] | None, count: int | None) -> None:
        self.apply(register(key, cores=cores, count=count))

    @rule(key=keys, cores=st.lists(core_ids, max_size=3).map(tuple), size=sizes)
    def adopt(self, key: ProcessKey, cores: tuple[int, ...], size: int) -> None:
        self.apply(Adopt(process(key, cores, *[(core, size) for core in cores[:1]])))

    @rule(key=keys)
    def leave(self, key: ProcessKey) -> None:
        self.apply(Leave(key))

    @rule(key=keys, core=core_ids, size=sizes | st.just(0))
    def reserve(self, key: ProcessKey, core: int, size: int) -> None:
        if self.apply(Reserve(key, core, size)):
            assert self.reserved(key, core) == size

    @invariant()
    def effects_tell_everything(self) -> None:
        assert self.joined == self.machine.processes

    @invariant()
    def every_core_has_one_owner_or_none(self) -> None:
        claims = [core for member in self.joined.values() for core in member.cores]
        assert len(claims) == len(set(claims)) == self.machine.claimed_count()
        for core in range(LAYOUT.core_count):
            owner = self.machine.owner(core)
            assert (core in claims) == (owner is not None)
            assert owner is None or core in owner.cores

    @invariant()
    def memory_adds_up_and_fits(self) -> None:
        for device in range(LAYOUT.device_count):
            held = [
                nbytes
                for member in self.joined.values()
                for core, nbytes in member.reserved
                if LAYOUT.device_of(core) == device
            ]
            assert all(nbytes > 0 for nbytes in held)
            assert self.machine.used_bytes(device) == sum(held) <= LAYOUT.memory_bytes


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyHistory = AnyHistory.TestCase


def test_memory_errors_are_counted_by_device_and_set_to_zero_one_by_one_or_all() -> None:
    machine = MachineState(LAYOUT)
    corrected, uncorrected = HardwareCounter.MEM_ECC_CORRECTED, HardwareCounter.SRAM_ECC_UNCORRECTED
    assert machine.handle(CountHardware(1, corrected, 3), 0) == (DeviceChanged(1),)
    machine.handle(CountHardware(1, uncorrected), 0)
    assert machine.hardware[1] == HardwareCounters(mem_ecc_corrected=3, sram_ecc_uncorrected=1)
    assert machine.hardware[0] == HardwareCounters()
    machine.handle(ResetHardware(1, corrected), 0)
    assert machine.hardware[1] == HardwareCounters(sram_ecc_uncorrected=1)
    assert MachineState(LAYOUT, machine.history()).hardware == machine.hardware
    machine.handle(ResetHardware(1), 0)
    assert machine.history().hardware == {}


@pytest.mark.parametrize(
    "event",
    [
        CountHardware(4, HardwareCounter.MEM_ECC_CORRECTED),
    ],
)
def test_invalid_memory_errors_are_refused(event: CountHardware) -> None:
    machine = MachineState(LAYOUT)
    refusal(machine, event)
    assert machine.history().hardware == {}


def test_what_processes_did_stays_with_the_cores_after_they_left() -> None:
    machine = MachineState(LAYOUT)
    first = CoreTotals(0, 10, 3, 100, 5, 1, ((1004, 1),))
    for key in (A, B):
        machine.handle(register(key, cores=(0,)), 0)
        machine.handle(Leave(key, core_totals=(first,)), 0)
    assert machine.history().core_totals == (CoreTotals(0, 20, 6, 200, 10, 2, ((1004, 2),)),)


@pytest.mark.parametrize(("core", "device", "nc"), [(0, 0, 0), (5, 2, 1), (6, 3, 0)])
def test_a_hit_names_the_device_and_the_core_inside_it(core: int, device: int, nc: int) -> None:
    registry = FaultRegistry.__new__(FaultRegistry)
    registry._layout = LAYOUT
    fault: Any = SimpleNamespace(id=1, kind=FaultKind.HANG, spec=SimpleNamespace(to=None, factor=1.0))
    hit = registry._make_hit(fault, cast("Any", SimpleNamespace(core=core)), 5, lasting=False)
    assert (hit.device, hit.nc, hit.status, hit.peer) == (device, nc, 5, None)
