from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from neurontools.base.interrupts import InterruptHold

if TYPE_CHECKING:
    from collections.abc import Callable


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupted(section: Callable[[InterruptHold], None]) -> None:
    """Check that Ctrl-C in a section takes effect."""

    def run() -> None:
        with InterruptHold() as hold:
            section(hold)

    with pytest.raises(KeyboardInterrupt):
        run()


def test_a_section_ends_before_the_interrupt_takes_effect() -> None:
    done = []

    def section(hold: InterruptHold) -> None:
        interrupt()
        done.append(1)

    interrupted(section)
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_second_interrupt_takes_effect_at_once() -> None:
    done = []

    def section(hold: InterruptHold) -> None:
        interrupt()
        done.append(1)
        interrupt()
        done.append(2)

    interrupted(section)
    assert done == [1]


def test_what_was_held_back_is_delivered_before_a_block_that_allows_interrupts() -> None:
    done = []

    def section(hold: InterruptHold) -> None:
        interrupt()
        with hold.allowed():
            done.append(1)

    interrupted(section)
    assert done == []


def test_a_block_that_allows_interrupts_is_interrupted_and_its_cleanup_is_not() -> None:
    done = []

    def section(hold: InterruptHold) -> None:
        try:
            with hold.allowed():
                interrupt()
                done.append(1)
        finally:
            interrupt()
            done.append(2)

    interrupted(section)
    assert done == [2]


def test_nothing_is_held_outside_of_a_section() -> None:
    hold = InterruptHold()
    with hold.allowed():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupts_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptHold():
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_have_sections() -> None:
    done = []

    def work() -> None:
        with InterruptHold() as hold, hold.allowed():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]
