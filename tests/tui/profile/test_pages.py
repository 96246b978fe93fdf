from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.profiler.trace.open import load, open_trace
from neurontools.tui.profile.app import PAGE_NAMES, ProfileApp
from neurontools.tui.profile.compare_page import StepTimelines
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import BLOCKS, text_of, width_of
from tests.tui.profile.made_runs import make_runs

if TYPE_CHECKING:
    from pathlib import Path

    from textual.pilot import Pilot

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker

OTHERS = tuple(name for name in PAGE_NAMES if name != "timeline")


def key_of(name: str) -> str:
    return f"f{PAGE_NAMES.index(name) + 1}"


def shown(pilot: Pilot[None], name: str) -> list[str]:
    panes = pilot.app.query(f"#{name} LinePane").results(LinePane)
    return [text_of(line) for pane in panes for line in pane.lines]


async def lines_of(trace: Trace, name: str, *keys: str, size: tuple[int, int] = (120, 40)) -> list[str]:
    async with ProfileApp(trace).run_test(size=size) as pilot:
        await pilot.press(key_of(name), *keys)
        return shown(pilot, name)


async def test_the_overview_says_where_a_step_goes_and_what_bounds_it(trace: Trace) -> None:
    text = "\n".join(await lines_of(trace, "overview"))
    for words in (
        "median of 4 steady steps",
        "execute",
        " average ",
        "limited by: matrix products",
        "56.0%",
        "Advice",
        "mm",
    ):
        assert words in text


async def test_the_overview_of_another_programs_trace_shows_rows_and_operators(home: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 0, "dur": 30},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 9, "ts": 90, "dur": 10},
    ]
    (home / "t.json").write_text(json.dumps(events))
    rows = await lines_of(open_trace(str(home / "t.json")), "overview", size=(80, 24))
    assert rows[0].endswith(" measured by torch.profiler ──")
    assert rows[1].split()[:6] == ["thread", "9,", "pid", "7", "2", "40.0%"]
    assert [row.split()[:4] for row in rows[3:5]] == [
        ["aten::mm", "1", "30.00", "us"],
        ["aten::add", "1", "10.00", "us"],
    ]


@pytest.mark.parametrize("size", [(200, 60), (80, 24)])
async def test_the_overview_shows_steps_that_another_program_marked(
    home: Path, size: tuple[int, int]
) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 9, "ts": 10 * step, "dur": 8 + step % 2}
        for step in range(9)
        for name in (f"ProfilerStep#{step}", "aten::mm")
    ]
    (home / "t.json").write_text(json.dumps(events))
    rows = await lines_of(open_trace(str(home / "t.json")), "overview", size=size)
    text = "\n".join(rows)
    for words in (
        "8.000 us median of 9 steady steps, 8.000 us to 9.000 us",
        "steps that torch.profiler marked",
        "0 to 9.000 us, 9 steps",
    ):
        assert words in text
    assert "first executions" not in text


async def test_operators_are_sorted_grouped_and_filtered(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("operators"))
        rows = shown(pilot, "operators")
        assert rows[2].split()[:4] == ["│▌mm", "20", "140.0", "us"]
        await pilot.press("g")
        assert "Operators by shape" in shown(pilot, "operators")[0]
        assert "float32[128,128]" in shown(pilot, "operators")[2]
        await pilot.press("g", "g", "g")
        assert "Operators by engine" in shown(pilot, "operators")[0]
        assert "Tensor" in shown(pilot, "operators")[2]
        await pilot.press("g", "g", "s")
        assert "median▾" in shown(pilot, "operators")[1]
        await pilot.press("slash", *"RELU", "enter")
        rows = shown(pilot, "operators")
        assert "1 group with 'RELU'" in rows[0]
        assert "relu" in rows[2]
        await pilot.press("slash", *"zzz", "enter")
        assert "0 groups" in shown(pilot, "operators")[0]


@pytest.mark.parametrize(
    ("size", "others"), [((120, 40), ["layer"]), ((200, 60), ["layer", "source"]), ((120, 20), None)]
)
async def test_the_selected_operator_is_taken_apart_where_there_is_room(
    trace: Trace, size: tuple[int, int], others: list[str] | None
) -> None:
    async with ProfileApp(trace).run_test(size=size) as pilot:
        await pilot.press(key_of("operators"))
        rows = shown(pilot, "operators")
        heads = [row for row in rows if "mm by shape" in row]
        assert len(heads) == (others is not None)
        if others is None:
            return
        assert re.findall(r"─ by (\w+)", heads[0]) == others
        part = rows[rows.index(heads[0]) + 1]
        assert part.split()[:2] == ["│", "float32[128,128]"]
        assert "100.0%" in part
        await pilot.press("down")
        assert any("copy_ by shape" in row for row in shown(pilot, "operators"))
        await pilot.press("slash", *"zzz", "enter")
        assert len(shown(pilot, "operators")) == size[1] - 2


