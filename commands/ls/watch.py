"""`neuron-ls --watch`: prints a reply whenever it changed, also across restarts of the machine."""

from __future__ import annotations

import json
import sys
import time
from select import poll

from neurontools import env, paths
from neurontools.commands.ls.output import show
from neurontools.machine.directory import request_recovery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.machine.render_client import Reply

RESTART_S = 3.0
_RETRY_S = 0.05


def watch(replies: Iterable[Reply], *, lines_of_json: bool) -> int | None:
    """Print each reply that differs from the previous one.

    Args:
        replies: the replies, at the period of the watch.
        lines_of_json: the replies are JSON; each becomes one line.

    Returns:
        The exit code of a reply that is a failure or cannot be written, 0 when the reader closed the pipe, None when
        the replies end.
    """
    shown = None
    for reply in replies:
        code, out, err = reply
        if reply != shown:
            ended = show((code, _frame(out, lines_of_json=lines_of_json and not code), err))
            shown = reply
            if ended:
                return ended
        if _reader_closes(0.0):
            return 0
    return None


def replies_of(ask: Callable[[], Reply | None], machine: str, period_s: float) -> Iterator[Reply]:
    """Yield the replies of a machine's daemon, until the machine is stopped.

    A daemon restores its deleted runtime directory, and a killed daemon is replaced (unless NEURONTOOLS_AUTOSTART=0).
    After a stop, a restart is awaited for `RESTART_S` seconds.

    Args:
        ask: sends one request; returns None where no daemon listens.
        machine: the machine's name.
        period_s: time between two requests.
    """
    while (reply := _ask_until_gone(ask, machine)) is not None:
        yield reply
        _reader_closes(period_s)


def _reader_closes(within_s: float) -> bool:
    """Wait up to a time until the reader of standard output closes it; return whether it did."""
    try:
        watched = poll()
        watched.register(1, 0)  # errors and hang-ups are always reported
        return bool(watched.poll(within_s * 1000))
    except OSError:
        return True


def _ask_until_gone(ask: Callable[[], Reply | None], machine: str) -> Reply | None:
    give_up = time.monotonic() + RESTART_S
    while True:
        reply = _ask(ask)
        if reply is not None or time.monotonic() > give_up:
            return reply
        if not request_recovery(paths.machine_dir(machine)):
            _replace_if_killed(machine)
            time.sleep(_RETRY_S)


def _ask(ask: Callable[[], Reply | None]) -> Reply | None:
    try:
        return ask()
    except ConnectionResetError:
        return None


def _replace_if_killed(machine: str) -> None:
    from neurontools.machine import launch

    if env.autostart() and launch.has_crashed(machine):
        launch.ensure_running(machine)


def _frame(out: bytes, *, lines_of_json: bool) -> bytes:
    if lines_of_json:
        return json.dumps(json.loads(out), separators=(",", ":")).encode() + b"\n"
    if sys.stdout.isatty():
        return b"\x1b[H" + out.replace(b"\n", b"\x1b[K\n") + b"\x1b[J"
    return out
