"""neuron-top by its keys: each test presses them in the real app and reads the real screen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from textual.geometry import Region
from textual.pilot import Pilot

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import SourceProblem, TimedSnapshot, Update
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Line, Role, text_of
from neurontools.tui.widgets.screens import HelpScreen
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from pathlib import Path

Ticks = tuple[TimedSnapshot, TimedSnapshot]
Open = Callable[..., AbstractAsyncContextManager[tuple[TopApp, Pilot[int]]]]


@pytest.fixture
def opened() -> Open:
    """The app after it took in all updates: `async with opened(*updates, size=(80, 24)) as (app, pilot)`."""

    @asynccontextmanager
    async def run(
        *updates: Update, size: tuple[int, int] = (120, 40), colour: bool = True
    ) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
        app = TopApp(FixedSource(*updates), colour=colour, settings=TopSettings(classic=True))
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            yield app, pilot

    return run


async def settle(app: TopApp, pilot: Pilot[int]) -> None:
    await app.source_ended.wait()
    await pilot.pause()


def lines(app: TopApp, pane: str) -> list[str]:
    return [text_of(line).rstrip() for line in app.query_one(f"#{pane}", LinePane).lines]


def selected(app: TopApp) -> str:
    shown = app.query_one("#details", LinePane).lines
    return next(text_of(line) for line in shown if line[0][1] is Role.SELECTED).strip()


def marked(app: TopApp) -> int:
    shown: tuple[Line, ...] = app.query_one("#cores", LinePane).lines
    roles = {Role.MARKED_ON, Role.MARKED_PART, Role.MARKED_OFF}
    found = 0
    for line in shown:
        inside = [role in roles for _, role in line]
        found += sum(now and not before for before, now in zip([False, *inside], inside, strict=False))
    return found


async def test_the_screen_from_top_to_bottom(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, _):
        assert lines(app, "title")[0].strip().startswith("neuron-top ")
        assert lines(app, "title")[0].endswith("running on i-0123456789abcdef0 (trn1.32xlarge)")
        cores = [line for line in lines(app, "cores") if line]
        assert cores[0] == " NeuronCore v2 Utilization (Avg: 48.21%)"
        assert cores[1].split() == ["NC0", "NC1"]
        assert [line.split()[0] for line in cores[2:]] == [f"ND{index}" for index in range(16)]
        assert "[56.81%]" in cores[16]
        assert "[100.00%]" in cores[16]
        cpu = [line for line in lines(app, "cpu") if line]
        assert [cpu[0], cpu[1][:18], cpu[2][:19]] == [
            " vCPU Utilization",
            " System vCPU Usage",
            " Runtime vCPU Usage",
        ]
        assert cpu[1].endswith("[30.00%,10.00%]")
        summary = [line for line in lines(app, "summary") if line]
        assert summary[1].split()[:3] == ["Host", "Total:", "1.3GB"]
        assert summary[2].split()[:5] == ["Device", "Total:", "72.6GB", "Tensors:", "19.4GB"]
        details = [line for line in lines(app, "details") if line]
        assert details[0].split()[-5:] == ["ID", "Device", "Memory", "Host", "Memory"]
        assert details[1].split() == ["[+]", "ND", "0", "4.7GB", "4.0MB"]
        assert (
            lines(app, "bottom")[0] == " Neuron Apps   >[1]:all<   [2]:bert-pretrain    [3]:5117    [4]:5203"
        )


async def test_up_and_down_move_the_selection_and_mark_its_cores(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        assert selected(app).startswith("[+] ND 0")
        assert marked(app) == 2
        await pilot.press("down", "down")
        assert selected(app).startswith("[+] ND 2")
        await pilot.press("up", "up", "up", "up")
        assert selected(app).startswith("[+] ND 0")
        await pilot.press("end")
        assert selected(app).startswith("[+] Host")
        assert marked(app) == 0
        await pilot.press("home", "enter", "down")
        assert selected(app).startswith("[+] NC 0")
        assert marked(app) == 1


async def test_enter_expands_and_collapses_the_row(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("enter")
        assert selected(app).startswith("[-] ND 0")
        assert "[+] NC 0" in lines(app, "details")[-9] + lines(app, "details")[-10]
        await pilot.press("enter")
        assert selected(app).startswith("[+] ND 0")
        assert not any("NC 0" in line for line in lines(app, "details"))


async def test_right_and_left_open_close_and_walk_the_tree(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("right", "right", "right", "right")
        assert selected(app).startswith("[+] bert-large-train-0.neff")
        assert "10001" in selected(app)
        await pilot.press("right", "right", "right")
        assert selected(app).split()[0] == "Tensors"
        await pilot.press("left")
        assert selected(app).startswith("[-] bert-large-train-0.neff")
        await pilot.press("left", "left", "left")
        assert selected(app).startswith("[+] NC 0")


async def test_x_expands_the_whole_tree_and_collapses_it(opened: Open, training: Ticks) -> None:
    async with opened(*training, size=(120, 100)) as (app, pilot):
        await pilot.press("x")
        assert not any("[+]" in line for line in lines(app, "details"))
        assert any("Model Scratchpad" in line for line in lines(app, "details"))
        await pilot.press("x")
        assert not any("[-]" in line for line in lines(app, "details"))


async def test_x_keeps_the_selection_on_the_nearest_row_that_is_left(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("down", "x", "down", "down", "down", "x")
        assert selected(app).startswith("[+] ND 1")


async def test_rows_of_models_that_do_not_run_are_grey(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("4", "x")
        shown = app.query_one("#details", LinePane).lines
        roles = {text_of(line).split()[1]: line[0][1] for line in shown if "neff" in text_of(line)}
        assert set(roles.values()) == {Role.DIM}
        await pilot.press("2", "x")
        shown = app.query_one("#details", LinePane).lines
        assert any("neff" in text_of(line) and line[0][1] is Role.PLAIN for line in shown)


async def test_digits_a_and_d_choose_the_process(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("3")
        assert ">[3]:5117<" in lines(app, "bottom")[0]
        assert "(Avg: 78.41%)" in "".join(lines(app, "cores"))
        tree = [line.split()[1:3] for line in lines(app, "details") if "ND" in line]
        assert tree == [["ND14", "4.7GB"]]
        await pilot.press("d")
        assert ">[4]:5203<" in lines(app, "bottom")[0]
        await pilot.press("d")
        assert ">[1]:all<" in lines(app, "bottom")[0]
        await pilot.press("a", "a")
        assert ">[3]:5117<" in lines(app, "bottom")[0]
        await pilot.press("9")
        assert ">[3]:5117<" in lines(app, "bottom")[0]
        await pilot.press("1")
        assert ">[1]:all<" in lines(app, "bottom")[0]


async def test_the_current_tab_is_in_view_however_many_there_are(
    opened: Open, ticks: Callable[..., Ticks], job: type
) -> None:
    jobs = tuple(job(1000 + index, f"worker-{index}", (index,), (0.5,)) for index in range(32))
    async with opened(*ticks(16, 2, jobs=jobs), size=(80, 24)) as (app, pilot):
        for number in range(2, 34):
            await pilot.press("d")
            assert f">[{number}]:worker-{number - 2}<" in lines(app, "bottom")[0]
        x = lines(app, "bottom")[0].index("[32]")
        await pilot.click(offset=(x + 2, 22))
        assert ">[32]:worker-30<" in lines(app, "bottom")[0]
        await pilot.press("d", "d")
        assert ">[1]:all<" in lines(app, "bottom")[0]


@pytest.mark.parametrize("key", ["f", "F"])
async def test_f_shows_flops(opened: Open, training: Ticks, key: str) -> None:
    async with opened(*training) as (app, pilot):
        before = [line.count("|") for line in lines(app, "cores")]
        await pilot.press(key)
        cores = [line for line in lines(app, "cores") if line]
        assert cores[0] == " NeuronCore v2 Utilization (Avg:    9.301TF | Total:  297.646TF)"
        assert "[   7.770TF]" in cores[2]
        await pilot.press("f")
        assert [line.count("|") for line in lines(app, "cores")] == before


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+q", 0), ("ctrl+c", 130)])
async def test_leaving(opened: Open, training: Ticks, key: str, code: int) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press(key)
    assert (app.return_value or 0) == code


async def test_question_mark_shows_the_keys_and_q_closes_only_them(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        text = "\n".join(text_of(line) for line in app.screen.query_one(LinePane).lines)
        assert "expand or collapse the" in text
        await pilot.press("q")
        assert not isinstance(app.screen, HelpScreen)
        assert app.is_running


async def test_ctrl_s_saves_an_svg(
    opened: Open, training: Ticks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(*training) as (_, pilot):
        await pilot.press("ctrl+s")
        await pilot.pause()
    (picture,) = pictures_in(tmp_path)
    assert "trn1.32xlarge" in picture


async def test_ctrl_s_in_a_directory_that_is_gone_is_harmless(
    opened: Open, training: Ticks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with opened(*training) as (app, pilot):
        await pilot.press("ctrl+s", "down")
        assert app.is_running
        assert selected(app).startswith("[+] ND 1")


async def test_the_mouse_selects_toggles_scrolls_and_changes_tabs(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        top = (
            app.query_one("#details", LinePane).region.bottom
            - app.query_one("#details", LinePane).size.height
        )
        head = [bool(line) for line in lines(app, "details")].index(True)
        await pilot.click(offset=(5, top + head + 3))
        assert selected(app).startswith("[+] ND 2")
        row = next(i for i, line in enumerate(lines(app, "details")) if "ND 2" in line)
        await pilot.click(offset=(5, top + row))
        assert selected(app).startswith("[-] ND 2")
        await pilot.click(offset=(28, 38))
        assert ">[2]:bert-pretrain<" in lines(app, "bottom")[0]
        await pilot.click(offset=(100, 38))
        assert ">[2]:bert-pretrain<" in lines(app, "bottom")[0]


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (97, 31), (120, 40), (200, 60), (300, 100)])
async def test_panes_tile_the_terminal_also_after_resizing(
    opened: Open, trn2: Ticks, size: tuple[int, int]
) -> None:
    async with opened(*trn2, size=(100, 30)) as (app, pilot):
        await pilot.resize_terminal(*size)
        await pilot.pause()
        bottom = 0
        for pane in (pane for pane in app.query(LinePane) if pane.display):
            assert (pane.region.x, pane.region.width) == (0, size[0])
            assert pane.region.y == bottom
            assert pane.region.height == len(pane.lines)
            bottom = pane.region.bottom
        assert bottom == size[1]


async def test_a_terminal_that_is_too_small_says_what_is_needed(opened: Open, training: Ticks) -> None:
    async with opened(*training, size=(40, 10)) as (app, pilot):
        assert "needs 60x16," in "".join(lines(app, "title"))
        await pilot.press("down", "x", "2", "f")
        await pilot.resize_terminal(10, 3)
        await pilot.pause()
        assert [line.strip() for line in lines(app, "title")] == ["needs", "60x16", "q: quit"]
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "needs" not in "".join(lines(app, "title"))
        assert ">[2]:bert-pretrain<" in lines(app, "bottom")[0]


async def test_trouble_is_in_the_title_and_the_last_numbers_stay(opened: Open, training: Ticks) -> None:
    async with opened(*training, SourceProblem("machine stopped, waiting for it")) as (app, _):
        assert lines(app, "title")[0].endswith("machine stopped, waiting for it")
        assert "(Avg: 48.21%)" in "".join(lines(app, "cores"))


async def test_recovery_clears_the_trouble(opened: Open, training: Ticks) -> None:
    async with opened(training[0], SourceProblem("connection lost"), training[1]) as (app, _):
        assert lines(app, "title")[0].endswith("(trn1.32xlarge)")
        assert "(Avg: 48.21%)" in "".join(lines(app, "cores"))


async def test_before_any_data_the_screen_says_what_it_waits_for(opened: Open) -> None:
    async with opened(SourceProblem("machine stopped, waiting for it"), size=(80, 24)) as (app, pilot):
        assert lines(app, "title")[0].endswith("machine stopped, waiting for it")
        await pilot.press("down", "enter", "x", "f", "a", "d", "1", "left", "right")
        assert app.is_running


async def test_a_process_that_ends_takes_its_tab_along(opened: Open, training: Ticks, ticks: object) -> None:
    gone = TimedSnapshot(snapshot=_without_processes(training[1]), cpu=None)
    async with opened(*training, size=(120, 40)) as (app, pilot):
        await pilot.press("4", "x", "end")
        app.take(gone)
        await pilot.pause()
        assert lines(app, "bottom")[0] == " Neuron Apps   >[1]:all<"
        assert "Avg:  0.00%" in "".join(lines(app, "cores"))


async def test_tags_cannot_write_to_the_terminal(
    opened: Open, ticks: Callable[..., Ticks], job: type
) -> None:
    nasty = "\x1b[2J[bold red]x[/]\n\u202e"
    async with opened(*ticks(jobs=(job(9, nasty, (0,), (0.5,)),))) as (app, _):
        assert "[2]:\\u001b[2J[bold red]x[/]…" in lines(app, "bottom")[0]


async def test_only_rows_that_changed_are_painted(opened: Open, training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        pane = app.query_one("#cores", LinePane)
        painted: list[Region] = []
        refresh = pane.refresh
        pane.refresh = lambda *regions: painted.extend(regions) or refresh(*regions)  # type: ignore[assignment, func-returns-value]
        before = [pane.render_line(y) for y in range(len(pane.lines))]
        pane.show(pane.lines)
        await pilot.pause()
        assert painted == []
        changed = list(pane.lines)
        changed[5] = ((" " * 120, Role.PLAIN),)
        pane.show(changed)
        await pilot.pause()
        assert painted == [Region(0, 5, 120, 1)]
        after = [pane.render_line(y) for y in range(len(pane.lines))]
        assert [y for y, strip in enumerate(after) if strip is not before[y]] == [5]


async def test_without_colour_bars_are_distinguished_by_their_characters(opened: Open, single: Ticks) -> None:
    async with opened(*single, size=(80, 24), colour=False) as (app, _):
        row = next(line for line in lines(app, "cores") if line.startswith(" ND0"))
        assert row.count("|") > row.count(":") == 1
        assert row.count(".") > 20


def pictures_in(directory: Path) -> list[str]:
    return [path.read_text() for path in directory.glob("neuron-top*.svg")]


def _without_processes(tick: TimedSnapshot) -> object:
    from msgspec.structs import replace

    later = tick.snapshot.taken_ns + 1_000_000_000
    return replace(tick.snapshot, processes=(), taken_ns=later)
