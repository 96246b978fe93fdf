"""The rules of faults, by events and times alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.machine import codec
from neurontools.machine.devices import Layout
from neurontools.machine.events import (
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    Joined,
    KernelLine,
    Leave,
    Register,
    TakeFault,
    Tick,
)
from neurontools.machine.faults.kinds import KINDS, EccType, FaultKind, Reach
from neurontools.machine.faults.params import Action, Fault, FaultSpec, Hit, Phase, Victim
from neurontools.machine.faults.registry import MAX_FAULTS, FaultRecord, FaultRegistry
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import DeviceLostError, InvalidParamsError, RefusedError
from neurontools.machine.requests import ClearFaults, ProcessSpec, ReleaseFault, ResetDevice
from neurontools.machine.state import MachineState

RING = tuple(((device - 1) % 4, (device + 1) % 4) for device in range(4))
LAYOUT = Layout(device_count=4, cores_per_device=2, memory_bytes=1000, links=RING)
A, B = ProcessKey(10, 1), ProcessKey(11, 2)
S = 1_000_000_000


class Bench:
    """A machine and a clock."""

    def __init__(self) -> None:
        self.machine = MachineState(LAYOUT)
        self.now_ns = 0
        self.said: list[str] = []

    def after(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self._heard(self.machine.handle(Tick(), self.now_ns))

    def inject(self, kind: str, **wish: Any) -> Fault:
        answer, *others = self.machine.handle(FaultSpec(FaultKind(kind), **wish), self.now_ns)
        self._heard(others)
        assert isinstance(answer, FaultInjected), answer
        return answer.fault

    def refused(self, kind: str, **wish: Any) -> str:
        with pytest.raises(InvalidParamsError) as caught:
            self.machine.handle(FaultSpec(FaultKind(kind), **wish), self.now_ns)
        return caught.value.message

    def take(self, core: int, pid: int = 1, tag: str = "", **more: Any) -> Hit | None:
        event = TakeFault(Victim(pid, tag, core, **more))
        answer, *others = self.machine.handle(event, self.now_ns)
        self._heard(others)
        assert isinstance(answer, FaultTaken)
        return answer.hit

    def statuses(self, core: int, times: int) -> list[int]:
        hits = [self.take(core) for _ in range(times)]
        return [0 if hit is None else hit.status for hit in hits]

    def phases(self) -> list[str]:
        return [str(fault.phase) for fault in self.machine.faults.faults()]

    def register(self, key: ProcessKey, *cores: int, reset: bool = True) -> Any:
        event = Register(key, 0, ProcessSpec("trainer", cores=cores or None), reset_cores=reset)
        (effect,) = self.machine.handle(event, self.now_ns)
        return effect

    def _heard(self, effects: Any) -> None:
        self.said += [effect.text for effect in effects if isinstance(effect, KernelLine)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


EXECUTION_KINDS = [
    str(kind) for kind, facts in KINDS.items() if facts.reach is Reach.EXECUTION and facts.status
]


@pytest.mark.parametrize("kind", EXECUTION_KINDS)
def test_an_execution_ends_with_the_status_of_the_kind_as_often_as_wanted(bench: Bench, kind: str) -> None:
    bench.inject(kind, core=3, count=2)
    status = KINDS[FaultKind(kind)].status
    assert bench.statuses(2, 1) == [0]
    assert bench.statuses(3, 3) == [status, status, 0]


def test_a_fault_is_armed_when_its_time_has_come_and_not_before(bench: Bench) -> None:
    bench.inject("generic", after_s=2.0, count=1)
    assert bench.machine.faults.next_ns() == 2 * S
    bench.after(1.999)
    assert bench.phases() == ["waiting"]
    assert bench.take(0) is None
    bench.after(0.001)
    assert bench.phases() == ["armed"]
    assert bench.statuses(0, 2) == [1004, 0]
    assert bench.phases() == []


def test_the_given_number_of_executions_passes_first(bench: Bench) -> None:
    bench.inject("oob", core=1, after_executions=2, count=1)
    assert bench.statuses(0, 3) == [0, 0, 0]
    assert bench.statuses(1, 4) == [0, 0, 1006, 0]


def test_without_a_count_a_fault_goes_on_until_it_is_cleared_or_its_duration_is_over(bench: Bench) -> None:
    endless, limited = bench.inject("bad-input", core=0), bench.inject("oob", core=2, duration_s=3.0)
    assert bench.statuses(0, 50) == [1002] * 50
    bench.after(2.9)
    assert bench.statuses(2, 2) == [1006, 1006]
    bench.after(0.1)
    assert bench.statuses(2, 1) == [0]
    (effect, *_) = bench.machine.handle(ClearFaults((endless.id,)), bench.now_ns)
    assert effect == FaultsCleared((endless.id,))
    assert bench.statuses(0, 1) == [0]
    assert limited.left is None


def test_a_fault_can_be_aimed_at_a_process_or_at_all_with_a_tag(bench: Bench) -> None:
    bench.inject("timeout", pid=10)
    bench.inject("generic", tag="trainer", device=1)
    assert [bench.take(0, pid=pid) is not None for pid in (10, 11)] == [True, False]
    hits = [bench.take(core, pid=11, tag=tag) for core, tag in ((2, "trainer"), (2, "x"), (0, "trainer"))]
    assert [hit is not None for hit in hits] == [True, False, False]


def test_memory_seems_full_to_allocations_only(bench: Bench) -> None:
    bench.inject("oom", core=0, count=1)
    assert bench.take(0) is None
    hit = bench.take(0, action=Action.ALLOCATION, nbytes=77)
    assert hit is not None
    assert (hit.status, hit.device, hit.nc) == (4, 0, 0)
    assert bench.take(0, action=Action.ALLOCATION) is None
    assert bench.said == [
        "neuron:mc_alloc: device mempool [0:0] total 1000 occupied 1000 needed 77 available 0"
    ]


def test_a_hang_is_held_until_it_is_cleared_or_let_go(bench: Bench) -> None:
    first, second = bench.inject("hang", core=0, count=1), bench.inject("hang", core=1, count=1)
    for core, fault in ((0, first), (1, second)):
        hit = bench.take(core, pid=7)
        assert hit is not None
        assert (hit.kind, hit.fault) == (FaultKind.HANG, fault.id)
        assert bench.machine.faults.holds(fault.id, 7, core)
        assert not bench.machine.faults.holds(fault.id, 8, core)
    assert bench.phases() == ["holding", "holding"]
    bench.machine.handle(ClearFaults((first.id,)), 0)
    assert not bench.machine.faults.holds(first.id, 7, 0)
    bench.machine.handle(ReleaseFault(core=1, pid=7), 0)
    assert bench.phases() == []


def test_who_is_gone_hangs_no_more(bench: Bench) -> None:
    assert isinstance(bench.register(A, 0), Joined)
    bench.inject("hang", core=0, count=1)
    assert bench.take(0, pid=A.pid) is not None
    bench.machine.handle(Leave(A), 0)
    assert bench.phases() == []


@pytest.mark.parametrize(
    ("ecc", "status", "word"),
    [
        ("mem-uncorrected", 1201, "HBM_UNCORRECTABLE_ERROR"),
        ("mem-repairable-uncorrected", 1205, "HBM_UNCORRECTABLE_ERROR"),
        ("sram-uncorrected", 1202, "SRAM_UNCORRECTABLE_ERROR"),
    ],
)
def test_an_uncorrectable_error_breaks_the_device_until_it_is_reset(
    bench: Bench, ecc: str, status: int, word: str
) -> None:
    bench.inject("ecc", device=1, ecc=EccType(ecc), count=2)
    counters = bench.machine.hardware[1]
    assert sum(getattr(counters, name) for name in counters.__struct_fields__) == 2
    assert bench.statuses(0, 1) == [0]
    assert bench.statuses(2, 1) == [status]
    assert bench.statuses(3, 3) == [status, 101, 101]
    assert bench.phases() == ["broken"]
    bench.machine.handle(ResetDevice(1), 0)
    assert bench.statuses(3, 1) == [0]
    assert bench.machine.hardware[1] == counters, "a reset keeps the counters"
    assert [f" NEURON_HW_ERR={word} " in line for line in bench.said] == [True]


@pytest.mark.parametrize("ecc", ["mem-corrected", "sram-corrected"])
def test_corrected_errors_are_counted_and_are_harmless(bench: Bench, ecc: str) -> None:
    fault = bench.inject("ecc", core=4, ecc=EccType(ecc), amount=50)
    assert (fault.phase, fault.hits) == (Phase.OVER, 1)
    assert bench.statuses(4, 1) == [0]
    assert getattr(bench.machine.hardware[2], ecc.replace("-", "_ecc_")) == 50
    assert bench.said == []


def test_a_storm_brings_errors_at_its_rate_also_after_the_clock_stood_still(bench: Bench) -> None:
    bench.inject("ecc", device=0, ecc=EccType.MEM_CORRECTED, every_s=0.5, amount=10, count=7)
    assert bench.machine.hardware[0].mem_ecc_corrected == 10
    bench.after(0.5)
    assert bench.machine.hardware[0].mem_ecc_corrected == 20
    bench.after(1.7)
    assert bench.machine.hardware[0].mem_ecc_corrected == 50
    bench.after(1000)
    assert bench.machine.hardware[0].mem_ecc_corrected == 70
    assert bench.phases() == []


def test_a_storm_ends_with_its_duration(bench: Bench) -> None:
    bench.inject("ecc", device=0, ecc=EccType.SRAM_CORRECTED, every_s=1.0, duration_s=2.5)
    bench.after(100)
    assert bench.machine.hardware[0].sram_ecc_corrected == 3
    assert bench.phases() == []


def test_a_new_process_mends_its_own_cores_unless_it_does_not_want_to(bench: Bench) -> None:
    bench.inject("ecc", device=1)
    bench.register(A, 2, reset=False)
    assert bench.statuses(2, 2) == [1201, 101]
    bench.machine.handle(Leave(A), 0)
    bench.register(A, 2)
    assert bench.statuses(2, 1) == [0]
    assert bench.statuses(3, 1) == [101]
    assert bench.machine.faults.unhealthy(1) == ("hbm",)


def test_a_device_in_use_is_reset_by_force_only(bench: Bench) -> None:
    bench.inject("ecc", device=1)
    bench.register(A, 2, reset=False)
    with pytest.raises(RefusedError, match="device 1 is in use: process 10 holds core 2"):
        bench.machine.handle(ResetDevice(1), 0)
    bench.machine.handle(ResetDevice(1, force=True), 0)
    assert bench.statuses(2, 1) == [0]
    with pytest.raises(InvalidParamsError, match="no device 9"):
        bench.machine.handle(ResetDevice(9), 0)


def test_a_lost_device_can_not_be_used_claimed_or_reset(bench: Bench) -> None:
    fault = bench.inject("device-lost", device=1)
    assert bench.statuses(2, 2) == [101, 101]
    hit = bench.take(3, action=Action.ALLOCATION)
    assert hit is not None
    assert hit.status == 6
    for use in (
        lambda: bench.machine.handle(ResetDevice(1), 0),
        lambda: bench.machine.handle(ResetDevice(1, force=True), 0),
        lambda: bench.register(A, 1, 2),
        lambda: bench.register(A),
    ):
        with pytest.raises(DeviceLostError) as caught:
            use()
        assert caught.value.device == 1
    bench.machine.handle(ClearFaults((fault.id,)), 0)
    assert bench.statuses(2, 1) == [0]
    assert isinstance(bench.register(A), Joined)


def test_any_cores_are_those_of_devices_that_are_there(bench: Bench) -> None:
    bench.inject("device-lost", device=0)
    event = Register(A, 0, ProcessSpec(count=2))
    (effect,) = bench.machine.handle(event, 0)
    assert isinstance(effect, Joined)
    assert effect.process.cores == (2, 3)


def test_a_broken_link_stops_collectives_and_every_group_that_spans_it(bench: Bench) -> None:
    bench.inject("link-down", device=1, to=2)
    faults = bench.machine.faults
    assert [faults.links_down(device) for device in range(4)] == [(), (2,), (1,), ()]
    assert bench.take(2) is None
    collective = bench.take(4, collective=True)
    assert collective is not None
    assert (collective.status, collective.device, collective.peer) == (1200, 2, 1)
    assert bench.take(0, collective=True) is None
    spanning = bench.take(3, peers=(3, 4))
    assert spanning is not None
    assert spanning.peer == 2
    assert bench.take(3, peers=(2, 3)) is None


def test_neighbours_of_a_lost_device_have_no_link_to_it(bench: Bench) -> None:
    bench.inject("device-lost", device=0)
    assert bench.machine.faults.health(1) == (False, (0,), ("link_intraserver",))
    assert bench.machine.faults.health(0)[0] is True
    assert bench.machine.faults.health(2) == (False, (), ())


def test_a_slow_core_tells_how_slow(bench: Bench) -> None:
    bench.inject("slow-core", core=5, factor=3.5)
    hit = bench.take(5)
    assert hit is not None
    assert (hit.status, hit.factor) == (0, 3.5)
    assert bench.take(4) is None


def test_processes_are_notified_of_the_faults_that_may_hit_them(bench: Bench) -> None:
    one, other = (bench.register(key, *cores).process for key, cores in ((A, (0, 1)), (B, (2,))))

    def armed() -> tuple[int, int]:
        return bench.machine.faults.armed_for(one), bench.machine.faults.armed_for(other)

    assert armed() == (0, 0)
    bench.inject("generic", after_s=1)
    assert armed() == (0, 0), "it waits"
    bench.after(1)
    assert armed() == (1, 1)
    bench.inject("hang", core=1, count=1)
    bench.inject("oom", pid=B.pid)
    bench.inject("ecc", device=1)
    bench.inject("ecc", device=1, ecc=EccType.MEM_CORRECTED, every_s=1.0)
    assert armed() == (2, 3)
    bench.inject("link-down", device=0, to=3)
    bench.inject("timeout", tag="nobody")
    bench.inject("timeout", tag="trainer")
    assert armed() == (4, 4)


@pytest.mark.parametrize(
    ("kind", "wish", "said"),
    [
        ("hang", {"core": 8}, "no core 8"),
        ("hang", {"device": -1}, "no device -1"),
        ("hang", {"core": 3, "device": 0}, "core 3 is on device 1, not on device 0"),
        ("hang", {"pid": 0}, "invalid process id 0"),
        ("hang", {"to": 1}, "hang does not take a second device, only link-down does"),
        ("ecc", {}, "ecc needs a device"),
        ("ecc", {"device": 0, "pid": 4}, "ecc affects a device, not a process or a link"),
        ("device-lost", {"core": 1}, "device-lost affects a whole device, not core 1"),
        ("device-lost", {"device": 1, "count": 2}, "device-lost does not take a count"),
        ("link-down", {"device": 1}, "link-down needs the two devices of a link"),
        ("link-down", {"device": 1, "to": 3}, "device 1 has no link to device 3"),
        ("link-down", {"device": 1, "to": 2, "core": 2}, "link-down affects a link"),
        ("hang", {"after_s": -1.0}, "delay -1 s out of range: must be 0 s to 1 year"),
        ("hang", {"after_s": float("inf")}, "delay inf s out of range"),
        ("hang", {"duration_s": 0.0}, "duration 0 s out of range: must be 0.001 s to 1 year"),
        ("ecc", {"device": 0, "every_s": 0.0}, "interval 0 s out of range"),
        ("hang", {"every_s": 1.0}, "hang does not take an interval, only ecc does"),
        ("hang", {"count": 0}, "count 0 out of range"),
        ("hang", {"after_executions": -1}, "number of executions to pass -1 out of range"),
        ("ecc", {"device": 0, "amount": 0}, "number of memory errors 0 out of range"),
        (
            "ecc",
            {"device": 0, "after_executions": 3},
            "ecc can't wait for executions",
        ),
        ("slow-core", {"factor": 0.5}, "factor 0.5 out of range: must be 1 to 1e+06"),
        ("slow-core", {"factor": float("nan")}, "factor nan out of range"),
    ],
)
def test_invalid_requests_are_refused(bench: Bench, kind: str, wish: dict[str, Any], said: str) -> None:
    assert bench.refused(kind, **wish).startswith(said)
    assert bench.machine.faults.faults() == ()


def test_there_is_an_end_to_how_many_faults_a_machine_keeps(bench: Bench) -> None:
    for _ in range(MAX_FAULTS):
        bench.inject("hang", after_s=9.0)
    assert bench.refused("hang") == f"this machine already has {MAX_FAULTS} faults"


def test_a_fault_that_is_not_there_can_not_be_cleared(bench: Bench) -> None:
    bench.inject("hang")
    with pytest.raises(InvalidParamsError) as caught:
        bench.machine.handle(ClearFaults((1, 2)), 0)
    assert (caught.value.message, caught.value.remedy) == ("no fault 2", "the faults of this machine: 1")
    assert len(bench.machine.faults.faults()) == 1


def test_the_journal_keeps_every_fault_as_it_is(bench: Bench) -> None:

    bench.inject("ecc", device=1)
    bench.inject("hang", core=0, count=3, tag="trainer", after_executions=1)
    bench.inject("slow-core", factor=4, after_s=9.5, duration_s=1)
    for _ in range(3):
        bench.take(0, pid=5, tag="trainer")
    bench.take(2)
    record = bench.machine.faults.record()
    copy = codec.decode(codec.encode(record), FaultRecord)
    assert copy == record
    again = FaultRegistry(LAYOUT, copy)
    assert again.inject(FaultSpec(FaultKind.HANG), 0) == 4


TARGETS = st.fixed_dictionaries(
    {},
    optional={
        "core": st.integers(0, 7),
        "pid": st.integers(1, 3),
        "tag": st.sampled_from(["x", "y"]),
    },
)


@settings(max_examples=60)
@given(
    kinds=st.lists(
        st.tuples(
            st.sampled_from([*EXECUTION_KINDS, "oom", "slow-core"]),
            TARGETS,
            st.integers(1, 4),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=4,
    ),
    asked=st.lists(
        st.tuples(
            st.integers(0, 7), st.integers(1, 3), st.sampled_from(["x", "y"]), st.sampled_from(list(Action))
        ),
        max_size=60,
    ),
    restarts=st.booleans(),
)
def test_never_more_hits_than_the_count_and_no_other_process_is_hit(
    kinds: list[Any], asked: list[Any], restarts: bool
) -> None:
    bench = Bench()
    specs = {
        bench.inject(kind, count=count, after_executions=passing, **target).id: (kind, target, count)
        for kind, target, count, passing in kinds
    }
    hits: dict[int, int] = dict.fromkeys(specs, 0)
    for core, pid, tag, action in asked:
        if restarts:
            bench.machine = MachineState(LAYOUT, None, bench.machine.faults.record())
        hit = bench.take(core, pid=pid, tag=tag, action=action)
        if hit is None:
            continue
        kind, target, _ = specs[hit.fault]
        hits[hit.fault] += 1
        assert {"core": core, "pid": pid, "tag": tag}.items() >= target.items()
        assert (kind == "oom") == (action is Action.ALLOCATION)
    assert all(hits[number] <= specs[number][2] for number in specs)
