"""The pages of neuron-top by their keys: each test presses them in the real app and reads the real screen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from neurontools.base.procfs import read_start_ticks
from neurontools.machine.snapshot import HardwareCounters
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.page_actions import PagePane
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import SourceProblem, TimedSnapshot, Update
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of
from neurontools.tui.widgets.screens import ChooseScreen, PromptScreen
from tests.tui.top.fixed_source import FixedSource
from tests.tui.unframed import selected, unframed

Ticks = tuple[TimedSnapshot, TimedSnapshot]
Open = Callable[..., AbstractAsyncContextManager[tuple[TopApp, Pilot[int]]]]
SECOND_NS = 1_000_000_000

SHORT = (120, 33)
"""Too short for details that nobody asked for."""


@pytest.fixture
def opened() -> Open:
    """The app on a page after it took in all updates."""

    @asynccontextmanager
    async def run(
        page: str, *updates: Update, size: tuple[int, int] = (120, 40), **options: Any
    ) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
        options.setdefault("settings", TopSettings(page=page))
        app = TopApp(FixedSource(*updates), **options)
        async with app.run_test(size=size) as pilot:
            await app.source_ended.wait()
            await pilot.pause()
            yield app, pilot

    return run


def shown(app: TopApp) -> list[str]:
    (pane,) = [pane for pane in app.screen_stack[0].query(PagePane) if pane.display]
    return unframed(pane.lines)


def chosen(app: TopApp) -> str:
    (pane,) = [pane for pane in app.screen_stack[0].query(PagePane) if pane.display]
    return selected(pane.lines)


def bottom(app: TopApp) -> list[str]:
    return [text_of(line) for line in app.screen_stack[0].query_one("#bottom", LinePane).lines]


def notices(app: TopApp) -> str:
    return "\n".join(note.message for note in app._notifications)


def later(tick: TimedSnapshot, seconds: int, **changes: Any) -> TimedSnapshot:
    snapshot = tick.snapshot
    when = {
        "taken_ns": snapshot.taken_ns + seconds * SECOND_NS,
        "taken_unix_s": snapshot.taken_unix_s + seconds,
    }
    return replace(tick, snapshot=replace(snapshot, **when, **changes))


PAGES = (
    ("f1", "o", "overview"),
    ("f2", "h", "history"),
    ("f3", "p", "processes"),
    ("f4", "v", "devices"),
    ("f5", "e", "events"),
)


async def test_every_page_has_a_function_key_a_letter_and_a_place_in_the_bar(
    opened: Open, training: Ticks
) -> None:
    async with opened("overview", *training) as (app, pilot):
        for key, letter, name in (*PAGES, *PAGES):
            await pilot.press(key)
            assert app.page.name == name
            await pilot.press("f1", letter)
            assert app.page.name == name
            assert f"{key.upper()} {app.page.title}" in bottom(app)[1]
        await pilot.press("f3")
        await pilot.click(offset=(bottom(app)[1].index("Devices"), 39))
        assert app.page.name == "devices"


async def test_keys_of_the_classic_page_mean_nothing_elsewhere(opened: Open, training: Ticks) -> None:
    async with opened("devices", *training) as (app, pilot):
        await pilot.press("f", "d", "2", "x")
        assert (app.model.flops, app.model.tab.label) == (False, "all")
        await pilot.press("f1", "f", "2")
        assert (app.model.flops, app.model.tab.label) == (True, "bert-pretrain")


async def test_pages_that_are_not_shown_compute_nothing(
    opened: Open, training: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "neurontools.tui.top.model.machine_view", lambda *_args, **_kwargs: asked.append("view")
    )
    monkeypatch.setattr(
        "neurontools.tui.top.model.process_rows", lambda *_args, **_kwargs: asked.append("rows") or ()
    )
    async with opened("history", *training):
        assert asked == []
    async with opened("processes", *training):
        assert set(asked) == {"rows"}


async def test_history_opens_devices_and_draws_the_selected_one(opened: Open, training: Ticks) -> None:
    more = [later(training[1], second) for second in range(1, 5)]
    async with opened("history", *training, *more, size=(200, 60)) as (app, pilot):
        assert chosen(app).startswith("all cores")
        assert sum("▸" in line for line in shown(app)) == 16
        await pilot.press("down", "enter")
        assert chosen(app).startswith("▾ ND0")
        await pilot.press("down", "down")
        assert chosen(app).startswith("NC1")
        assert shown(app)[0].startswith(" NC1: last minute")
        assert "peak 37.0%" in shown(app)[0]
        await pilot.press("t")
        assert shown(app)[0].startswith(" NC1: last hour")
        await pilot.press("left")
        assert chosen(app).startswith("▸ ND0")
        await pilot.press("right", "x")
        assert sum("▾" in line for line in shown(app)) >= 15
        await pilot.press("x", "end")
        assert chosen(app).startswith("▸ ND15")
        await pilot.press("pageup", "home", "u")
        assert chosen(app).startswith("ND0")
        assert any("Memory used" in line for line in shown(app))


async def test_history_turns_to_processes_and_opens_their_percentiles(opened: Open, training: Ticks) -> None:
    more = [at_work(training[1], second) for second in range(6)]
    async with opened("history", *more) as (app, pilot):
        await pilot.press("u", "u")
        assert chosen(app).startswith("4021 bert-pretrain")
        assert shown(app)[0].startswith(" 4021 bert-pretrain, executions/s: last minute")
        assert "avg 1120.0  peak 1120.0" in shown(app)[0]
        await pilot.press("enter", "u")
        assert chosen(app).startswith("▸ 4021 bert-pretrain")
        await pilot.press("x", "down", "down", "down", "down")
        assert chosen(app).startswith("p100")
        assert shown(app)[0].startswith(" 4021 bert-pretrain, latency p100: last minute")
        assert sum("▾" in line for line in shown(app)) == 3
        await pilot.press("left")
        assert chosen(app).startswith("▸ 4021 bert-pretrain")
        await pilot.press("U", "U", "U")
        assert chosen(app).startswith("all cores")


def at_work(tick: TimedSnapshot, second: int) -> TimedSnapshot:
    processes = tuple(
        replace(
            process,
            cores=tuple(replace(use, executions=40 * second) for use in process.cores),
            latency_counts=(*[0] * 24, 800 * second, 0, 40 * second, *[0] * 37),
        )
        for process in tick.snapshot.processes
    )
    return later(tick, second, processes=processes)


async def test_details_have_curves_of_the_minute_or_the_hour(opened: Open, training: Ticks) -> None:
    more = [at_work(training[1], second) for second in range(6)]
    async with opened("processes", *more, size=(100, 50)) as (app, pilot):
        (line,) = [line for line in shown(app) if "latency p99" in line]
        assert "10.8ms 10.8ms" in line
        (line,) = [line for line in shown(app) if "executions/s" in line]
        assert "1120.0 1120.0" in line
        assert any("last minute" in line for line in shown(app))
        await pilot.press("u")
        assert any("last hour" in line for line in shown(app))


async def test_history_by_the_mouse(opened: Open, training: Ticks) -> None:
    async with opened("history", *training) as (app, pilot):
        row = next(number for number, line in enumerate(shown(app)) if "ND3" in line)
        await pilot.click(offset=(4, row + 1))
        assert chosen(app).startswith("▸ ND3")
        await pilot.click(offset=(4, row + 1))
        assert chosen(app).startswith("▾ ND3")


@pytest.mark.parametrize("key", "PUTCMIXELAVGHRON")
async def test_every_column_sorts_both_ways(opened: Open, training: Ticks, key: str) -> None:
    async with opened("processes", *training, size=(200, 40)) as (app, pilot):
        first = app.pages[2].sorting
        await pilot.press(key)
        once = app.pages[2].sorting
        await pilot.press(key)
        twice = app.pages[2].sorting
        assert once != first
        assert (twice.column, twice.descending) == (once.column, not once.descending)
        assert f"by {once.column.name} " in shown(app)[0]


async def test_the_second_sort_key_is_the_column_before(
    opened: Open, ticks: Callable[..., Ticks], job: type
) -> None:
    jobs = tuple(job(100 + n, "ab"[n % 2], (n,), ((n // 2) / 4,)) for n in range(8))
    async with opened("processes", *ticks(4, 2, jobs=jobs), size=(160, 40)) as (app, pilot):
        await pilot.press("g", "I", "T")
        rows = [line.split() for line in shown(app)[2:10]]
        assert [row[2] for row in rows] == ["a"] * 4 + ["b"] * 4
        utilization = [float(row[5].rstrip("%")) for row in rows]
        assert utilization == sorted(utilization[:4], reverse=True) + sorted(utilization[4:], reverse=True)


async def test_a_click_on_a_head_sorts_and_on_a_row_selects(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training, size=SHORT) as (app, pilot):
        await pilot.click(offset=(shown(app)[1].index("UTIL") + 2, 2))
        assert app.pages[2].sorting.column.name == "utilization"
        await pilot.click(offset=(10, 5))
        pid = chosen(app).split()[0]
        assert pid in shown(app)[4]
        await pilot.click(offset=(10, 5))
        assert any(f"Process {pid}" in line for line in shown(app))


async def test_the_selection_stays_on_its_process_when_rows_move(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training) as (app, pilot):
        await pilot.press("down")
        assert chosen(app).startswith("5117")
        for key in "PIPM":
            await pilot.press(key)
            assert chosen(app).startswith("5117")


async def test_the_filter_works_while_it_is_typed(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training, size=SHORT) as (app, pilot):
        await pilot.press("slash", *"bert")
        assert isinstance(app.screen, PromptScreen)
        assert [line.split()[0] for line in shown(app)[2:-1] if line] == ["4021"]
        await pilot.press(*["backspace"] * 4, *"pid")
        await pilot.press("greater_than_sign", *"5100 device=15")
        assert [line.split()[0] for line in shown(app)[2:-1] if line] == ["5203"]
        await pilot.press("enter")
        assert app.screen is app.screen_stack[0]
        assert "(1 of 3)  filter: pid>5100 device=15" in shown(app)[0]
        await pilot.press("escape")
        assert "Processes (3)" in shown(app)[0]
        await pilot.press("slash", *"tag=x", "escape")
        assert "Processes (3)" in shown(app)[0]


async def test_details_are_shown_by_themselves_where_few_processes_leave_room(
    opened: Open, training: Ticks
) -> None:
    async with opened("processes", *training) as (app, pilot):
        assert any("Process 4021" in line for line in shown(app))
        await pilot.press("down")
        assert any("Process 5117" in line for line in shown(app))
        await pilot.press("escape")
        assert not any("Process 5117" in line for line in shown(app))


async def test_escape_closes_the_details_and_then_takes_the_filter_away(
    opened: Open, training: Ticks
) -> None:
    async with opened("processes", *training, size=SHORT) as (app, pilot):
        await pilot.press("slash", *"tag~bert", "enter", "enter")
        assert any(line.startswith(" Process 4021") for line in shown(app))
        await pilot.press("escape")
        assert not any(line.startswith(" Process 4021") for line in shown(app))
        assert "filter: tag~bert" in shown(app)[0]
        await pilot.press("escape")
        assert "Processes (3)" in shown(app)[0]
        await pilot.press("enter", "slash", *"tag=x", "enter")
        assert "no process matches the filter" in shown(app)[2]
        await pilot.press("escape")  # details of no process are not seen, so there is nothing to close first
        assert "Processes (3)" in shown(app)[0]


async def test_an_invalid_filter_says_why_and_the_last_good_one_stays(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training) as (app, pilot):
        await pilot.press("slash", *"bert ")
        app.screen.query_one(Input).value = "bert pid~4"
        await pilot.pause()
        said = text_of(app.screen.query_one("#prompt-title", LinePane).lines[0])
        assert "pid does not support '~'" in said
        assert "filter: bert" in shown(app)[0]


async def test_a_long_command_is_shown_whole_and_a_long_variable_ends_in_dots(
    opened: Open, training: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = training
    command = (
        "torchrun --nproc_per_node=32 train_llama.py --rank 0 --data /mnt/a/very/long/path --world_size 32"
    )
    one = replace(last.snapshot.processes[0], command=command, origin="live", registered_ns=0)
    snapshot = replace(last.snapshot, processes=(one,))
    monkeypatch.setattr(
        "neurontools.tui.top.pages.details.environment", lambda *_: (("NAME", "x" * 200 + "end"),)
    )
    async with opened("processes", first, replace(last, snapshot=snapshot), size=(80, 60)) as (app, pilot):
        text = shown(app)
        told = [line for line in text if "command     " in line or line.startswith(" " * 13)]
        assert " ".join(" ".join(told[:2]).split()).endswith(command)
        await pilot.press(*["greater_than_sign"] * 10)
        assert any(line.startswith("   NAME=xxx") and line.endswith("x…") for line in shown(app))


async def test_details_show_models_cores_and_scroll(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training, size=(120, 24)) as (app, pilot):
        await pilot.press("enter")
        text = shown(app)
        assert any("Process 4021" in line for line in text)
        assert any("python train.py --rank 4021" in line for line in text)
        for _ in range(20):
            await pilot.press("greater_than_sign")
        assert any("environment: none, the process is recorded" in line for line in shown(app))
        for _ in range(20):
            await pilot.press("less_than_sign")
        await pilot.press("down")
        assert any("Process 5117" in line for line in shown(app))
        await pilot.press("enter")
        assert not any("Process 5117" in line for line in shown(app))


async def test_details_tell_of_custom_operators_where_there_are_any(opened: Open, training: Ticks) -> None:
    def with_gpsimd(tick: TimedSnapshot, gpsimd_ns: int) -> TimedSnapshot:
        first, *others = tick.snapshot.processes
        use, *rest = first.cores
        process = replace(first, cores=(replace(use, gpsimd_ns=gpsimd_ns), *rest))
        return replace(tick, snapshot=replace(tick.snapshot, processes=(process, *others)))

    before, after = with_gpsimd(training[0], 10_000_000), with_gpsimd(training[1], 22_500_000)
    async with opened("processes", before, after, size=SHORT) as (app, pilot):
        await pilot.press("enter")
        (line,) = (line for line in shown(app) if "custom ops" in line)
        assert "12.5ms of GPSIMD time in this interval, 22.5ms in all (modelled)" in line
        await pilot.press("down")
        assert not any("custom ops" in line for line in shown(app))


async def test_the_clipboard_gets_pid_and_command(opened: Open, training: Ticks) -> None:
    async with opened("processes", *training) as (app, pilot):
        await pilot.press("down", "y")
        assert app.clipboard == "5117"
        await pilot.press("Y")
        assert app.clipboard == "python train.py --rank 5117"


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    """A process of ours that says when it is there, with a variable that looks like a secret."""
    code = "import time; print('here', flush=True); time.sleep(600)"
    environ = {**os.environ, "NEURON_RT_NUM_CORES": "2", "MY_API_TOKEN": "hunter2"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def live(training: Ticks, pid: int, ticks: int | None = None) -> Ticks:
    """The machine with its first process being a live one of this host."""

    def change(tick: TimedSnapshot) -> TimedSnapshot:
        first, *others = tick.snapshot.processes
        own = replace(
            first, pid=pid, start_ticks=read_start_ticks(pid) if ticks is None else ticks, origin="live"
        )
        return replace(tick, snapshot=replace(tick.snapshot, processes=(own, *others)))

    return change(training[0]), change(training[1])


async def test_a_signal_goes_to_the_process_after_a_question(
    opened: Open, training: Ticks, victim: subprocess.Popen[str]
) -> None:
    async with opened("processes", *live(training, victim.pid)) as (app, pilot):
        await pilot.press("K")
        assert isinstance(app.screen, ChooseScreen)
        await pilot.press("escape")
        assert victim.poll() is None
        await pilot.press("K", "down", "down", "enter")
        assert victim.wait(timeout=600) == -signal.SIGKILL
        assert f"SIGKILL sent to process {victim.pid}" in notices(app)


async def test_a_process_that_only_has_the_same_pid_gets_no_signal(
    opened: Open, training: Ticks, victim: subprocess.Popen[str]
) -> None:
    async with opened("processes", *live(training, victim.pid, 1)) as (app, pilot):
        await pilot.press("K", "enter")
        assert "its pid belongs to another process now" in notices(app)
        assert victim.poll() is None


async def test_a_process_that_is_gone_is_reported_as_gone(
    opened: Open, training: Ticks, victim: subprocess.Popen[str]
) -> None:
    updates = live(training, victim.pid)
    victim.kill()
    victim.wait()
    async with opened("processes", *updates) as (app, pilot):
        await pilot.press("K", "enter")
        assert f"process {victim.pid} is gone" in notices(app)


async def test_what_is_not_of_this_host_and_readonly_get_no_question(
    opened: Open, training: Ticks, victim: subprocess.Popen[str]
) -> None:
    async with opened("processes", *training) as (app, pilot):
        await pilot.press("K")
        assert app.screen is app.screen_stack[0]
        assert "process 4021 is recorded" in notices(app)
    async with opened("processes", *live(training, victim.pid), readonly=True) as (app, pilot):
        assert "kill" not in bottom(app)[1]
        await pilot.press("K")
        assert app.screen is app.screen_stack[0]
        assert "--readonly" in notices(app)


async def test_the_environment_of_an_own_process_is_shown_and_secrets_are_covered(
    opened: Open, training: Ticks, victim: subprocess.Popen[str]
) -> None:
    async with opened("processes", *live(training, victim.pid), size=(120, 100)) as (app, pilot):
        for _ in range(12):
            await pilot.press("greater_than_sign")
        text = "\n".join(shown(app))
        assert "NEURON_RT_NUM_CORES=2" in text
        assert "hunter2" not in text


async def test_the_tree_groups_children_under_a_parent(
    opened: Open, ticks: Callable[..., Ticks], job: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neurontools.dashboard.process_rows import Presence

    jobs = tuple(job(pid, "", (core,), (0.5,)) for core, pid in enumerate((10, 11, 12, 20)))
    parents = {10: 5, 11: 5, 12: 11, 20: 1}
    monkeypatch.setattr(
        "neurontools.tui.top.pages.processes.presences",
        lambda _: {(pid, pid * 10): Presence(parent, 0) for pid, parent in parents.items()},
    )
    async with opened("processes", *ticks(2, 2, jobs=jobs)) as (app, pilot):
        await pilot.press("t")
        rows = [line for line in shown(app)[2:-1] if line]
        assert "5 " in rows[0]
        assert "uses no device" in rows[0]
        assert [row.split()[0] for row in rows[1:]] == ["10", "11", "12", "20"]
        depth = [row.index("python") for row in rows[1:]]
        assert depth[0] == depth[1] < depth[2]
        assert depth[3] < depth[0]
        await pilot.press("K", "y", "enter")
        assert app.is_running


async def test_devices_as_heat_map_links_and_one_in_full(opened: Open, training: Ticks) -> None:
    wired = [
        replace(tick, snapshot=replace(tick.snapshot, devices=torus(tick.snapshot.devices)))
        for tick in training
    ]
    async with opened("devices", *wired) as (app, pilot):
        assert [line.split()[0] for line in shown(app)[2:33:2]] == [f"ND{index}" for index in range(16)]
        await pilot.press("down", "down")
        assert chosen(app).startswith("ND2")
        await pilot.press("t")
        text = "\n".join(shown(app))
        assert all(f"ND{index:<2d} " in text for index in range(16))
        assert "-x-" in text
        assert "down: ND0-ND1" in text
        await pilot.press("enter")
        assert shown(app)[0].startswith(" Device ND2")
        text = "\n".join(shown(app))
        for words in ("mem_ecc_corrected", "Model Code", "ND1   up"):
            assert words in text
        await pilot.press("right")
        assert shown(app)[0].startswith(" Device ND3")
        await pilot.press("escape", "t", "end", "home", "pagedown", "pageup", "left")
        assert chosen(app).startswith("ND0")


def torus(devices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sixteen devices in a 4x4 torus, the link between the first two broken."""
    found = []
    for device in devices:
        row, column = divmod(device.index, 4)
        around = {
            ((row + down) % 4) * 4 + (column + right) % 4
            for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1))
        }
        broken = {0: (1,), 1: (0,)}.get(device.index, ())
        found.append(replace(device, connected_to=tuple(sorted(around - set(broken))), links_down=broken))
    return tuple(found)


