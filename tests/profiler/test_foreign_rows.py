"""Traces of other programs: which begin an end belongs to, which rows are a device, and what is work there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.commands.profile import main
from neurontools.profiler.analysis.annotated_steps import annotated_steps
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.summary import device_rows, engine_totals
from neurontools.profiler.capture.format import Track
from neurontools.profiler.exchange.export import export
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace

UNIX_US = 1_708_722_576_000_000
PLACE = {"pid": 1, "tid": 1}


def read(home: Path, events: list[dict[str, Any]] | str, **more: Any) -> Trace:
    text = events if isinstance(events, str) else json.dumps({"traceEvents": events, **more})
    (home / "t.json").write_text(text)
    return open_trace(str(home / "t.json"))


def times(trace: Trace) -> list[tuple[str, int, int]]:
    """Return name, start and end of every event in microseconds."""
    found = []
    for row in trace.rows:
        block = row.events.block(0, row.events.count)
        for start, duration, action in zip(
            block.start.tolist(), block.duration.tolist(), block.action.tolist(), strict=True
        ):
            found.append((trace.actions[action].name, start // 1000, (start + duration) // 1000))
    return sorted(found)


def mark(phase: str, at: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "ts": at, **PLACE, **({} if name is None else {"name": name}), **more}


@pytest.mark.parametrize(
    ("marks", "expected", "problems"),
    [
        ("B0A B5B E5A E9B", [("A", 0, 5), ("B", 5, 9)], 0),
        ("B0A B1B E9A", [("A", 0, 9)], 1),
        ("B0A B1B E4B E9A", [("A", 0, 9), ("B", 1, 4)], 0),
        ("B0A B1A E4A E9A", [("A", 0, 9), ("A", 1, 4)], 0),
        ("B0A B1B B2A E3A E4B E5A", [("A", 0, 5), ("A", 2, 3), ("B", 1, 4)], 0),
        ("B0A B1B E4 E9", [("A", 0, 9), ("B", 1, 4)], 0),
        ("B0A B1B E4A E9", [("A", 0, 4), ("B", 1, 9)], 0),
        ("B0A B1B E4 E9A", [("A", 0, 9), ("B", 1, 4)], 0),
        ("B0A E3C E9A", [("A", 0, 9)], 1),
        ("B0A E3C E9", [("A", 0, 9)], 1),
        ("B0A E0A B0A E9A", [("A", 0, 0), ("A", 0, 9)], 0),
        ("E0A B0A E9A", [("A", 0, 9)], 1),
        ("E9B E5A B5B B0A", [("A", 0, 5), ("B", 5, 9)], 0),
        ("B0A X1C B2B E3A E4B", [("A", 0, 3), ("B", 2, 4), ("C", 1, 2)], 0),
    ],
)
def test_an_end_closes_the_topmost_begin_of_its_name(
    home: Path, marks: str, expected: list[tuple[str, int, int]], problems: int
) -> None:
    events = [mark(word[0], int(word[1]), word[2:] or None, dur=1) for word in marks.split()]
    trace = read(home, events)
    assert times(trace) == expected
    assert len(trace.problems) == problems


def test_threads_processes_and_ids_have_begins_of_their_own(home: Path) -> None:
    events = [
        mark("B", 0, "A"),
        mark("B", 1, "A", tid=2),
        mark("B", 2, "A", pid=2),
        mark("b", 3, "A", id="1", cat="c"),
        mark("b", 4, "A", id="2", cat="c"),
        mark("E", 5, "A", pid=2),
        mark("E", 6, "A", tid=2),
        mark("E", 7, "A"),
        mark("e", 8, "A", id="1", cat="c"),
        mark("e", 9, "A", id="2", cat="c"),
    ]
    assert times(read(home, events)) == [("A", s, e) for s, e in ((0, 7), (1, 6), (2, 5), (3, 8), (4, 9))]


def test_a_number_as_text_is_the_same_process_and_thread(home: Path) -> None:
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        mark("B", 0, "A", pid="1", tid="1"),
        mark("E", 5, "A"),
        mark("X", 6, "B", tid="1", dur="2"),
    ]
    trace = read(home, events)
    assert [row.label for row in trace.rows] == ["main"]
    assert times(trace) == [("A", 0, 5), ("B", 6, 8)]


def test_very_many_ends_of_other_names_cost_no_more(home: Path) -> None:
    count = 20_000
    begins = [mark("B", number, f"b{number}") for number in range(count)]
    ends = [mark("E", count + number, f"b{number}") for number in range(count)]
    nothing = [mark("E", 2 * count, f"e{number}") for number in range(count)]
    trace = read(home, [*begins, *ends, *nothing])
    assert trace.event_count == count
    assert trace.problems == (f"{count} events that end what never began left out",)


ENDS = [",]}", ", ]}", ",\n\n]\n}", ",,]}", ',],"displayTimeUnit":"ns",}', "],}"]
STARTS = ('{"traceEvents":[', '{"a":1,"traceEvents":[')


@pytest.mark.parametrize(
    ("start", "end"),
    [*((start, end) for start in STARTS for end in ENDS), *(("[", end) for end in (",]", ", ]\n", ",,]"))],
)
def test_a_comma_before_the_last_bracket_costs_nothing(home: Path, start: str, end: str) -> None:
    events = ",".join(json.dumps(mark("X", at, "a", dur=1)) for at in range(3))
    trace = read(home, start + events + end)
    assert trace.event_count == 3
    assert trace.problems == ()


LOST = {"ph": "X", "name": "lost", "ts": 0, "dur": 0, **PLACE}


@pytest.mark.parametrize(
    "lost",
    [LOST, {**LOST, "ts": "0"}, {**LOST, "ts": 0.0001}, {**LOST, "dur": UNIX_US}, {**LOST, "tid": 2}],
    ids=["zero", "text", "nearly", "end alone", "own thread"],
)
def test_events_without_a_time_are_counted_and_left_out(home: Path, lost: dict[str, Any]) -> None:
    known = [mark("X", UNIX_US + 100 * at, "a", dur=50) for at in range(20)]
    trace = read(home, [*known, *[lost] * 50])
    assert (trace.event_count, trace.end_ns) == (20, 1_950_000)
    assert trace.problems == ("50 events without a time left out",)


@pytest.mark.parametrize("first", [0, 0.5])
def test_a_trace_that_begins_at_zero_keeps_its_first_event(home: Path, first: float) -> None:
    events = [mark("X", 0, "all", dur=2 * 86_400 * 10**6), mark("X", 86_400 * 10**6 + 1, "late", dur=1)]
    assert read(home, events).event_count == 2
    short = [{**mark("X", 0, "a", dur=1), "ts": first}, mark("X", 3_600 * 10**6, "b", dur=1)]
    assert read(home, short).event_count == 2


HOST_EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 1, "ts": 100, "dur": 50}


def device(category: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "gemm", "pid": 5, "tid": 7, "ts": 200, "dur": 600, **more}


def named(kind: str, text: str, pid: int = 5, tid: int = 7) -> dict[str, Any]:
    key = "labels" if kind == "process_labels" else "name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: text}}


@pytest.mark.parametrize(
    "category",
    ["kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "xpu_kernel", "npu_kernel", "hpu_op", "mlu_memcpy",
     "GCU_MEMSET", "mtia_ccp_events", "privateuse1_kernel"],
)  # fmt: skip
def test_activities_of_devices_of_all_makers_are_the_devices(home: Path, category: str) -> None:
    trace = read(home, [HOST_EVENT, device(category)])
    assert [each.name for each in top_operators(trace)] == ["gemm"]
    assert device_rows(trace) == ("pid 5 thread 7",)


@pytest.mark.parametrize(
    ("more", "extra"),
    [
        ([named("process_labels", "GPU 0")], {}),
        ([named("process_labels", "XPU 3")], {}),
        ([named("process_labels", "NPU")], {}),
        ([named("process_name", "/device:GPU:0/stream:all Compute")], {}),
        ([named("process_name", "/job:a/device:TPU:0")], {}),
        ([named("process_name", "stream 7")], {}),
        ([named("process_name", "GPU stream")], {}),
        ([], {"deviceProperties": [{"id": 5, "name": "A100"}]}),
        ([device("new_maker_op", args={"device": 0, "stream": 7})], {}),
    ],
)
def test_names_properties_and_arguments_tell_a_device(
    home: Path, more: list[dict[str, Any]], extra: dict[str, Any]
) -> None:
    trace = read(home, [HOST_EVENT, *more, device("new_maker_op")], **extra)
    assert {each.name for each in top_operators(trace)} == {"gemm"}


@pytest.mark.parametrize(
    ("category", "more", "extra"),
    [
        ("viz", [named("process_name", "GPU Process")], {}),
        ("gpu", [named("process_name", "GPU Process")], {}),
        ("gpu.service", [named("process_labels", "GPU")], {}),
        ("xpu_runtime", [named("process_labels", "GPU 5")], {}),
        ("privateuse1_driver", [], {"deviceProperties": [{"id": 5}]}),
        ("cuda_runtime", [device("cuda_runtime", args={"device": 0, "stream": 7})], {}),
        ("video", [device("video", args={"device": "cam", "stream": 1})], {}),
        ("step", [named("process_name", "/device:CPU:0")], {}),
        ("step", [device("python_function", tid=8)], {"deviceProperties": [{"id": 5}]}),
    ],
)
def test_what_only_looks_like_a_device_is_the_hosts(
    home: Path, category: str, more: list[dict[str, Any]], extra: dict[str, Any]
) -> None:
    trace = read(home, [HOST_EVENT, *more, device(category)], **extra)
    assert device_rows(trace) == ()
    assert {each.name for each in top_operators(trace)} == {"gemm", "aten::mm"}


SPANS = [
    ("gpu_user_annotation", "DistributedDataParallel.forward"),
    ("gpu_user_annotation", "ProfilerStep#4"),
    ("user_annotation", "forward"),
    ("kernel", "ProfilerStep#4"),
    ("mlu_user_annotation", "forward"),
    ("cuda_sync", "Stream Wait Event"),
    ("xpu_sync", "Event Sync"),
]


@pytest.mark.parametrize(("category", "name"), SPANS)
def test_spans_of_a_device_row_are_no_work(
    home: Path, category: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step = {**HOST_EVENT, "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 100, "dur": 1000}
    span = device(category, name=name, ts=100, dur=900)
    trace = read(home, [step, HOST_EVENT, span, device("kernel")])
    assert [(each.name, each.total_ns) for each in top_operators(trace)] == [("gemm", 600_000)]
    assert {each.engine: each.busy_ns for each in engine_totals(trace)}["pid 5 thread 7"] == 600_000
    found = annotated_steps(trace, 0)
    assert found is not None
    assert found.device_busy_ns.tolist() == [600_000]
    (kept,) = trace.rows_of(Track.ANNOTATION)
    assert (kept.label, kept.events.count) == ("thread 7 annotations", 1)
    export(trace, TraceFormat.CHROME, str(home / "again.json"))
    again = open_trace(str(home / "again.json"))
    assert [(each.name, each.total_ns) for each in top_operators(again)] == [("gemm", 600_000)]
    query = "SELECT count(*) AS n FROM SystemProfileEvents WHERE trace_event_source LIKE '%annotations'"
    assert main(["sql", "t.json", "-q", query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] == 1


def test_what_the_host_does_on_a_track_of_the_device_stays_the_hosts(home: Path) -> None:
    trace = read(home, [device("cpu_op", name="aten::mm", ts=100), device("kernel")])
    assert [(row.track, row.events.count) for row in trace.rows] == [(Track.HOST, 1), (Track.DEVICE, 1)]


def test_a_container_whose_program_has_the_number_of_a_device_is_a_host(home: Path) -> None:
    events = [
        named("process_labels", "CPU", pid=1),
        named("process_labels", "GPU 1", pid=1),
        {**HOST_EVENT, "pid": 1},
        {**HOST_EVENT, "pid": 1, "tid": 2, "cat": "user_annotation", "name": "forward"},
        device("kernel", pid=0),
    ]
    trace = read(home, events, deviceProperties=[{"id": 0}, {"id": 1}])
    assert device_rows(trace) == ("pid 0 thread 7",)


def test_summary_and_top_name_the_rows_of_the_device(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(home, [HOST_EVENT, *(device("kernel", tid=number) for number in range(6))])
    for verb in ("summary", "top"):
        assert main([verb, "t.json"]) == 0
        last = capsys.readouterr().out.rstrip().splitlines()[-1]
        assert last.startswith("rows of the device: pid 5 thread 0, ")
        assert last.endswith("and 2 more")
