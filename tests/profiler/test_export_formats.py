"""Flame graphs, tables, TensorBoard and HTML: each read back by a reader of its own."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.protowire import encode_varint
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.roofline import Roofline, RooflinePoint
from neurontools.profiler.exchange.export import export, write_csv
from neurontools.profiler.exchange.html_plots import roofline_plot
from neurontools.profiler.exchange.html_report import write_html
from neurontools.profiler.exchange.perfetto import constant, join, message, varints
from neurontools.profiler.exchange.stacks import write_folded, write_speedscope
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.trace.open import open_trace
from tests.profiler.test_export import decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

    from neurontools.profiler.trace.trace import Trace


def text_of(write: Callable[[Trace, IO[str]], None], trace: Trace) -> str:
    file = io.StringIO()
    write(trace, file)
    return file.getvalue()


def modelled_totals(trace: Trace) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in top_operators(trace):
        found[each.name] += each.total_ns
    return dict(found)


def test_folded_stacks_add_up_to_the_operators(trace: Trace) -> None:
    found: Counter[str] = Counter()
    for line in text_of(write_folded, trace).splitlines():
        stack, weight = line.rsplit(" ", 1)
        core, source, operator, engine = stack.split(";")
        assert core in {"pid 4242 NC0", "pid 4242 NC1"}
        assert source == "train.py:12"
        assert engine.endswith(")")
        found[operator] += int(weight)
    assert dict(found) == modelled_totals(trace)


def test_speedscope_has_a_profile_a_core_and_the_same_times(trace: Trace) -> None:
    data = json.loads(text_of(write_speedscope, trace))
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = data["shared"]["frames"]
    assert {"name": "train.py:12", "file": "train.py", "line": 12} in frames
    found: Counter[str] = Counter()
    assert [profile["name"] for profile in data["profiles"]] == ["pid 4242 NC0", "pid 4242 NC1"]
    for profile in data["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
        assert profile["endValue"] == sum(profile["weights"])
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            found[frames[stack[1]]["name"]] += weight
    assert dict(found) == modelled_totals(trace)


def test_flame_graphs_of_other_programs_show_what_called_what(home: Path) -> None:
    common = {"ph": "X", "cat": "cpu_op", "pid": 77, "tid": 1}
    calls = [
        ("outer", 0, 100),
        ("inner; one", 10, 30),
        ("leaf", 20, 5),
        ("inner; one", 50, 20),
        ("alone", 200, 7),
    ]
    events = [{**common, "name": name, "ts": ts, "dur": dur} for name, ts, dur in calls]
    (home / "t.json").write_text(json.dumps(events))
    assert sorted(text_of(write_folded, open_trace(str(home / "t.json"))).splitlines()) == [
        "pid 77 thread 1;alone 7000",
        "pid 77 thread 1;outer 50000",
        "pid 77 thread 1;outer;inner, one 45000",
        "pid 77 thread 1;outer;inner, one;leaf 5000",
    ]


def test_csv_is_a_line_an_operator(trace: Trace) -> None:
    rows = list(csv.DictReader(io.StringIO(text_of(write_csv, trace))))
    expected = top_operators(trace)
    assert [(row["name"], row["engine"], int(row["total_ns"]), int(row["count"])) for row in rows] == [
        (each.name, each.engine, each.total_ns, each.count) for each in expected
    ]


def read_xspace(data: bytes) -> dict[str, Counter[str]]:
    """Return the time of each operator in picoseconds by plane."""
    found: dict[str, Counter[str]] = {}
    for plane in map(decode, decode(data)[1]):
        names = {}
        for entry in map(decode, plane[4]):
            metadata = decode(entry[2][0])
            assert metadata[1] == entry[1]
            names[entry[1][0]] = metadata[2][0].decode()
        times = found.setdefault(plane[2][0].decode(), Counter())
        for line in map(decode, plane[3]):
            assert line[1][0] >= 1
            end = 0
            for event in map(decode, line[4]):
                (offset,), (duration,) = event[2], event[3]
                assert offset >= end, "events of a line never overlap"
                end = offset + duration
                times[names[event[1][0]]] += duration
    return found


def test_tensorboard_finds_planes_with_the_same_times(trace: Trace, home: Path) -> None:
    export(trace, TraceFormat.TENSORBOARD, str(home / "logs"))
    (path,) = (home / "logs" / "plugins" / "profile").glob("*/*.xplane.pb")
    planes = read_xspace(path.read_bytes())
    assert all(name.startswith("/device:CUSTOM:") for name in planes)
    found: Counter[str] = Counter()
    for name, times in planes.items():
        if "modelled" in name:
            found += times
    del found["mlp"]
    assert {name: total // 1000 for name, total in found.items()} == modelled_totals(trace)


XPROF = """
import sys
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
sys.stdout.write(xspace_to_tool_data(sys.argv[1:], "trace_viewer", {})[0])
"""


@pytest.mark.skipif(
    find_spec("xprof") is None, reason="xprof, TensorBoard's profile plugin, is not installed"
)
def test_the_profile_plugin_shows_every_event_with_its_time(trace: Trace, home: Path) -> None:
    export(trace, TraceFormat.TENSORBOARD, str(home / "logs"))
    (path,) = (home / "logs" / "plugins" / "profile").glob("*/*.xplane.pb")
    command = [sys.executable, "-c", XPROF, str(path)]
    done = subprocess.run(command, capture_output=True, timeout=600, check=True)
    found: Counter[tuple[str, int]] = Counter()
    for event in json.loads(done.stdout)["traceEvents"]:
        if event.get("ph") == "X":
            found[event["name"], round(event["dur"] * 1000)] += 1
    expected: Counter[tuple[str, int]] = Counter()
    for row in trace.rows:
        block = row.events.block(0, row.events.count)
        for action, duration in zip(block.action.tolist(), block.duration.tolist(), strict=True):
            expected[trace.actions[action].name, duration] += 1
    assert found == expected


class Page(HTMLParser):
    """What a reader needs of a page: text, tags that were closed, and what it would fetch or run."""

    void = frozenset({"meta", "rect", "line", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def test_the_report_is_one_page_that_fetches_and_runs_nothing(trace: Trace) -> None:
    text = text_of(write_html, trace)
    page = page_of(text)
    assert (page.tags["script"], page.links) == (0, [])
    assert "url(" not in text
    assert page.tags["svg"] == 1
    words = " ".join(page.text)
    for name in ("Advice", "Steps, measured", "Operators by modelled time", "Engines, modelled", "aten.mm"):
        assert name in words


def test_the_steps_of_a_trace_without_a_device_have_no_legend(home: Path) -> None:
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 20}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 5}
    steps = [step | {"name": f"ProfilerStep#{number}", "ts": 30 * number} for number in range(2)]
    for events, legend in ((steps, []), ([*steps, kernel], ["execute", "idle"])):
        (home / "t.json").write_text(json.dumps(events))
        page = text_of(write_html, open_trace(str(home / "t.json")))
        assert "2 steps: median 20.00 us" in page
        assert re.findall(r'class="key (\w+)"', page) == legend


def test_the_report_escapes_what_programs_wrote(home: Path) -> None:
    name = "<script>alert(1)</script>\x1b[31m&amp;"
    event = {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    (home / "t.json").write_text(json.dumps([event]))
    text = text_of(write_html, open_trace(str(home / "t.json")))
    page = page_of(text)
    assert page.tags["script"] == 0
    assert "\x1b" not in text
    assert "measured by another program" in " ".join(page.text)


def test_the_roofline_has_a_dot_an_operator_and_its_numbers() -> None:
    points = tuple(
        RooflinePoint(
            name, 1000, 0.5, flops, nbytes, flops * 1e6, nbytes * 1e6, flops / nbytes, bound, 1e12, 0.5, 500
        )
        for name, flops, nbytes, bound in (
            ("aten.mm", 10**6, 1000, "compute"),
            ("aten.add", 10, 10**5, "memory"),
        )
    )
    page = page_of(roofline_plot(Roofline(points, 92e12, 410e9)))
    assert page.tags["circle"] == 2
    words = " ".join(page.text)
    assert "aten.mm: 1.000 us, 1.000 TFLOP/s, 1e+03 FLOP/B, bound by compute, 50% of the roof" in words
    assert roofline_plot(Roofline((), 92e12, 410e9)) == ""
    assert roofline_plot(Roofline(points, 0, 0)) == ""


BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed, so no browser draws the report")
def test_a_browser_draws_the_report_as_it_is_written(trace: Trace, home: Path) -> None:
    assert BROWSER is not None
    export(trace, TraceFormat.HTML, str(home / "report.html"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}/browser"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=1000", "--dump-dom", f"file://{home}/report.html"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    drawn, written = page_of(done.stdout.split("\n", 1)[1]), page_of((home / "report.html").read_text())
    for tag in ("svg", "table", "tr", "rect", "circle", "section"):
        assert drawn.tags[tag] == written.tags[tag], tag


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_columns_of_varints_are_those_of_one_after_another(values: list[int]) -> None:
    column = varints(np.array(values, dtype=np.int64))
    assert join(column) == b"".join(encode_varint(value) for value in values)
    framed = join(constant(b"\x0a", len(values)), *message(column, constant(b"xyz", len(values))))
    assert framed == b"".join(
        b"\x0a" + encode_varint(len(encode_varint(value)) + 3) + encode_varint(value) + b"xyz"
        for value in values
    )
