"""Several machines at once: the list, turning from one to the next, and machines that are not there."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.sources import open_source
from neurontools.sources.retrying import MergedFeeds, RetryingSource, SourceProblem
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.pages.machines import choice_at, format_machine_bar
from neurontools.tui.top.source import MachineUpdate, SeveralSource, places_of
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of
from tests.tui.top.fixed_source import FixedSource


class Feed:
    """Yields what it is given, and then waits until it is closed."""

    def __init__(self, *updates, ends=True):
        self._updates, self._ends = updates, ends
        self.closed = threading.Event()

    def updates(self):
        for update in self._updates:
            if isinstance(update, Exception):
                raise update
            yield update
        if not self._ends:
            self.closed.wait(10)

    def close(self):
        self.closed.set()


def test_updates_come_with_their_feed_and_a_slow_feed_does_not_delay_others():
    slow = Feed(ends=False)
    several = MergedFeeds([Feed("a", "b"), slow, Feed("c")])
    updates = several.updates()
    assert sorted(next(updates) for _ in range(3)) == [(0, "a"), (0, "b"), (2, "c")]
    several.close()
    assert list(updates) == []
    assert slow.closed.is_set()


def test_they_end_when_all_ended():
    assert sorted(MergedFeeds([Feed("a"), Feed("b")]).updates()) == [(0, "a"), (1, "b")]


def test_a_bug_in_a_feed_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(MergedFeeds([Feed("a", ZeroDivisionError()), Feed(ends=False)]).updates())


def test_a_patient_follower_starts_nothing_and_waits(monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    with RetryingSource("sim", 0.05, machine="late", patient=True) as follower:
        updates = follower.updates()
        assert next(updates) == SourceProblem("machine not running, waiting for it")
        assert launch.list_machines() == ()
        launch.start(StartOptions("late", "trn1.2xlarge"))
        assert next(update for update in updates if not isinstance(update, SourceProblem)).machine == "late"
    launch.stop("late")


@pytest.mark.parametrize(
    ("machines", "remotes", "text"),
    [
        (["a", "a"], [], "two machines are named 'a'"),
        (["a", ""], [], "name"),
        (["a", "../x"], [], "name"),
        (["a"], ["a=http://h"], "two machines are named 'a'"),
        ([], ["nonsense"], "is not the address of an exporter"),
        ([], ["x=ftp://h"], "is not the address of an exporter"),
        ([f"m{number}" for number in range(65)], [], "too many"),
    ],
)
def test_invalid_input_is_named(machines, remotes, text):
    with pytest.raises(UsageError, match=text):
        places_of(machines, remotes)


def test_a_remote_machine_has_the_name_that_it_is_given_or_that_of_its_host():
    places = places_of(["a"], ["ci=http://h:1/x", "http://user@h2:8000", "http://h3/metrics?job=a"])
    assert [place.name for place in places] == ["a", "ci", "h2:8000", "h3"]
    assert SeveralSource(places[1:2], 1.0).source_names == ("remote:h:1",)
    assert places[3].url == "http://h3/metrics?job=a"


@pytest.fixture
def two_machines():
    launch.start(StartOptions("a", "trn1.2xlarge"))
    info = launch.start(StartOptions("b", "inf2.24xlarge"))
    yield info
    for name in ("a", "b"):
        launch.stop(name, force=True)


def test_the_list_as_text_and_json(tool, two_machines):
    with Client.connect("b") as client:
        client.register("job", "python train.py", count=2)
        arguments = ("--once", "--interval", "0.1", "--machine", "a,b,c", "--remote", "ci=http://127.0.0.1:9")
        text = tool("neuron-top", *arguments)
        values = tool("neuron-top", *arguments, "--json")
        client.unregister()
    assert (text.returncode, values.returncode) == (0, 0)
    rows = [line.split() for line in text.stdout.splitlines()]
    assert rows[1][0] == "MACHINE"
    assert rows[2][:5] == ["a", "trn1.2xlarge", "1", "2", "0"]
    assert rows[3][:5] == ["b", "inf2.24xlarge", "6", "12", "2"]
    assert rows[4][0] == "c"
    assert "machine not running" in text.stdout
    assert "Connection refused" in text.stdout
    assert rows[-1][:6] == ["4", "machines", "7", "14", "2", "0%"]
    told = {one["name"]: one for one in json.loads(values.stdout)["machines"]}
    assert (told["b"]["cores"], told["b"]["used_cores"], told["b"]["state"]) == (12, 2, "ok")
    assert (told["c"]["cores"], told["c"]["utilization"]) == (None, None)


def shown(app, pane):
    return [text_of(line).rstrip() for line in app.query_one(f"#{pane}", LinePane).lines]


async def until(pilot, condition):
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("never")


async def test_keys_turn_from_machine_to_machine_and_back_to_the_list(two_machines):
    source = SeveralSource(places_of(["a", "b", "c"], []), 0.1)
    app = TopApp(source, machines=[(name, f"sim:{name}") for name in "abc"])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: sum("ok" in line for line in shown(app, "page-machines")) >= 2)
        assert "3 machines" in shown(app, "title")[0]
        await pilot.press("down", "enter")
        await until(pilot, lambda: "inf2.24xlarge" in shown(app, "title")[0])
        await pilot.press("n")
        assert "machine not running" in shown(app, "title")[0]
        await pilot.press("n")
        assert "trn1.2xlarge" in shown(app, "title")[0]
        await pilot.press("h", "b", "b")
        assert (app.page.name, "inf2.24xlarge" in shown(app, "title")[0]) == ("history", True)
        await pilot.press("space")
        assert "paused" in shown(app, "title")[0]
        await pilot.press("m")
        assert any("b " in line and "paused" in line for line in shown(app, "page-machines"))
        os.kill(two_machines.pid, signal.SIGSTOP)
        await pilot.press("up")
        os.kill(two_machines.pid, signal.SIGCONT)
        await pilot.click("#page-machines", offset=(3, 2))
        assert app.page.name == "overview"
        assert "trn1.2xlarge" in shown(app, "title")[0]


async def test_with_one_machine_the_keys_of_several_mean_nothing(two_machines):
    app = TopApp(FixedSource())
    async with app.run_test() as pilot:
        await pilot.press("m", "f6", "n", "b")
        assert app.page.name == "overview"


def test_an_update_says_whose_it_is():
    source = SeveralSource(places_of(["nobody"], []), 0.1)
    update = next(source.updates())
    source.close()
    assert update == MachineUpdate(0, SourceProblem("machine not running, waiting for it"))


def titled(app):
    return shown(app, "machines")[0]


async def test_every_page_names_all_machines_and_a_click_turns_to_one(two_machines):
    source = SeveralSource(places_of(["a", "b", "c"], []), 0.1)
    app = TopApp(source, machines=[(name, f"sim:{name}") for name in "abc"])
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: titled(app) == " Machines  >all< a  b  c?")
        await pilot.press("n")
        assert titled(app) == " Machines   all  a >b< c?"
        for key in ("h", "p", "v", "e", "o"):
            await pilot.press(key)
            assert titled(app) == " Machines   all  a >b< c?"
            assert sum(len(pane.lines) for pane in app.query(LinePane)) == 30
        await pilot.click(offset=(titled(app).index(" a ") + 1, 1))
        assert "trn1.2xlarge" in shown(app, "title")[0]
        await pilot.click(offset=(titled(app).index("all") + 1, 1))
        assert app.page.name == "machines"
        await pilot.press("b", "p")
        row = next(number for number, line in enumerate(shown(app, "page-processes")) if "PID" in line)
        await pilot.click(offset=(7, row + 2))
        assert (
            app.pages[2].sorting.column.name == "pid"
        )  # the head is a line further down, and still where it is clicked
        await pilot.resize_terminal(100, 16)
        await until(pilot, lambda: not app.query_one("#machines", LinePane).lines)


def test_the_strip_keeps_the_current_machine_in_view():
    source = SeveralSource(places_of([f"machine-{number}" for number in range(30)], []), 1.0)
    app = TopApp(source, machines=[(place.name, "") for place in source.places])
    for current in (None, 0, 14, 29):
        text = text_of(format_machine_bar(app.machines, current, 80))
        assert len(text) == 80
        assert (">all<" if current is None else f">machine-{current}?<") in text
        at = text.index(">") + 2
        assert choice_at(app.machines, current, 80, at) == (current,)
    assert choice_at(app.machines, None, 80, 3) is None


def test_each_machine_is_recorded_into_a_file_of_its_own(two_machines, tmp_path):
    places = places_of(["a", "b", "c"], ["ci/west=http://127.0.0.1:9"])
    source = SeveralSource(places, 0.1, str(tmp_path / "run.jsonl"))
    told = {0: 0, 1: 0}
    for one in source.updates():
        told[one.index] = told.get(one.index, 0) + 1
        if told[0] > 3 and told[1] > 3:
            break
    source.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.a.jsonl", "run.b.jsonl"}  # the others never told anything
    with open_source(str(tmp_path / "run.b.jsonl")) as recording:
        assert recording.snapshot().instance_type == "inf2.24xlarge"


def test_a_recording_that_is_there_already_stops_all_of_them(tmp_path):
    (tmp_path / "run.b.jsonl").write_text("mine")
    with pytest.raises(NeuronToolsError, match=r"run\.b\.jsonl already exists"):
        SeveralSource(places_of(["a", "b"], []), 1.0, str(tmp_path / "run.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.b.jsonl"]


def test_narrow_lists_leave_columns_out_before_what_is_wrong():
    source = SeveralSource(places_of(["c"], []), 1.0)
    app = TopApp(source, machines=[("c", "")])
    app.machines[0].model.update(SourceProblem("machine not running, waiting for it"))
    for width, heads in (
        (80, "TYPE CORES USED UTIL MEM STATE"),
        (130, "TYPE DEV CORES USED UTIL MEM OF PROC ECC STATE"),
    ):
        lines = [text_of(line) for line in app.machines_page.lines(app.model, width, 10)]
        assert lines[1].split() == ["MACHINE", *heads.split()]
        assert "machine not r" in lines[2]
        assert {len(line) for line in lines} == {width}
