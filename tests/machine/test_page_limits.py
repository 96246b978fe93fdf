"""The files behind the telemetry pages of other users: watched while they are in use, cut when they have grown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.daemon.exit_watcher import PERIOD_S, PageLimits
from neurontools.machine.processes import ProcessKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OTHER = os.getuid() + 1
KEY = ProcessKey(1234, 5678)
PAGE_BYTES = 4096


class Loop:
    """Keeps what is to be called later, and calls it when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        self.waiting.append((delay_s, callback))
        return Handle()

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback()


class Handle:
    def cancel(self) -> None: ...


class Watch:
    """Limits with one page of a process of another user."""

    def __init__(self, path: Path) -> None:
        self.loop = Loop()
        self.grown: list[ProcessKey] = []
        self.registered = {KEY}
        self.limits = PageLimits(self.loop, self.registered.__contains__, self.grown.append)  # type: ignore[arg-type]
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, PAGE_BYTES)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path / "page")
    yield made
    made.limits.close()
    os.close(made.fd)


def test_a_page_that_has_grown_is_cut_and_its_user_gets_no_other(watch: Watch) -> None:
    watch.limits.add(KEY, OTHER, watch.fd)
    watch.loop.run()
    assert (watch.grown, watch.limits.refusal_reason(OTHER)) == ([], "")
    os.pwrite(watch.fd, b"x", PAGE_BYTES)
    watch.loop.run()
    assert watch.grown == [KEY]
    assert os.fstat(watch.fd).st_size == PAGE_BYTES
    assert watch.limits.refusal_reason(OTHER) == f"uid {OTHER} wrote beyond a telemetry page"
    assert watch.limits.refusal_reason(OTHER + 1) == ""


def test_pages_are_looked_at_together_each_second_while_there_are_any(watch: Watch) -> None:
    for _ in range(2):
        watch.limits.add(KEY, OTHER, watch.fd)
    for _ in range(2):
        assert [delay_s for delay_s, _ in watch.loop.waiting] == [PERIOD_S]
        watch.loop.run()
    watch.registered.clear()
    watch.limits.close()
    watch.loop.run()
    assert watch.loop.waiting == []


def test_an_own_page_and_one_without_a_name_are_not_watched(watch: Watch, tmp_path: Path) -> None:
    watch.limits.add(KEY, os.getuid(), watch.fd)
    os.unlink(tmp_path / "page")
    watch.limits.add(KEY, OTHER, watch.fd)
    assert watch.loop.waiting == []