async def test_enter_shows_the_slowest_event_of_an_operator_in_the_timeline(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("operators"), "enter")
        view = pilot.app.query_one(TimelineView)
        event = trace.event(view.state.selected_event)
        assert (event.action.name, event.duration) == ("aten.mm", 9_000)
        assert view.has_focus
        assert view.state.view.span_ns == 4 * 9_000


async def test_a_head_is_clicked_to_sort(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("operators"))
        head = shown(pilot, "operators")[1]
        await pilot.click("#operators", offset=(head.index("count"), 1))
        assert "count▾" in shown(pilot, "operators")[1]
        assert "copy_" in shown(pilot, "operators")[2]


async def test_the_tree_starts_with_source_lines_without_layers_and_zooms(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("tree"))
        rows = shown(pilot, "tree")
        assert "Tree by source" in rows[0]
        assert "everything" in rows[1]
        assert "train.py" in rows[2]
        assert "line 12" in rows[3]
        assert "mm" in rows[4]
        await pilot.press("down", "enter")
        assert "mm" in shown(pilot, "tree")[1]
        await pilot.press("escape")
        assert "everything" not in shown(pilot, "tree")[1]
        await pilot.press("t")
        assert "Tree by layer" in shown(pilot, "tree")[0]


async def test_the_roofline_has_roofs_dots_and_the_selected_operator(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("roofline"))
        text = "\n".join(shown(pilot, "roofline"))
        for words in ("92.00 Tflop/s", "410.0 GB/s", "ridge at 224 flop/B"):
            assert words in text
        await pilot.press("g")
        assert "Roofline by layer" in shown(pilot, "roofline")[0]


async def test_pages_without_data_say_why_and_what_to_run(trace: Trace) -> None:
    text = "\n".join(await lines_of(trace, "ranks"))
    assert "1 worker" in text
    assert "neuron-run --profile DIR -- torchrun" in text


async def test_ranks_show_the_straggler_and_the_worst_steps(home: Path) -> None:
    trace = load(make_runs(home)[0])
    rows = await lines_of(trace, "ranks")
    assert "straggler" in rows[4]
    assert rows[4].split()[1] == "2"
    text = "\n".join(rows)
    assert "Skew of steps" in text
    worst = rows[next(number for number, row in enumerate(rows) if "Steps with most skew" in row) + 2]
    assert "rank 2" in worst
    assert "2.000 ms" in worst


async def test_two_profiles_are_compared(trace: Trace, home: Path, maker: Maker) -> None:
    text = "\n".join(await lines_of(trace, "compare"))
    assert "neuron-profile view BEFORE AFTER" in text

    class Slower(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return tuple(
                structs.replace(each, duration_ns=each.duration_ns * 2) if each.name == "aten.relu" else each
                for each in super().mlp()
            )

    Slower().finished(home / "after", ncs=(0, 1))
    async with ProfileApp(trace, load(str(home / "after"))).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("compare"))
        row = next(line for line in shown(pilot, "compare") if "relu" in line)
        assert "slower" in row
        assert "x2.00" in row


async def test_steady_steps_of_both_runs_start_at_the_left_edge_on_one_scale(
    trace: Trace, home: Path, maker: Maker
) -> None:
    class Longer(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (*super().mlp(), self.operation("aten.tanh", "Scalar", 30_000, 20_000))

        def neff(self, operations: tuple[object, ...] | None = None, total_ns: int = 50_000) -> bytes:
            found: bytes = super().neff(operations, total_ns)
            return found

    Longer().finished(home / "after", ncs=(0, 1))
    async with ProfileApp(trace, load(str(home / "after"))).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("compare"))
        view = pilot.app.query_one(StepTimelines)

        def busy_columns(name: str) -> tuple[list[int], list[int]]:
            lines = [view.render_line(y).text for y in range(view.size.height)]
            at = next(number for number, line in enumerate(lines) if name in line)
            found = [[x for x, cell in enumerate(line) if x >= 16 and cell in BLOCKS] for line in lines]
            following = next(at for at in range(at + 1, len(lines)) if "after" in lines[at])
            return found[at], found[following]

        before, after = busy_columns("Tensor")
        assert before[0] == after[0]
        assert 100_000 <= view.view.total_ns < 105_000
        before, after = busy_columns("Scalar")
        assert max(after) > max(before) + 20
        whole = view.view
        await pilot.press("plus", "right")
        assert view.view.span_ns == whole.span_ns // 2
        assert view.view.start_ns > whole.start_ns
        await pilot.press("f")
        assert view.view == whole
        table = pilot.app.query("#compare LinePane").last(LinePane)
        line = next(y for y, row in enumerate(table.lines) if "tanh" in text_of(row))
        await pilot.click("#compare", offset=(10, table.region.y - 1 + line))
        assert table.lines[line][1][0].startswith("▌")


