"""Rates of processes, what happened to them, and when somebody should be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from neurontools.dashboard.alerts import DEFAULT_RULES, AlertEvaluator, Condition, Rule
from neurontools.dashboard.events import MachineEventKind, find_events
from neurontools.dashboard.process_rows import HostUse, ProcessRow, process_rows
from neurontools.errors import UsageError
from neurontools.machine.snapshot import HardwareCounter, HardwareCounters, ProcessState, Snapshot

MakeProcess = Callable[..., ProcessState]
MakeMachine = Callable[..., Snapshot]

HALF_SECOND_NS = 500_000_000


def row(machine_at: MakeMachine, before: ProcessState, after: ProcessState) -> ProcessRow:
    (found,) = process_rows(machine_at(0, before), machine_at(1, after), {})
    return found


def test_rates_are_over_the_interval(machine_at: MakeMachine, process_at: MakeProcess) -> None:
    before = process_at(7, busy_ns=HALF_SECOND_NS, statuses=((0, 10),), cores=(0, 1))
    after = process_at(7, busy_ns=2 * HALF_SECOND_NS, statuses=((0, 40), (1004, 10)), cores=(0, 1))
    found = row(machine_at, before, after)
    assert found.utilization == pytest.approx(0.5)
    assert found.executions_s == pytest.approx(40)
    assert (found.failed_executions, found.failed_share) == (10, 0.25)
    assert found.device_bytes == 200
    assert 2**10 * 1e-6 <= found.latency_s(50) <= 2**10.5 * 1e-6  # type: ignore[operator]


def test_time_of_custom_operators_is_that_of_the_interval(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    def spent(*gpsimd_ns: int) -> ProcessState:
        process = process_at(7, cores=(0, 1))
        uses = zip(process.cores, gpsimd_ns, strict=True)
        return replace(process, cores=tuple(replace(use, gpsimd_ns=spent_ns) for use, spent_ns in uses))

    assert row(machine_at, spent(5, 100), spent(25, 100)).gpsimd_ns == 20
    assert (
        row(machine_at, spent(5, 7), spent(3, 9)).gpsimd_ns == 2
    )  # a counter that began anew takes nothing away
    same = spent(5, 7)
    assert row(machine_at, same, same).gpsimd_ns == 0


def test_without_an_earlier_snapshot_there_are_no_rates(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    after = machine_at(3, process_at(7, busy_ns=10**9, statuses=((0, 5),)))
    (found,) = process_rows(None, after, {(7, 1): HostUse(0.5, 100)})
    assert (found.utilization, found.executions_s, found.host) == (0.0, 0.0, HostUse(0.5, 100))


def test_a_process_that_rests_has_the_rates_of_an_equal_one(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    process = process_at(7, busy_ns=10**9, statuses=((0, 5), (1004, 1)), cores=(0, 1))
    same, equal = row(machine_at, process, process), row(machine_at, replace(process), process)
    assert (same.utilization, same.executions_s, same.failed_share, same.latency_s(50)) == (
        0.0,
        0.0,
        0.0,
        None,
    )
    assert (equal.utilization, equal.executions_s, equal.failed_share, equal.latency_s(50)) == (
        same.utilization,
        same.executions_s,
        same.failed_share,
        same.latency_s(50),
    )


def test_who_only_looks_is_not_a_row_and_a_reused_pid_is_another_process(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    looker = replace(process_at(8), uses_device=False, cores=())
    old, new = process_at(7, busy_ns=10**9), replace(process_at(7, busy_ns=HALF_SECOND_NS), start_ticks=2)
    (found,) = process_rows(machine_at(0, old), machine_at(1, new, looker), {})
    assert found.process is new
    assert found.utilization == pytest.approx(0.5)


def test_what_happened_to_processes(machine_at: MakeMachine, process_at: MakeProcess) -> None:
    before = machine_at(0, process_at(7), process_at(8, statuses=((1004, 1),)))
    after = machine_at(1, process_at(8, statuses=((1004, 3), (77, 1))), process_at(9))
    told = [(one.kind, one.pid, one.count) for one in find_events(before, after)]
    assert sorted(told, key=str) == sorted(
        [
            (MachineEventKind.ENDED, 7, 1),
            (MachineEventKind.STARTED, 9, 1),
            (MachineEventKind.FAILED, 8, 2),
            (MachineEventKind.FAILED, 8, 1),
        ],
        key=str,
    )
    texts = " ".join(one.text for one in find_events(before, after))
    assert "NRT_EXEC_COMPLETED_WITH_ERR (1004) (2 times)" in texts
    assert "NRT status 77" in texts


def test_what_happened_to_devices(machine_at: MakeMachine) -> None:
    before = machine_at(0)
    first, second = before.devices
    worse = (
        replace(first, links_down=(1,), hardware=HardwareCounters(mem_ecc_corrected=4)),
        replace(second, links_down=(0,), lost=True),
    )
    told = [(one.kind, one.device, one.count) for one in find_events(before, machine_at(1, devices=worse))]
    assert told == [
        (MachineEventKind.LINK_DOWN, 0, 1),
        (MachineEventKind.ECC, 0, 4),
        (MachineEventKind.LOST, 1, 1),
    ]
    again = [one.kind for one in find_events(machine_at(1, devices=worse), machine_at(2))]
    assert again == [MachineEventKind.LINK_UP, MachineEventKind.FOUND]


def look(
    watch: AlertEvaluator, now_s: float, before: Snapshot, after: Snapshot
) -> list[tuple[str, int | None, int | None]]:
    rows = process_rows(before, after, {})
    alerts = watch.look(now_s, after, rows, find_events(before, after))
    return [(alert.condition, alert.pid, alert.device) for alert in alerts]


def test_an_idle_claim_is_reported_after_a_while_and_not_for_ever(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    watch = AlertEvaluator([Rule(Condition.IDLE_CLAIM, 0.01, for_s=10)])
    idle, busy = process_at(7), process_at(7, busy_ns=HALF_SECOND_NS)
    assert look(watch, 0, machine_at(0, idle), machine_at(1, idle)) == []
    assert look(watch, 9, machine_at(8, idle), machine_at(9, idle)) == []
    assert look(watch, 10, machine_at(9, idle), machine_at(10, idle)) == [("idle-claim", 7, None)]
    assert look(watch, 11, machine_at(10, idle), machine_at(11, busy)) == []
    assert look(watch, 12, machine_at(11, busy), machine_at(12, busy)) == []


def test_full_devices_errors_and_lost_devices_are_reported_at_once(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    watch = AlertEvaluator(DEFAULT_RULES)
    before = machine_at(0, process_at(7, statuses=((0, 1),)))
    first, second = before.devices
    worse = (
        replace(first, memory_used_bytes=950, hardware=HardwareCounters(sram_ecc_uncorrected=1)),
        replace(second, lost=True),
    )
    after = machine_at(1, process_at(7, statuses=((0, 2), (1201, 1)), busy_ns=1), devices=worse)
    told = set(look(watch, 1, before, after))
    assert told == {
        ("device-memory", None, 0),
        ("ecc", None, 0),
        ("lost-device", None, 1),
        ("error-rate", 7, None),
    }
    assert ("ecc", None, 0) in look(watch, 20, after, after)
    assert ("ecc", None, 0) not in look(watch, 40, after, after)


def test_corrected_errors_are_no_alert(machine_at: MakeMachine) -> None:
    before = machine_at(0)
    corrected = HardwareCounters(**{HardwareCounter.MEM_ECC_CORRECTED: 1000})
    devices = (replace(before.devices[0], hardware=corrected), before.devices[1])
    assert look(AlertEvaluator(), 1, before, machine_at(1, devices=devices)) == []


def test_the_slow_one_among_its_peers_is_reported(machine_at: MakeMachine, process_at: MakeProcess) -> None:
    watch = AlertEvaluator([Rule(Condition.STRAGGLER, 1.5)])
    workers = [process_at(pid, statuses=((0, 10),), cores=(pid,)) for pid in range(3)]
    slow = process_at(3, statuses=((0, 10),), bucket=24, cores=(3,))
    other = process_at(4, statuses=((0, 10),), bucket=40, command="python serve.py")
    assert look(watch, 1, machine_at(0), machine_at(1, *workers, slow, other)) == [("straggler", 3, None)]
    assert look(watch, 2, machine_at(1), machine_at(2, workers[0], slow)) == []


def test_two_rules_for_one_condition_are_refused() -> None:
    with pytest.raises(UsageError, match="two alert rules"):
        AlertEvaluator([Rule(Condition.ECC, 0), Rule(Condition.ECC, 1)])


def test_an_alert_lasts_while_its_condition_comes_and_goes(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    watch = AlertEvaluator([Rule(Condition.IDLE_CLAIM, 0.01, clear_s=5)])
    busy_ns, told = 0, []
    for second in range(1, 20):
        before = machine_at(second - 1, process_at(7, busy_ns=busy_ns))
        busy_ns += 0 if second in {2, 4, 8} else HALF_SECOND_NS
        after = machine_at(second, process_at(7, busy_ns=busy_ns))
        told.append(bool(look(watch, second, before, after)))
    assert told == [second in range(2, 13) for second in range(1, 20)]


def test_an_alert_ends_with_its_process(machine_at: MakeMachine, process_at: MakeProcess) -> None:
    watch = AlertEvaluator([Rule(Condition.IDLE_CLAIM, 0.01, clear_s=60)])
    assert look(watch, 1, machine_at(0, process_at(7)), machine_at(1, process_at(7))) == [
        ("idle-claim", 7, None)
    ]
    assert look(watch, 2, machine_at(1, process_at(7)), machine_at(2)) == []


def test_one_failure_in_a_slow_second_causes_no_alarm_and_many_are_one_until_they_are_past(
    machine_at: MakeMachine, process_at: MakeProcess
) -> None:
    watch = AlertEvaluator([Rule(Condition.ERROR_RATE, 0.01)])
    executed, failed, told = 1000, 0, []
    before = machine_at(0, process_at(7, statuses=((0, executed), (5, failed))))
    for second in range(1, 41):
        executed += 50
        failed += 1 if second == 12 else 10 if second in {20, 21} else 0
        after = machine_at(second, process_at(7, statuses=((0, executed), (5, failed))))
        told.append(bool(look(watch, second, before, after)))
        before = after
    assert told == [second in range(20, 31) for second in range(1, 41)]
