"""Running the user's command when an alert begins: without a shell, never waited for, once at a time for each alert."""

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
    """Return the words of a command line as a shell would split them; nothing else of a shell is done.

    Raises:
        UsageError: a quotation mark is missing, or there is no word.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--exec-on-alert {text!r}: {error}", "quote it as for a shell") from error
    if not words:
        raise UsageError("--exec-on-alert needs a command", "such as --exec-on-alert 'notify-send Neuron'")
    return words


def check_command(argv: Sequence[str]) -> None:
    """See that there is such a command.

    Raises:
        UsageError: there is none.
    """
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"--exec-on-alert: there is no command {argv[0]!r}", "give its path, or look at PATH"
        )


def alert_environment(alert: Alert) -> dict[str, str]:
    """Return the variables that tell the command of an alert."""
    found = {PREFIX: str(alert.condition), f"{PREFIX}_TEXT": alert.text}
    if alert.pid is not None:
        found[f"{PREFIX}_PID"] = str(alert.pid)
    if alert.device is not None:
        found[f"{PREFIX}_DEVICE"] = str(alert.device)
    return found


class AlertCommand:
    """Starts the command for alerts, from a thread of its own, since starting takes milliseconds.

    While the command of an alert still runs, the same alert does not start another one; beyond `MOST_AT_ONCE` running
    commands, alerts start none.

    Args:
        argv: the command's words.
        on_failure: gets a line when the command can't be started, from the thread, once for each reason.
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

    def tell(self, alert: Alert) -> None:
        """Run the command for an alert; returns at once."""
        try:
            self._alerts.put_nowait(alert)
        except queue.Full:
            return

    def close(self) -> None:
        """Start what was told so far and no more; what runs goes on."""
        self._alerts.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (alert := self._alerts.get()) is not None:
            self._start(alert)

    def _start(self, alert: Alert) -> None:
        subject = (str(alert.condition), alert.pid, alert.device)
        self._running = {one: process for one, process in self._running.items() if process.poll() is None}
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