async def test_devices_by_the_mouse(opened: Open, training: Ticks) -> None:
    async with opened("devices", *training) as (app, pilot):
        await pilot.click(offset=(3, 11))
        assert chosen(app).startswith("ND4")
        await pilot.click(offset=(3, 11))
        assert shown(app)[0].startswith(" Device ND4")


async def test_what_happens_is_listed_with_its_time_and_alerts_mark_their_rows(
    opened: Open, training: Ticks
) -> None:
    devices = training[1].snapshot.devices
    broken = replace(devices[3], lost=True, hardware=HardwareCounters(sram_ecc_uncorrected=2))
    after = later(training[1], 2, devices=(*devices[:3], broken, *devices[4:]))
    async with opened("events", *training, after) as (app, pilot):
        text = shown(app)
        assert text[0].rstrip().endswith("2 now")
        assert any("lost-device" in line and "ND3 is lost" in line for line in text)
        assert any("ND3: sram_ecc_uncorrected +2" in line for line in text)
        assert any(line.split()[1].count(":") == 2 for line in text if "sram_ecc" in line)
        title = text_of(app.query_one("#title", LinePane).lines[0])
        assert title.rstrip().endswith("! 2 alerts")
        await pilot.press("down", "y")
        assert "ND3" in app.clipboard
        await pilot.press("t")
        assert any("problems" in line for line in shown(app))
        await pilot.press("v")
        assert any(line.startswith(" !ND3") for line in shown(app))
        await pilot.press("f1")
        assert any(line.startswith("!ND3") for line in shown(app))


