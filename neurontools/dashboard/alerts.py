"""Alert rules, their evaluation, and the command that runs for an alert.

An alert begins when its condition has held for the rule's `for_s` and ends when it has not held for `clear_s`.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import threading
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.dashboard.process_rows import job_of
from neurontools.errors import UsageError
from neurontools.machine.machine_view import process_key
from neurontools.machine.snapshot import HardwareCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from neurontools.dashboard.events import MachineEvent
    from neurontools.dashboard.process_rows import Job, ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import ProcessState, Snapshot


WINDOW_S = 10.0

_ExecutionTotals = tuple[float, int, int]

_UNCORRECTED = frozenset(
    {
        HardwareCounter.MEM_ECC_UNCORRECTED,
        HardwareCounter.MEM_ECC_REPAIRABLE_UNCORRECTED,
        HardwareCounter.SRAM_ECC_UNCORRECTED,
    }
)
_FEWEST_PEERS = 3
_ECC_SHOWN_S = 30.0


class ErrorShares:
    """Remembers the totals of each process for `WINDOW_S`."""

    def __init__(self) -> None:
        self._execution_totals: dict[ProcessKey, deque[_ExecutionTotals]] = {}

    def look(self, now_s: float, rows: Sequence[ProcessRow]) -> dict[int, float]:
        """Return by pid the share (0..1) of the executions of the last seconds that failed, where any did.

        Args:
            now_s: on a monotonic clock.
            rows: the processes, over the interval since the last look.
        """
        totals = {}
        shares = {}
        for row in rows:
            key = process_key(row.process)
            seen = self._execution_totals.get(key) or deque([_execution_totals(now_s, row.before)])
            seen.append(_execution_totals(now_s, row.process))
            while len(seen) > 2 and seen[1][0] <= now_s - WINDOW_S:
                seen.popleft()
            totals[key] = seen
            (_, executed, failed), (_, executed_now, failed_now) = seen[0], seen[-1]
            if failed_now > failed and executed_now > executed:
                shares[row.process.pid] = min(1.0, (failed_now - failed) / (executed_now - executed))
        self._execution_totals = totals
        return shares


def _execution_totals(now_s: float, process: ProcessState | None) -> _ExecutionTotals:
    if process is None:
        return now_s, 0, 0
    counts = process.status_counts
    return now_s, sum(count for _, count in counts), sum(count for status, count in counts if status)


class Condition(StrEnum):
    """What a rule checks; `DEFAULT_RULES` has the unit of each threshold."""

    IDLE_CLAIM = "idle-claim"
    DEVICE_MEMORY = "device-memory"
    ERROR_RATE = "error-rate"
    ECC = "ecc"
    STRAGGLER = "straggler"
    LOST_DEVICE = "lost-device"


class Rule(Struct, frozen=True):
    """A threshold; `DEFAULT_RULES` has its unit.

    The condition must hold for `for_s` seconds; the alert ends when it has not held for `clear_s` seconds, so
    that a value that oscillates around the threshold is one alert.
    """

    condition: Condition
    threshold: float
    for_s: float = 0.0
    clear_s: float = 0.0


DEFAULT_RULES = (
    Rule(
        Condition.IDLE_CLAIM, 0.01, for_s=60.0
    ),  # highest share (0..1) of utilization of a process that is idle
    Rule(Condition.DEVICE_MEMORY, 0.90),  # share (0..1) of a device's memory in use
    Rule(Condition.ERROR_RATE, 0.01),  # share (0..1) of a process's executions of ten seconds that failed
    Rule(Condition.ECC, 0),  # uncorrected memory errors since the snapshot before: more than this
    Rule(
        Condition.STRAGGLER, 1.5, for_s=5.0, clear_s=10.0
    ),  # times the median p50 latency of the processes of the same job
    Rule(Condition.LOST_DEVICE, 0),  # lost devices: more than this
)


class Alert(Struct, frozen=True):
    """An exceeded threshold. `pid` or `device` name its subject; `since_s` is on the clock of `AlertEvaluator.look`."""

    condition: Condition
    text: str
    since_s: float
    pid: int | None = None
    device: int | None = None


_Subject = tuple[Condition, int | None, int | None]
_Finding = tuple[_Subject, str]


class AlertEvaluator:
    """Evaluates rules at each snapshot.

    Args:
        rules: at most one of each condition.

    Raises:
        UsageError: two rules have the same condition.
    """

    def __init__(self, rules: Sequence[Rule] = DEFAULT_RULES) -> None:
        self._rules = {rule.condition: rule for rule in rules}
        if len(self._rules) < len(rules):
            raise UsageError("two alert rules for one condition", "keep one of each")
        self._since_s: dict[_Subject, float] = {}
        self._error_shares = ErrorShares()
        self._active: dict[_Subject, tuple[float, str]] = {}
        self._ecc_until_s: dict[int, float] = {}

    def look(
        self,
        now_s: float,
        snapshot: Snapshot,
        rows: Sequence[ProcessRow],
        events: Iterable[MachineEvent],
    ) -> tuple[Alert, ...]:
        """Return the alerts that hold now.

        Args:
            now_s: on a monotonic clock.
            snapshot: the machine.
            rows: its processes, with rates.
            events: since the last call.
        """
        findings = dict(self._findings(now_s, snapshot, rows, events))
        holding = {**self._lasting(now_s, rows), **findings}
        self._since_s = {subject: self._since_s.get(subject, now_s) for subject in holding}
        alerts = tuple(
            Alert(subject[0], text, self._since_s[subject], subject[1], subject[2])
            for subject, text in holding.items()
            if now_s - self._since_s[subject] >= self._rules[subject[0]].for_s
        )
        before, self._active = self._active, {}
        for alert in alerts:
            subject = (alert.condition, alert.pid, alert.device)
            self._active[subject] = (now_s, alert.text) if subject in findings else before[subject]
        return alerts

    def _lasting(self, now_s: float, rows: Sequence[ProcessRow]) -> dict[_Subject, str]:
        """Return conditions that held until recently, of processes that still exist."""
        if not self._active:
            return {}
        pids = {None, *(row.process.pid for row in rows)}
        return {
            subject: text
            for subject, (held_s, text) in self._active.items()
            if subject[1] in pids and now_s - held_s < self._rules[subject[0]].clear_s
        }

    def _findings(
        self, now_s: float, snapshot: Snapshot, rows: Sequence[ProcessRow], events: Iterable[MachineEvent]
    ) -> Iterator[_Finding]:
        yield from self._devices(now_s, snapshot, events)
        yield from self._processes(now_s, rows)
        yield from self._stragglers(rows)

    def _devices(
        self, now_s: float, snapshot: Snapshot, events: Iterable[MachineEvent]
    ) -> Iterator[_Finding]:
        memory, ecc = self._rules.get(Condition.DEVICE_MEMORY), self._rules.get(Condition.ECC)
        lost = self._rules.get(Condition.LOST_DEVICE)
        if memory:
            for device in snapshot.devices:
                share = device.memory_used_bytes / device.memory_bytes if device.memory_bytes else 0.0
                if share > memory.threshold:
                    subject = (Condition.DEVICE_MEMORY, None, device.index)
                    yield subject, f"ND{device.index}: {100 * share:.0f} % of device memory in use"
        if lost:
            for device in snapshot.devices:
                if device.lost:
                    yield (Condition.LOST_DEVICE, None, device.index), f"ND{device.index} is lost"
        if ecc:
            for event in events:
                if event.counter in _UNCORRECTED and event.device is not None and event.count > ecc.threshold:
                    self._ecc_until_s[event.device] = now_s + _ECC_SHOWN_S
            for index, until_s in list(self._ecc_until_s.items()):
                if now_s < until_s:
                    yield (Condition.ECC, None, index), f"ND{index}: uncorrected memory errors"
                else:
                    del self._ecc_until_s[index]

    def _processes(self, now_s: float, rows: Sequence[ProcessRow]) -> Iterator[_Finding]:
        idle, errors = self._rules.get(Condition.IDLE_CLAIM), self._rules.get(Condition.ERROR_RATE)
        failing = self._error_shares.look(now_s, rows) if errors else {}
        for row in rows:
            process = row.process
            if idle and process.cores and row.utilization <= idle.threshold:
                cores = f"{len(process.cores)} core{'s' if len(process.cores) > 1 else ''}"
                yield (Condition.IDLE_CLAIM, process.pid, None), f"process {process.pid} holds {cores} idle"
            if errors and (share := failing.get(process.pid, 0.0)) > errors.threshold:
                text = f"process {process.pid}: {100 * share:.1f} % of its executions fail"
                yield (Condition.ERROR_RATE, process.pid, None), text

    def _stragglers(self, rows: Sequence[ProcessRow]) -> Iterator[_Finding]:
        rule = self._rules.get(Condition.STRAGGLER)
        if rule is None:
            return
        groups: dict[Job, list[tuple[ProcessRow, float]]] = {}
        for row in rows:
            latency_s = row.latency_s(50)
            if latency_s is not None:
                groups.setdefault(job_of(row.process), []).append((row, latency_s))
        for group in groups.values():
            if len(group) < _FEWEST_PEERS:
                continue
            from statistics import median

            typical_s = median(latency_s for _, latency_s in group)
            for row, latency_s in group:
                if latency_s > rule.threshold * typical_s:
                    pid = row.process.pid
                    text = f"process {pid} is {latency_s / typical_s:.1f} times slower than its peers"
                    yield (Condition.STRAGGLER, pid, None), text


PREFIX = "NEURONTOOLS_ALERT"
MOST_AT_ONCE = 16
_MOST_WAITING = 256


def split_command(text: str) -> tuple[str, ...]:
    """Split a command line into words like a shell; there are no other shell features.

    Raises:
        UsageError: a quotation mark is missing, or it is empty.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--exec-on-alert {text!r}: {error}", "quote it as for a shell") from error
    if not words:
        raise UsageError("--exec-on-alert needs a command", "such as --exec-on-alert 'notify-send Neuron'")
    return words


