"""neuron-top with other sources than the simulated machine, and what its title bar says."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.rows import title_line
from neurontools.tui.top.source import FollowedSource, TimedSnapshot
from tests.sources.lines import line, runtime
from tests.sysfs.machines import machine


@pytest.fixture
def recording(home):
    (home / "run.jsonl").write_text(
        "".join(line(runtime(7, {0: 25.0, 1: 75.0}, tag="trainer")) for _ in range(3))
    )
    return "run.jsonl"


def title(source, width, trouble=""):
    model = TopModel(source=source)
    model.update(TimedSnapshot(replace(machine("trn1.2xlarge"), instance_id="i-0123456789abcdef0"), None))
    model.trouble = trouble
    return "".join(text for text, _ in title_line(model, width))


def test_the_title_bar_names_the_source_on_the_left():
    assert title("file:run.jsonl", 120).startswith(" file:run.jsonl  ")
    assert title("real", 120).startswith(" real  ")
    assert title("", 120).strip().startswith("neuron-top ")


@pytest.mark.parametrize("width", range(40, 140, 7))
def test_the_title_moves_only_where_the_source_needs_its_place(width):
    plain, named = title("", width), title("file:a-rather-long-name.jsonl", width)
    assert len(named) == len(plain) == width
    if "file:" in named:
        label = len(" file:a-rather-long-name.jsonl ")
        assert named.index("neuron-top") == max(label, plain.index("neuron-top"))
    else:
        assert named == plain


def test_one_screen_of_a_recording_shows_its_end(recording, tool):
    run = tool("neuron-top", "--once", "--source", recording)
    assert (run.returncode, run.stderr) == (0, "")
    assert "(Avg: 50.00%)" in run.stdout
    assert run.stdout.startswith(" file:run.jsonl ")


def test_no_user_is_named_where_the_source_has_none(recording, tool, monkeypatch):
    told = tool("neuron-top", "--once", "--source", recording, "--page", "processes", "--json")
    assert [row["user"] for row in json.loads(told.stdout)["processes"]] == [None]
    monkeypatch.setenv("COLUMNS", "200")
    shown = tool("neuron-top", "--once", "--source", recording, "--page", "processes")
    assert shown.stdout.splitlines()[-1].split()[:3] == ["7", "-", "trainer"]


def test_one_screen_of_a_cut_recording_warns(recording, home, tool):
    with (home / recording).open("a") as file:
        file.write('{"neuron_runtime_data":[')
    run = tool("neuron-top", "--once", "--source", recording)
    assert run.returncode == 0
    assert run.stderr == "warning: run.jsonl: stopped at line 4, which is cut off\n"
    assert "(Avg: 50.00%)" in run.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--source", "no-such-file"), 2, "unknown source 'no-such-file'"),
        (("--source", "real"), 3, "no Neuron driver with devices on this host"),
        (("--source", "run.jsonl", "--machine", "ci"), 2, "source 'run.jsonl' is not simulated"),
    ],
)
def test_what_cannot_be_opened_is_one_line(recording, home, tool, monkeypatch, words, code, message):
    monkeypatch.setenv("NEURONTOOLS_SYSFS_ROOT", str(home))
    run = tool("neuron-top", "--once", *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.count("\n") == 2
    assert message in run.stderr


async def test_a_recording_plays_to_its_end_and_says_so(recording):
    app = TopApp(FollowedSource(recording, 0.1))
    async with app.run_test(size=(120, 30)) as pilot:
        await asyncio.wait_for(app.source_ended.wait(), 20)
        await pilot.pause()
        assert app.model.trouble == "end of the recording"
        assert app.model.shown.view is not None
        assert app.model.shown.view.mean_utilization == pytest.approx(0.5)