async def test_a_run_without_device_times_has_no_timelines(trace: Trace, home: Path, maker: Maker) -> None:
    options = CaptureOptions(device=DeviceProfile.OFF)
    maker.finished(home / "after", options, ncs=(0, 1))
    async with ProfileApp(trace, load(str(home / "after"))).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("compare"), "plus", "left", "f")
        assert not pilot.app.query(StepTimelines)
        assert "Compare: " in shown(pilot, "compare")[0]


async def test_memory_without_allocations_says_so(trace: Trace) -> None:
    text = "\n".join(await lines_of(trace, "memory"))
    assert "No device memory was recorded" in text
    assert "SBUF" in text


async def test_lines_of_the_program_show_what_they_cost(home: Path, maker: Maker) -> None:
    program = home / "train.py"
    program.write_text("import torch\n\n\nx = torch.mm(a, b)\n")
    capture = maker.capture(home / "profile")
    work = (maker.operation("aten.mm", "Tensor", 0, 25_000, source=f"{program}:4"),)
    capture.on_load(maker.model(neff=maker.neff(work)), 1_000, 2_000)
    capture.on_execute(maker.model(neff=maker.neff(work)), 1, 3_000, 40_000, 0)
    capture.on_close()
    rows = await lines_of(load(str(home / "profile")), "source")
    assert str(program) in rows[0]
    assert "25.00 us" in rows[5]
    assert "x = torch.mm(a, b)" in rows[5]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 10), (16, 6), (10, 3)])
async def test_any_size_draws_whole_lines(trace: Trace, name: str, size: tuple[int, int]) -> None:
    async with ProfileApp(trace).run_test(size=size) as pilot:
        await pilot.press(key_of(name), "down", "enter")
        page = pilot.app.query_one(f"#{name}")
        width = page.size.width
        if page.display:
            assert {width_of(line) for line in shown(pilot, name)} <= {width}


PICTURES = [(name, (120, 40)) for name in OTHERS if name not in {"source", "ranks"}]


@pytest.mark.parametrize(("name", "size"), [*PICTURES, ("overview", (80, 24))])
def test_page_snapshot(
    snap_compare: Any, trace: Trace, monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int]
) -> None:
    monkeypatch.delenv("NO_COLOR")
    assert snap_compare(ProfileApp(trace), terminal_size=size, press=[key_of(name)])


