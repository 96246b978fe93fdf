"""Pilots of Textual that wait for the app, not for this computer: quicker, and no slower on a busy one."""

from __future__ import annotations

import asyncio
import time

import pytest
import textual._queue
import textual.app
import textual.pilot
from textual._context import active_app

from neurontools.tui.widgets.themed_app import KeyQueue

QUIET_STEPS = 8  # of the event loop: what another thread hands in takes a few before it is a message
_PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pilots go on when the app has nothing left to do, not when this computer has been idle for a while."""
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", settled)


async def settled(*_: float) -> None:
    """Wait until no message is on its way in the app, then let it lay out and draw, until there is nothing to draw."""
    app = active_app.get()
    until = time.monotonic() + _PATIENCE_S
    rounds = 0
    while (rounds < 3 or must_draw(app)) and time.monotonic() < until:
        quiet = 0
        while quiet < QUIET_STEPS and time.monotonic() < until:
            await asyncio.sleep(0)
            quiet = quiet + 1 if is_quiet(app) else 0
        app.screen._on_timer_update()  # as Pilot.pause
        rounds += 1


def must_draw(app: textual.app.App[object]) -> bool:
    screen = app.screen
    return not app._exit and bool(screen._layout_required or screen._dirty_widgets)


def is_quiet(app: textual.app.App[object]) -> bool:
    if app._exit:
        return True
    pumps = [app, *(node for screen in app.screen_stack for node in screen.walk_children(with_self=True))]
    keys_wait = isinstance(app, KeyQueue) and app.has_keys
    return (
        not keys_wait
        and app._resize_timer is None
        and all(worker.is_finished for worker in app.workers)
        and all(waits(pump._message_queue) for pump in pumps)
    )


def waits(queue: textual._queue.Queue[object]) -> bool:
    return queue.empty() and bool(queue.ready_event._waiters)