async def test_the_selected_event_stays_selected_when_more_come(opened: Open, training: Ticks) -> None:
    snapshot = training[1].snapshot

    def at(second: int) -> TimedSnapshot:
        more = tuple(
            replace(snapshot.processes[0], pid=7000 + number, cores=(), status_counts=())
            for number in range(second)
        )
        counted = replace(snapshot.devices[0], hardware=HardwareCounters(mem_ecc_corrected=second))
        devices = (counted, *snapshot.devices[1:])
        return later(training[1], second, devices=devices, processes=(*snapshot.processes, *more))

    async with opened("events", training[1], at(1), at(2), at(3)) as (app, pilot):
        await pilot.press("down", "down")
        before = chosen(app)
        assert "bert-pretrain x3 started, pids 7000 to 7002" in before
        app.take(at(5))
        await pilot.pause()
        assert "bert-pretrain x5 started, pids 7000 to 7004" in chosen(app)
        await pilot.press("home")
        assert "mem_ecc_corrected +5" in chosen(app)
        app.take(at(9))
        await pilot.pause()
        assert "mem_ecc_corrected +9" in chosen(app)


async def test_an_outage_and_its_end_are_events(opened: Open, training: Ticks) -> None:
    def at(second: int) -> TimedSnapshot:
        return later(training[1], second)

    silent = [SourceProblem(f"no data for {seconds} s") for seconds in (4, 5)]
    recording = SourceProblem("recording stopped: No space left on device", is_outage=False)
    updates = (
        *training,
        *silent,
        at(12),
        recording,
        at(13),
        SourceProblem("machine not running, waiting for it"),
    )
    async with opened("events", *updates) as (app, pilot):
        told = [(one.kind, one.text) for one in app.model.monitor.events]
        assert told == [
            ("no-data", "no data for 4 s"),
            ("data", "data is back after 12 s"),
            ("no-data", "machine not running, waiting for it"),
        ]
        await pilot.press("t")
        assert sum("no-data" in line for line in shown(app)) == 2


