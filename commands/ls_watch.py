"""`neuron-ls --watch`: shows a reply whenever it changed, and stays with its machine through restarts."""

from __future__ import annotations

import json
import sys
import time
from select import poll

from neurontools import env, paths
from neurontools.commands.ls_output import show
from neurontools.machine.directory import knock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.machine.render_client import Reply

RESTART_S = 3.0
_RETRY_S = 0.05


def watch(replies: Iterable[Reply], *, lines_of_json: bool) -> int | None:
    """Show each reply that differs from the one before.

    Args:
        replies: one after another, at the pace of the watch.
        lines_of_json: the replies are JSON; each becomes one line.

    Returns:
        The exit code of a reply that is a failure or cannot be written, 0 when the reader went away, None when there
        are no more.
    """
    shown = None
    for reply in replies:
        code, out, err = reply
        if reply != shown:
            ended = show((code, _frame(out, lines_of_json=lines_of_json and not code), err))
            shown = reply
            if ended:
                return ended
        if _reader_goes(0.0):
            return 0
    return None


def replies_of(ask: Callable[[], Reply | None], machine: str, period_s: float) -> Iterator[Reply]:
    """Yield what a machine's daemon replies, until it is gone for good.

    A deleted runtime directory is made again by the daemon that lives; a daemon that was killed is replaced (unless
    NEURONTOOLS_AUTOSTART=0); for one that was stopped the next is awaited as long as a restart may take.

    Args:
        ask: asks once, None where no daemon listens.
        machine: whose daemon.
        period_s: time between two questions.
    """
    while (reply := _persistently(ask, machine)) is not None:
        yield reply
        _reader_goes(period_s)


def _reader_goes(within_s: float) -> bool:
    """Wait until whoever reads standard output is gone, at most so long; return whether it is."""
    try:
        watched = poll()
        watched.register(1, 0)  # errors and hang-ups are always reported
        return bool(watched.poll(within_s * 1000))
    except OSError:
        return True


def _persistently(ask: Callable[[], Reply | None], machine: str) -> Reply | None:
    give_up = time.monotonic() + RESTART_S
    while True:
        reply = _asked(ask)
        if reply is not None or time.monotonic() > give_up:
            return reply
        if not knock(paths.machine_dir(machine)):
            _replace_if_killed(machine)
            time.sleep(_RETRY_S)


def _asked(ask: Callable[[], Reply | None]) -> Reply | None:
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