def check_command(argv: Sequence[str]) -> None:
    """Check that a command exists.

    Raises:
        UsageError: it does not exist.
    """
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"--exec-on-alert: command not found: {argv[0]!r}", "give its full path, or check PATH"
        )


def alert_environment(alert: Alert) -> dict[str, str]:
    """Return the environment variables that describe an alert."""
    found = {PREFIX: str(alert.condition), f"{PREFIX}_TEXT": alert.text}
    if alert.pid is not None:
        found[f"{PREFIX}_PID"] = str(alert.pid)
    if alert.device is not None:
        found[f"{PREFIX}_DEVICE"] = str(alert.device)
    return found


class AlertCommand:
    """Starts the command for alerts from its own thread, because starting takes milliseconds.

    While the command of an alert runs, the same alert starts no second one; with `MOST_AT_ONCE` running
    commands, no alert starts another.

    Args:
        argv: the command's words.
        on_failure: called from the thread with a message when the command cannot be started, once per reason.
    """

    def __init__(self, argv: Sequence[str], on_failure: Callable[[str], None] | None = None) -> None:
        self._argv = list(argv)
        self._on_failure = on_failure
        self._alerts: queue.Queue[Alert | None] = queue.Queue(_MOST_WAITING)
        self._running: dict[tuple[str, int | None, int | None], subprocess.Popen[bytes]] = {}
        self.started = 0
        """How many commands were started."""
        self.failure = ""
        """Why the last one could not be started, "" when it could."""
        self._thread = threading.Thread(target=self._work, name="neuron-top alerts", daemon=True)
        self._thread.start()

    def run(self, alert: Alert) -> None:
        """Run the command for an alert; returns at once."""
        try:
            self._alerts.put_nowait(alert)
        except queue.Full:
            return

    def close(self) -> None:
        """Start the commands of pending alerts, then stop; running commands continue."""
        self._alerts.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (alert := self._alerts.get()) is not None:
            self._start(alert)

    def _start(self, alert: Alert) -> None:
        subject = (str(alert.condition), alert.pid, alert.device)
        self._running = {key: process for key, process in self._running.items() if process.poll() is None}
        if subject in self._running or len(self._running) >= MOST_AT_ONCE:
            return
        try:
            self._running[subject] = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **alert_environment(alert)},
                start_new_session=True,
            )
        except OSError as error:
            failure = f"{self._argv[0]}: {error.strerror}"
            if self._on_failure and failure != self.failure:
                self._on_failure(f"--exec-on-alert: {failure}")
            self.failure = failure
        else:
            self.failure = ""
            self.started += 1