async def test_what_a_scenario_says_of_the_host_is_marked_as_modelled(opened: Open, training: Ticks) -> None:
    def with_origins(tick: TimedSnapshot, *origins: str) -> TimedSnapshot:
        processes = tick.snapshot.processes
        named = tuple(replace(one, origin=origin) for one, origin in zip(processes, origins, strict=True))
        return replace(tick, snapshot=replace(tick.snapshot, processes=named))

    def vcpu_bar(app: TopApp) -> str:
        (pane,) = app.screen_stack[0].query("#page-overview")
        assert isinstance(pane, LinePane)
        line = next(text_of(line) for line in pane.lines if " vCPU " in text_of(line))
        return line[line.index(" vCPU ") :].strip("╭╮─ ")

    mixed = [with_origins(tick, "synthetic", "recorded", "recorded") for tick in training]
    async with opened("overview", *mixed, size=(200, 60)) as (app, pilot):
        assert vcpu_bar(app).endswith("Runtime: 1 of 3 modelled")
        await pilot.press("2")
        assert vcpu_bar(app).endswith("Runtime: modelled")
        await pilot.press("3")
        assert vcpu_bar(app) == "vCPU"
        await pilot.press("p", "H")
        rows = {row.split()[0]: row.split() for row in shown(app)[2:5]}
        marked = [pid for pid, words in rows.items() if any(word.startswith("~") for word in words)]
        assert marked == [str(mixed[0].snapshot.processes[0].pid)]
        await pilot.press("home")
        for _ in rows:
            if "origin      synthetic" in "\n".join(shown(app)):
                break
            await pilot.press("down")
        assert "host CPU and memory are modelled" in "\n".join(shown(app))