async def test_names_of_a_profile_cannot_control_the_terminal(home: Path, maker: Maker) -> None:
    hostile = "a\x1b]0;t\x07\x9b31m\u202e\x7f\r\b[red]\nb"

    class Hostile(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (self.operation(hostile, "Tensor", 0, 25_000, source=f"{hostile}:1"),)

    Hostile().finished(home / "hostile")
    async with ProfileApp(load(str(home / "hostile"))).run_test(size=(120, 40)) as pilot:
        for name in OTHERS:
            await pilot.press(key_of(name))
            text = "".join(shown(pilot, name))
            assert not [letter for letter in text if unicodedata.category(letter) in {"Cc", "Cf"}]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Four workers of which one is late; its program has layers, and its lines are those of a file."""
    return load(make_runs(tmp_path_factory.mktemp("runs"))[0])


async def test_the_overview_of_workers_is_that_of_the_slow_one(workers: Trace) -> None:
    rows = await lines_of(workers, "overview", size=(80, 24))
    assert rows[0].endswith(" rank 2, measured ──")
    assert " of a step lost to the slowest rank (F7)" in " ".join(" ".join(rows).split())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_overview_has_the_largest_gains_whole_at_any_size(
    workers: Trace, size: tuple[int, int]
) -> None:
    async with ProfileApp(workers).run_test(size=size) as pilot:
        await pilot.press(key_of("overview"))
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        text = " ".join("\n".join(shown(pilot, "overview")).replace("│", " ").split())
        advice = text.partition("─ Advice ─")[2]
        for number in (1, 2) if size[1] == 24 else (1, 2, 3):
            assert re.search(
                rf" {number} [A-Z][^…]*? \d+% of the step, [\d.]+ [mu]s \((measured|modelled)\)", advice
            )
        assert ("neuron-profile advise" in text) == (size[1] < 60)


async def test_the_window_opens_on_a_step_of_all_workers(workers: Trace) -> None:
    async with ProfileApp(workers).run_test(size=(120, 40)) as pilot:
        state = pilot.app.query_one(TimelineView).state
        first, last = state.range_ns
        for runs in workers.runs:
            inside = (runs.device_start >= first) & (runs.device_start + runs.device_ns <= last)
            assert inside.any()
        assert "Window of rank 0 " in shown(pilot, "timeline")[3]


async def test_the_window_says_how_long_engines_work_as_the_overview_does(workers: Trace) -> None:
    one = workers.with_rows([row for row in workers.rows if row.process == 0], workers.runs[:1])
    async with ProfileApp(one).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        window = "\n".join(shown(pilot, "timeline"))
        await pilot.press(key_of("overview"))
        overview = "\n".join(shown(pilot, "overview"))
    for engine in ("Tensor", "Vector", "Scalar"):
        share = float(re.search(rf"NC0 {engine} .*?([\d.]+)%", window)[1])
        assert share == pytest.approx(float(re.search(rf"{engine} .*?([\d.]+)%", overview)[1]), abs=0.5)


async def test_the_selected_line_is_taken_apart_where_there_is_room(workers: Trace) -> None:
    narrow = "\n".join(await lines_of(workers, "source"))
    assert "line 7 by operator" not in narrow
    text = "\n".join(await lines_of(workers, "source", "home", size=(200, 60)))
    for kind in ("operator", "shape", "layer"):
        assert f"line 7 by {kind}" in text
    assert "GPT.blocks.0.attn" in text


async def test_a_branch_shows_the_operators_of_all_below(workers: Trace) -> None:
    async with ProfileApp(workers).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("tree"), "down")
        rows = shown(pilot, "tree")
        head = next(number for number, row in enumerate(rows) if "Operators of GPT" in row)
        assert rows[head + 1].rpartition("││ ")[2].split()[0] in {"mm", "addmm"}
        await pilot.press(*["down"] * 6)
        assert "throughput" in "\n".join(shown(pilot, "tree"))


async def test_the_selected_worker_shows_its_steps_and_its_host(workers: Trace) -> None:
    rows = await lines_of(workers, "ranks", "down", "down", size=(200, 60))
    text = "\n".join(rows)
    assert "Work of rank 2 in each step" in text
    host = next(number for number, row in enumerate(rows) if "Host of rank 2, a step" in row)
    assert "DataLoader" in rows[host + 2]
    assert "3.000 ms" in rows[host + 2]


async def test_clocks_stay_in_titles_that_have_no_room_for_whole_notes(home: Path, maker: Maker) -> None:
    folder = home / ("long" * 20)
    folder.mkdir()
    program = folder / "train.py"
    program.write_text("x = torch.mm(a, b)\n")
    capture = maker.capture(home / "profile")
    work = (maker.operation("aten.mm", "Tensor", 0, 25_000, source=f"{program}:1"),)
    capture.on_load(maker.model(neff=maker.neff(work)), 1_000, 2_000)
    capture.on_execute(maker.model(neff=maker.neff(work)), 1, 3_000, 40_000, 0)
    capture.on_close()
    rows = await lines_of(load(str(home / "profile")), "source", size=(80, 24))
    assert rows[0].startswith("── …/train.py ")
    assert rows[0].endswith(" modelled ──")


@pytest.mark.parametrize("page", ["roofline", "ranks", "source"])
async def test_enter_leads_to_the_slowest_event_of_a_row(workers: Trace, page: str) -> None:
    async with ProfileApp(workers).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of(page), *(["down"] * 2 if page == "ranks" else []), "enter")
        state = pilot.app.query_one(TimelineView).state
        event = workers.event(state.selected_event)
        assert not event.row.track.measured
        assert event.row.rank == 2 or page != "ranks"


@pytest.mark.parametrize("page", ["memory", "overview"])
async def test_help_lists_no_key_that_does_nothing(workers: Trace, page: str) -> None:
    async with ProfileApp(workers).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of(page), "question_mark")
        pane = pilot.app.screen.query_one("#help", LinePane)
        assert "slowest" not in "".join(map(text_of, pane.lines))


async def test_rows_that_all_have_room_stay_in_view_after_a_jump(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        view = pilot.app.query_one(TimelineView)
        first = view.render_line(1).text.rstrip()
        for key in ("end", "home", "down"):
            await pilot.press(key_of("operators"), key, "enter")
            await pilot.pause()
            assert view.render_line(1).text.rstrip() == first


async def test_a_worker_is_compared_by_its_own_step(workers: Trace) -> None:
    async with ProfileApp(workers, workers).run_test(size=(120, 40)) as pilot:
        await pilot.press(key_of("compare"))
        view = pilot.app.query_one(StepTimelines)
        assert view.view.total_ns == workers.runs[0].device_ns[0]


async def test_charts_of_memory_say_what_their_height_and_width_are(workers: Trace) -> None:
    text = "\n".join(await lines_of(workers, "memory", size=(80, 24)))
    assert re.search(r" 0 to [\d.]+ MB up, 0 to [\d.]+ ms across", text)
    assert " 0 to 8 banks up, " in text
