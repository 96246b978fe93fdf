"""Runs the user's command when an alert begins: without a shell, without waiting, one at a time for each alert."""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.dashboard.alerts import Alert

PREFIX = "NEURONTOOLS_ALERT"
MOST_AT_ONCE = 16
_MOST_WAITING = 256

_Subject = tuple[str, int | None, int | None]


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
        self._running: dict[_Subject, subprocess.Popen[bytes]] = {}
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