async def test_themes_change_by_key_and_by_palette(opened: Open, training: Ticks) -> None:
    async with opened("overview", *training) as (app, pilot):
        assert app.look.name == "dark"
        await pilot.press("ctrl+t", "ctrl+t")
        assert (app.look.name, app.current_theme.dark) == ("light", False)
        await pilot.press("ctrl+t", "ctrl+t")
        assert app.look.name == "ansi"
        await pilot.press("ctrl+t")
        assert (app.theme_name, app.look.name) == ("auto", "dark")
        await pilot.press("ctrl+p", *"theme: color")
        await pilot.pause(0.3)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.look.name == "colorblind"


async def test_the_palette_turns_pages(opened: Open, training: Ticks) -> None:
    async with opened("overview", *training) as (app, pilot):
        await pilot.press("ctrl+p", *"page: dev")
        await pilot.pause(0.3)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.page.name == "devices"


async def test_without_colour_there_is_no_other_theme(opened: Open, training: Ticks) -> None:
    async with opened("devices", *training, colour=False) as (app, pilot):
        look = app.look
        await pilot.press("ctrl+t")
        assert app.look is look
        assert " 37 " in shown(app)[2]


async def test_help_names_the_keys_of_the_page_as_they_are_bound(opened: Open, training: Ticks) -> None:
    settings = TopSettings(page="processes", keys={"processes.tree": "z", "quit": "ctrl+x"})
    async with opened("processes", *training, settings=settings, size=(120, 60)) as (app, pilot):
        await pilot.press("question_mark")
        text = "\n".join(text_of(line) for line in app.screen.query_one(LinePane).lines)
        assert "Keys of this page: processes" in text
        assert re.search(r"\bz +tree by parent", text)
        assert re.search(r"ctrl\+x +quit", text)
        await pilot.press("escape", "z")
        assert "tree" in shown(app)[0]
        await pilot.press("t", "q")
        assert app.is_running
        await pilot.press("ctrl+x")
    assert app.return_value == 0


async def test_every_key_of_every_page_does_something_without_data_too(opened: Open) -> None:
    for _, _, name in PAGES[1:]:
        async with opened(name) as (app, pilot):
            for key in app.page.bindings():
                await pilot.press(*key.keys.split(","))
                while len(app.screen_stack) > 1:
                    await pilot.press("escape")
            await pilot.resize_terminal(40, 10)
            await pilot.pause()
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
            assert app.is_running
