"""Device memory of several cores, each with its curve and what was alive at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.profiler.analysis.programs import core_memory
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.runtime.host_activity import HostEvent
from neurontools.tui.profile.app import ProfileApp
from tests.profiler.test_host_events import tell
from tests.tui.profile.test_pages import key_of, shown

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker

MIB = 1 << 20


def memory_of(cores: int, home: Path, maker: Maker) -> Trace:
    """A run whose core N keeps N + 1 MiB, and has 1 MiB more for a while."""
    capture = maker.capture(home / "memory")
    now = open_captures(str(home / "memory"))[0].meta.started_ns
    for nc in range(cores):
        for kind, number, nbytes, name in (
            (HostEvent.ALLOCATION, 1, (nc + 1) * MIB, "weight"),
            (HostEvent.ALLOCATION, 2, MIB, "old"),
            (HostEvent.RELEASE, 2, MIB, "old"),
            (HostEvent.ALLOCATION, 2, MIB, "gradient"),
            (HostEvent.RELEASE, 2, MIB, "gradient"),
        ):
            now += 1_000_000
            tell(capture, kind, now, now, nc=nc, nbytes=nbytes, number=number, name=name, source="train.py:7")
    capture.on_close()
    return load(str(home / "memory"))


def test_what_is_alive_at_the_peak_was_not_released(home: Path, maker: Maker) -> None:
    one, other = core_memory(memory_of(2, home, maker))
    assert (one.peak_bytes, other.peak_bytes) == (2 * MIB, 3 * MIB)
    assert [(owner.name, owner.nbytes, owner.buffers) for owner in other.owners] == [
        ("weight", 2 * MIB, 1),
        ("old", MIB, 1),
    ]


async def test_tab_and_a_click_show_another_core(home: Path, maker: Maker) -> None:
    async with ProfileApp(memory_of(12, home, maker)).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("memory"))
        rows = shown(pilot, "memory")
        assert "Device memory of NC0, 1 of 12 cores" in rows[0]
        assert "Cores" in rows[0]
        assert "▌NC0" in rows[1]
        assert "NC1" in rows[2]
        await pilot.press("tab", "tab")
        rows = shown(pilot, "memory")
        assert "Device memory of NC2, 3 of 12 cores" in rows[0]
        assert "▌NC2" in rows[3]
        await pilot.press("shift+tab", "shift+tab", "shift+tab")
        rows = shown(pilot, "memory")
        assert "NC11, 12 of 12 cores" in rows[0]
        line = next(number for number, row in enumerate(rows) if "NC9" in row)
        await pilot.click("#memory", offset=(100, line))
        assert "Device memory of NC9, 10 of 12 cores" in shown(pilot, "memory")[0]


async def test_a_narrow_page_names_the_core(home: Path, maker: Maker) -> None:
    async with ProfileApp(memory_of(2, home, maker)).run_test(size=(80, 24)) as pilot:
        await pilot.press(key_of("memory"), "tab")
        rows = shown(pilot, "memory")
        assert "Device memory of NC1, 2 of 2 cores" in rows[0]
        assert any("weight" in row for row in rows)
