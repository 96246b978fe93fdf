"""The events of a machine so far and its active alerts, from the snapshots of a dashboard.

Evaluated at most once a second: thresholds are in seconds, and a faster screen must not cost more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from neurontools.dashboard.alerts import DEFAULT_RULES, AlertEvaluator
from neurontools.dashboard.events import MachineEvent, MachineEventKind, find_events
from neurontools.dashboard.process_rows import process_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.dashboard.alerts import Alert, Rule
    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.snapshot import Snapshot

KEPT = 1000
_SHORTEST_LOOK_NS = 900_000_000


class MachineMonitor:
    """Keeps the events and evaluates the alert rules.

    Args:
        rules: at most one of each condition.
        on_alert: called with every alert that begins.
        kept: how many events are kept.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = DEFAULT_RULES,
        on_alert: Callable[[Alert], None] | None = None,
        kept: int = KEPT,
    ) -> None:
        self.events: deque[MachineEvent] = deque(maxlen=kept)
        """Events, oldest first, including begin and end of alerts."""
        self.alerts: tuple[Alert, ...] = ()
        """The active alerts; the same object while they are unchanged."""
        self.alerts_of_pid: dict[int, list[Alert]] = {}
        self.alerts_of_device: dict[int, list[Alert]] = {}
        self.seen = 0
        """Number of events so far, including dropped ones."""
        self._newest: dict[tuple[MachineEventKind, str], MachineEvent] = {}
        self._kept = kept
        self._rules = rules
        self._on_alert = on_alert
        self._watch = AlertEvaluator(rules)
        self._last: Snapshot | None = None
        self._judged: tuple[Snapshot, Snapshot, tuple[ProcessRow, ...]] | None = None
        self._no_data_since_s: float | None = None

    def lose(self, why: str, unix_s: float) -> None:
        """Note that data stopped; repeated calls change nothing.

        Args:
            why: a short reason.
            unix_s: time of the last data.
        """
        if self._no_data_since_s is None:
            self._no_data_since_s = unix_s
            self._remember(MachineEvent(unix_s, MachineEventKind.NO_DATA, why))

    def regain(self, unix_s: float) -> None:
        """Note that data arrives; adds an event if it had stopped."""
        since_s, self._no_data_since_s = self._no_data_since_s, None
        if since_s is not None:
            away_s = max(0.0, unix_s - since_s)
            self._remember(MachineEvent(unix_s, MachineEventKind.DATA, f"data is back after {away_s:.0f} s"))

    def look(self, snapshot: Snapshot) -> None:
        """Process a snapshot."""
        last = self._last
        if last is not None and 0 <= snapshot.taken_ns - last.taken_ns < _SHORTEST_LOOK_NS:
            return
        if last is None or snapshot.taken_ns < last.taken_ns:
            self._last = snapshot
            return
        new = find_events(last, snapshot)
        self._remember(*new)
        rows = process_rows(last, snapshot, {})
        self._judged = (last, snapshot, rows)
        self._judge(self._watch.look(snapshot.taken_ns / 1e9, snapshot, rows, new), snapshot.taken_unix_s)
        self._last = snapshot

    def rows_between(self, before: Snapshot | None, after: Snapshot) -> tuple[ProcessRow, ...] | None:
        """Return the rows that were judged, with what was computed for that, if they are of this interval."""
        if self._judged is None or self._judged[0] is not before or self._judged[1] is not after:
            return None
        return self._judged[2]

    def forget_machine(self) -> None:
        """Start over for another machine, and end all alerts."""
        self._last = None
        self._watch = AlertEvaluator(self._rules)
        self._set(())

    def _judge(self, alerts: tuple[Alert, ...], unix_s: float) -> None:
        if alerts == self.alerts:
            return
        before = {_subject(alert): alert for alert in self.alerts}
        now = {_subject(alert): alert for alert in alerts}
        for subject, alert in now.items():
            if subject not in before:
                self._remember(_alert_event(MachineEventKind.ALERT, alert, unix_s))
                if self._on_alert:
                    self._on_alert(alert)
        for subject, alert in before.items():
            if subject not in now:
                self._remember(_alert_event(MachineEventKind.ALERT_OVER, alert, unix_s))
        self._set(alerts)

    def _remember(self, *new: MachineEvent) -> None:
        for event in new:
            self._remember_event(event)

    def _remember_event(self, event: MachineEvent) -> None:
        subject = (event.kind, event.what)
        before = self._newest.get(subject)
        both = before.again(event) if before else None
        if before is not None and both is not None and before in self.events:
            self.events.remove(before)
        else:
            self.seen += 1
        if len(self._newest) > self._kept:
            self._newest.clear()
        self._newest[subject] = both or event
        self.events.append(both or event)

    def _set(self, alerts: tuple[Alert, ...]) -> None:
        self.alerts = alerts
        self.alerts_of_pid, self.alerts_of_device = {}, {}
        for alert in alerts:
            if alert.pid is not None:
                self.alerts_of_pid.setdefault(alert.pid, []).append(alert)
            if alert.device is not None:
                self.alerts_of_device.setdefault(alert.device, []).append(alert)


def _subject(alert: Alert) -> tuple[object, ...]:
    return alert.condition, alert.pid, alert.device


def _alert_event(kind: MachineEventKind, alert: Alert, unix_s: float) -> MachineEvent:
    text = f"{alert.condition}: {alert.text}" + (" (over)" if kind is MachineEventKind.ALERT_OVER else "")
    return MachineEvent(unix_s, kind, text, alert.pid, alert.device)
