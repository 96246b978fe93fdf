"""Groups of rows of the timeline fold into a line, and stay folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import TraceTimeline, busiest
from neurontools.tui.profile.app import ProfileApp
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.profile.timeline_drawing import Heading
from tests.tui.profile.test_viewer import text_of, view_of

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker


def labels(view: TimelineView) -> list[str]:
    return [
        line.title.split(":")[0] if isinstance(line, Heading) else line.label for line in view.state.lines
    ]


async def test_engines_fold_into_a_line_that_stays_while_moving(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        assert labels(view)[:6] == ["▾ pid 4242 NC0", "Model", "Tensor", "Vector", "Scalar", "GpSimd"]
        await pilot.press("j", "j", "z")
        assert labels(view)[:5] == ["▾ pid 4242 NC0", "Model", "▸engines", "DMA", "▾ pid 4242 NC1"]
        assert "▸engines" in text_of(view)
        await pilot.press("plus", "right", "f", "c", "c", "f2")
        assert labels(view)[2] == "▸engines"
        await pilot.press("k", "j")
        assert trace.rows[view.state.selected_row].label == "NC0 Tensor"
        await pilot.press("z")
        assert labels(view)[:4] == ["▾ pid 4242 NC0", "Model", "Tensor", "Vector"]


async def test_cores_fold_one_by_one_and_all_at_once(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("z")
        assert labels(view)[:2] == ["▸NC0", "▾ pid 4242 NC1"]
        await pilot.press("Z")
        assert labels(view) == ["▸NC0", "▸NC1"]
        assert view.render_line(1).text.startswith("▌▸NC0") or "▸NC0" in text_of(view)
        await pilot.press("j", "z")
        assert labels(view)[:3] == ["▸NC0", "▾ pid 4242 NC1", "Model"]
        await pilot.press("Z", "Z")
        assert "▸NC0" not in labels(view)


async def test_a_click_folds_at_the_heading_and_unfolds_at_the_name(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.click(TimelineView, offset=(10, 2))
        assert labels(view)[0] == "▸NC0"
        line = text_of(view).splitlines().index(next(s for s in text_of(view).splitlines() if "▸NC0" in s))
        await pilot.click(TimelineView, offset=(4, line + 1))
        assert labels(view)[0] == "▾ pid 4242 NC0"


async def test_of_many_cores_only_the_first_is_open(home: Path, maker: Maker) -> None:
    maker.finished(home / "many", ncs=tuple(range(8)))
    async with ProfileApp(load(str(home / "many"))).run_test(size=(80, 24)) as pilot:
        found = labels(view_of(pilot))
        assert found[1:3] == ["Model", "Tensor"]
        assert found[-7:] == [f"▸NC{core}" for core in range(1, 8)]


def test_a_folded_line_shows_the_busiest_row_of_each_cell(trace: Trace) -> None:
    rows = [row for row in TraceTimeline(trace).rows if not row.row.track.measured][1:6]
    edges = np.arange(trace.rows[2].events.start_ns, trace.end_ns, 1_000, dtype=np.int64)[:200]
    cells, actions = busiest(rows, edges)
    each = [row.cells(edges) for row in rows]
    assert cells.busy_ns.tolist() == np.max([found.busy_ns for found in each], axis=0).tolist()
    some = np.flatnonzero(cells.event != NO_EVENT)
    assert len(some) > 5
    for at in some.tolist():
        event = trace.event(int(cells.event[at]))
        assert trace.actions[int(actions[at])] is event.action
    nothing = np.all([found.event == NO_EVENT for found in each], axis=0)
    assert (cells.event == NO_EVENT).tolist() == nothing.tolist()
