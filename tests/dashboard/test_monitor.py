"""The monitor remembers what happened and says which alerts begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.dashboard.alerts import Alert, Condition, Rule
from neurontools.dashboard.events import MachineEventKind
from neurontools.dashboard.machine_history import MACHINE, HistorySlot, MachineHistory
from neurontools.dashboard.monitor import MachineMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.snapshot import ProcessState, Snapshot

    MonitoredMachine = Callable[..., Snapshot]
    Process = Callable[..., ProcessState]

IDLE = (Rule(Condition.IDLE_CLAIM, 0.01, for_s=2.0),)


def test_an_alert_begins_once_and_ends_once(machine_at: MonitoredMachine, process_at: Process) -> None:
    begun: list[Alert] = []
    monitor = MachineMonitor(IDLE, begun.append)
    for second in range(6):
        monitor.look(machine_at(second, process_at(7)))
    assert [(alert.condition, alert.pid) for alert in begun] == [(Condition.IDLE_CLAIM, 7)]
    assert list(monitor.alerts_of_pid) == [7]
    monitor.look(machine_at(6, process_at(7, busy_ns=10**9)))
    assert monitor.alerts == ()
    kinds = [one.kind for one in monitor.events]
    assert kinds == [MachineEventKind.ALERT, MachineEventKind.ALERT_OVER]


def test_it_looks_once_a_second_however_often_it_is_asked(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    monitor = MachineMonitor()
    for tenth in range(20):
        monitor.look(machine_at(tenth / 10, process_at(7, statuses=((0, tenth), (5, tenth)))))
    (failed,) = [one for one in monitor.events if one.kind is MachineEventKind.FAILED]
    assert failed.count == 18
    assert failed.text.endswith("(18 times)")


def test_another_machine_ends_all_alerts_and_is_not_compared(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    monitor = MachineMonitor((Rule(Condition.LOST_DEVICE, 0),))
    snapshot = machine_at(0)
    lost = (replace(snapshot.devices[0], lost=True), snapshot.devices[1])
    monitor.look(snapshot)
    monitor.look(machine_at(1, devices=lost))
    assert list(monitor.alerts_of_device) == [0]
    monitor.forget_machine()
    assert monitor.alerts == ()
    before = monitor.seen
    monitor.look(machine_at(2, process_at(9)))
    assert monitor.seen == before


def test_what_is_remembered_is_limited_and_all_is_counted(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    monitor = MachineMonitor(kept=3)
    for second in range(8):
        monitor.look(machine_at(second, process_at(100 + second)))
    assert len(monitor.events) == 3
    assert monitor.seen == 14


def test_a_rate_belongs_to_every_second_of_its_interval(machine_at: MonitoredMachine) -> None:
    history = MachineHistory()
    history.add(machine_at(0), machine_at(5), {0: 1.0, 1: 0.5, 2: 0.0, 3: 0.0})
    minute = history.minute(("core", 0))
    assert minute[-5:] == (HistorySlot(1.0, 1.0),) * 5
    assert minute[-6] is None
    assert history.minute(("device", 0))[-1] == HistorySlot(0.75, 0.75)
    assert history.hour(MACHINE)[-1] == HistorySlot(0.375, 0.375)
    assert history.minute(("device", 9)) == ()


def test_a_machine_of_another_shape_begins_anew(machine_at: MonitoredMachine) -> None:
    history = MachineHistory()
    history.add(machine_at(0), machine_at(1), {0: 1.0})
    other = machine_at(2).devices[:1]
    history.add(machine_at(1, devices=other), machine_at(2, devices=other), {0: 0.5})
    assert [slot for slot in history.minute(("core", 0)) if slot] == [HistorySlot(0.5, 0.5)]
    assert history.minute(("core", 3)) == ()


def test_what_is_counted_goes_on_as_one_happening_until_it_pauses(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    monitor = MachineMonitor(())
    failed = 0
    for second in range(30):
        failed += second < 5 or second > 20
        monitor.look(machine_at(second, process_at(7, statuses=((0, second), (1004, failed)))))
    found = [(one.count, one.unix_s) for one in monitor.events if one.kind is MachineEventKind.FAILED]
    assert found == [(4, 104.0), (9, 129.0)]
    assert monitor.seen == len(monitor.events)


def test_ranks_of_a_job_are_each_others_peers(machine_at: MonitoredMachine, process_at: Process) -> None:
    def ranks(second: int) -> list[ProcessState]:
        return [
            process_at(
                100 + rank,
                busy_ns=second * 10**9,
                statuses=((0, 10 * second),),
                bucket=30 if rank == 2 else 20,
                cores=(rank,),
                command=f"torchrun train.py --rank {rank}",
            )
            for rank in range(4)
        ]

    monitor = MachineMonitor((Rule(Condition.STRAGGLER, 1.5, for_s=2.0),))
    for second in range(6):
        monitor.look(machine_at(second, *ranks(second)))
    assert list(monitor.alerts_of_pid) == [102]
