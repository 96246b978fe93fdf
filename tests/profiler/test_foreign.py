"""Traces of other programs: what is read, what is left out, what is refused."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.commands.profile import main
from neurontools.profiler.analysis import tree as modules
from neurontools.profiler.analysis.operators import By, group_totals, top_operators
from neurontools.profiler.analysis.summary import report, to_json, to_text
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.exchange import chrome_columns, chrome_text
from neurontools.profiler.exchange.chrome_columns import read_part
from neurontools.profiler.exchange.chrome_events import join_parts, read_chrome
from neurontools.profiler.exchange.export import export
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.trace.intervals import nest
from neurontools.profiler.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.exchange.chrome_events import ForeignEvents
    from neurontools.profiler.trace.trace import Trace

KINETO: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "python3"}},
    {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 77, "tid": 1, "ts": 100.001, "dur": 10.0},
    {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 77, "tid": 1, "ts": 102.0, "dur": 6.5},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 105.25, "dur": 20.125},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 77, "tid": 1, "ts": 102.0, "id": 1},
]


def kineto(**more: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": KINETO, **more}


def written(path: Path, value: object) -> Trace:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return open_trace(str(path))


def events(trace: Trace) -> list[tuple[str, str, int, int]]:
    found = []
    for row in trace.rows:
        block = row.events.block(0, row.events.count)
        for start, duration, action in zip(
            block.start.tolist(), block.duration.tolist(), block.action.tolist(), strict=True
        ):
            found.append((row.label, trace.actions[action].name, start, duration))
    return found


EXPECTED = [
    ("stream 7", "gemm", 5249, 20125),
    ("thread 1", "aten::linear", 0, 10000),
    ("thread 1", "aten::addmm", 1999, 6500),
]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(kineto()),
        json.dumps(kineto(), indent=2),
        json.dumps(KINETO),
        json.dumps(KINETO)[:-1],
        json.dumps(KINETO)[:-1] + ",",
        "\ufeff" + json.dumps(kineto()),
        json.dumps({"traceEvents": KINETO, "stackFrames": [{"a": 1}, {"b": 2}], "samples": [{"x": [{}]}]}),
    ],
    ids=["object", "indented", "array", "no end", "comma at the end", "byte order mark", "much after it"],
)
def test_all_forms_of_a_file_read_the_same(home: Path, text: str) -> None:
    assert sorted(events(written(home / "t.json", text))) == sorted(EXPECTED)


def test_the_span_of_the_profiler_itself_is_no_operator(home: Path) -> None:
    span = {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
    }
    trace = written(home / "t.json", kineto(traceEvents=[*KINETO, {**span, "ts": 1.0, "dur": 900.0}]))
    assert sorted(events(trace)) == sorted(EXPECTED)
    assert trace.problems == ()


def test_modelled_times_in_a_trace_of_torch_are_named(home: Path) -> None:
    core = {
        "ph": "M",
        "name": "process_name",
        "pid": 0,
        "tid": 0,
        "args": {"name": "NeuronCore 0 (modelled)"},
    }
    trace = written(home / "t.json", kineto(traceEvents=[*KINETO, core]))
    assert trace.measured_by == "torch.profiler (device times modelled)"


def test_gzip_is_recognised_whatever_the_name(home: Path) -> None:
    (home / "t").write_bytes(gzip.compress(json.dumps(kineto()).encode()))
    trace = open_trace(str(home / "t"))
    assert sorted(events(trace)) == sorted(EXPECTED)
    assert trace.measured_by == "torch.profiler"


def test_rows_have_the_names_and_the_class_of_their_process(home: Path) -> None:
    trace = written(home / "t.json", kineto())
    assert [(row.process_label, row.label, row.track) for row in trace.rows] == [
        ("python3 (pid 77)", "thread 1", Track.HOST),
        ("GPU 0", "stream 7", Track.DEVICE),
    ]


def test_a_file_that_is_read_in_many_pieces_is_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = events(written(home / "t.json", kineto()))
    for size in (1, 7, 64, 333):
        monkeypatch.setattr(chrome_text, "_PIECE", size)
        monkeypatch.setattr(chrome_text, "_LONGEST_EVENT", 1 << 20)
        assert events(written(home / "t.json", kineto())) == whole


def test_begins_and_ends_become_events(home: Path) -> None:
    common = {"pid": 1, "tid": 2, "cat": "c"}
    trace = written(
        home / "t.json",
        [
            {"ph": "B", "name": "outer", "ts": 1, **common},
            {"ph": "B", "name": "inner", "ts": 2, **common},
            {"ph": "E", "ts": 3, **common},
            {"ph": "E", "ts": 9.5, **common},
            {"ph": "E", "ts": 10, **common},
            {"ph": "B", "name": "endless", "ts": 11, **common},
            {"ph": "b", "name": "load", "id": "0x1", "ts": 1, **common},
            {"ph": "b", "name": "load", "id": "0x2", "ts": 2, **common},
            {"ph": "e", "name": "load", "id": "0x1", "ts": 4, **common},
            {"ph": "e", "name": "load", "id": "0x2", "ts": 7, **common},
        ],
    )
    assert sorted(events(trace)) == [
        ("c", "load", 0, 3000),
        ("c", "load", 1000, 5000),
        ("thread 2", "inner", 1000, 1000),
        ("thread 2", "outer", 0, 8500),
    ]
    assert trace.problems == (
        "1 event that end what never began left out",
        "1 event that never end left out",
    )


@pytest.mark.parametrize("base", [0, 1_759_000_000_000_000, 7_900_000_000_000])
def test_times_keep_their_nanoseconds(home: Path, base: int) -> None:
    text = ",".join(
        f'{{"ph":"X","name":"a","pid":1,"tid":1,"ts":{base + number}.{number:03d},"dur":0.{number:03d}}}'
        for number in range(1, 1000)
    )
    trace = written(home / "t.json", f"[{text}]")
    (row,) = trace.rows
    block = row.events.block(0, 999)
    assert np.diff(block.start).tolist() == [1001] * 998
    assert block.duration.tolist() == list(range(1, 1000))


def test_times_in_scientific_notation_are_read_beside_exact_ones(home: Path) -> None:
    times = ("1759000000000000.501", "1.75900000000000001e15", "1759e12")
    text = ",".join(f'{{"ph":"X","name":"a","pid":1,"tid":1,"ts":{at},"dur":1}}' for at in times)
    (row,) = written(home / "t.json", f"[{text}]").rows
    assert row.events.block(0, 3).start.tolist() == [0, 0, 501]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (
            '{"ph":"X","name":"x","pid":1,"tid":1,"ts":5,"dur":-2}',
            "1 event with negative or impossible times",
        ),
        ('{"ph":"X","name":"x","pid":1,"tid":1,"ts":1e300,"dur":2}', "1 event with negative or impossible"),
        ('{"ph":"X","name":"x","pid":1,"tid":1,"ts":{},"dur":2}', "1 event damaged"),
        ('{"ph":"X","name":"x" "pid":1,"tid":1}', "1 event damaged"),
    ],
)
def test_one_wrong_event_costs_only_itself(home: Path, wrong: str, problem: str) -> None:
    good = json.dumps(KINETO[3]), json.dumps(KINETO[4])
    trace = written(home / "t.json", f"[{good[0]},\n{wrong},\n{good[1]}]")
    assert any(problem in line for line in trace.problems)
    assert "aten::addmm" in {name for _, name, _, _ in events(trace)}


@pytest.mark.parametrize(
    "name",
    [b"a\x01b", b"a\nb", b"a\tb", b"a\xffb", rb"a\xb", rb"a\ud800b", rb"a\\b\"c"],
)
def test_names_that_are_not_json_are_read(home: Path, name: bytes) -> None:
    path = home / "t.json"
    path.write_bytes(b'[{"ph":"X","name":"' + name + b'","pid":1,"tid":1,"ts":1,"dur":2,"args":{"v":NaN}}]')
    trace = open_trace(str(path))
    assert trace.problems == ()
    assert events(trace)[0][1].startswith("a")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"[]", "no events"),
        (b'{"traceEvents":[]}', "no events"),
        (b'{"events":[]}', "is not a trace"),
        (b"hello", "is not a trace"),
        (b"[1, 2]", "no events"),
        (b"\x1f\x8bgarbage", "is empty"),
    ],
    ids=["empty", "empty array", "no events", "other json", "text", "numbers", "no gzip"],
)
def test_what_is_no_trace_is_refused_in_one_line(home: Path, content: bytes, reason: str) -> None:
    check_refused(home, content, reason)


def test_a_gzip_bomb_is_refused_in_one_line(home: Path) -> None:
    check_refused(home, gzip.compress(b"[" + b" " * (200 << 20)), "unpacks to more than")


def check_refused(home: Path, content: bytes, reason: str) -> None:
    (home / "t.json").write_bytes(content)
    with pytest.raises(ProfileError, match=reason) as raised:
        open_trace(str(home / "t.json"))
    assert "\n" not in raised.value.message


def test_a_cut_gzip_file_shows_what_came_before(home: Path) -> None:
    many = [{**KINETO[3], "ts": number, "dur": number % 7} for number in range(20_000)]
    data = gzip.compress(json.dumps(kineto(traceEvents=many)).encode())
    (home / "t.json.gz").write_bytes(data[: len(data) // 2])
    trace = open_trace(str(home / "t.json.gz"))
    assert 1000 < trace.event_count < 20_000
    assert "no end" in trace.problems[0]


def test_very_many_tracks_share_a_row(home: Path) -> None:
    many = [{**KINETO[3], "tid": number} for number in range(5000)]
    trace = written(home / "t.json", many)
    assert len(trace.rows) == 4097
    assert trace.event_count == 5000
    assert "5000 tracks: the 904 smallest share one row" in trace.problems


def test_texts_that_many_tracks_share_are_stored_once(home: Path) -> None:
    path = home / "t.json"
    path.write_text(json.dumps([{**KINETO[3], "tid": number} for number in range(100)]))
    kinds = read_part(str(path)).kinds
    assert len(kinds) == 100
    assert len({(id(category), id(name)) for _, category, name, _, _ in kinds}) == 1


def test_names_have_the_class_of_the_row_that_shows_them(home: Path) -> None:
    kernels = [{**KINETO[5], "name": f"kernel {number}", "tid": number} for number in range(4097)]
    trace = written(home / "t.json", kernels)
    found = {trace.actions[row.events.block(0, 1).action[0]].track: row.track for row in trace.rows}
    assert found == {Track.DEVICE: Track.DEVICE, Track.HOST: Track.HOST}


def test_our_own_export_has_the_totals_of_its_profile(home: Path, maker: Maker) -> None:
    maker.finished(home / "prof", ncs=(0, 1))
    source = open_trace(str(home / "prof"))
    export(source, TraceFormat.CHROME, str(home / "t.json"))
    trace = open_trace(str(home / "t.json"))
    assert trace.rows_of(Track.MODEL)
    expected: Counter[str] = Counter()
    for each in top_operators(source):
        expected[each.name] += each.total_ns
    assert {each.name: each.total_ns for each in top_operators(trace)} == expected
    assert "mlp" not in {each.name for each in group_totals(trace, By.OPERATOR)}


def test_a_row_called_model_of_another_program_has_operators(home: Path) -> None:
    trace = written(home / "t.json", [*KINETO, {**KINETO[2], "args": {"name": "Model"}}])
    assert [each.name for each in top_operators(trace)] == ["gemm"]


def test_a_summary_says_who_measured(home: Path) -> None:
    trace = written(home / "t.json", kineto(baseTimeNanoseconds=1_759_000_000_000_000_000))
    text = to_text(report(trace))
    assert text.startswith("Trace measured by torch.profiler: 2 processes, 3 events, 25.37 us")
    assert "modelled" not in text
    stored = to_json(report(trace))
    assert (stored["is_simulation"], stored["measured_by"]) == (False, "torch.profiler")
    assert trace.origin_unix_ns == 1_759_000_000_000_000_000 + 100_001


def test_operators_are_those_of_the_device_or_of_the_host_without_what_they_call(home: Path) -> None:
    device = written(home / "d.json", kineto())
    assert [(each.name, each.total_ns) for each in top_operators(device)] == [("gemm", 20125)]
    host = written(home / "h.json", KINETO[:5])
    assert [(each.name, each.total_ns, each.share) for each in top_operators(host)] == [
        ("aten::addmm", 6500, 0.65),
        ("aten::linear", 3500, 0.35),
    ]


tree = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.integers(0, 3), inner, st.integers(0, 3)), max_size=4)
)


def lay(calls: list[Any], at: int, depth: int, found: list[tuple[int, int, int]]) -> int:
    """Place nested calls on an axis; found gets start, end and depth of each in order."""
    for before, inner, after in calls:
        place = len(found)
        found.append((at, 0, depth))
        end = lay(inner, at + before, depth + 1, found) + after
        found[place] = (at, end, depth)
        at = end
    return at


@given(tree)
def test_nesting_gives_each_nanosecond_to_the_innermost_event(calls: list[Any]) -> None:
    laid: list[tuple[int, int, int]] = []
    total = lay(calls, 0, 0, laid)
    laid.sort(key=lambda each: (each[0], -each[1]))
    start = np.array([each[0] for each in laid], dtype=np.int64)
    end = np.array([each[1] for each in laid], dtype=np.int64)
    found = nest(start, end - start)
    assert int(found.own_ns.sum()) == total
    assert sorted(np.concatenate([*found.levels, np.zeros(0, np.int64)]).tolist()) == list(range(len(laid)))
    for number, parent in enumerate(found.parent.tolist()):
        if parent >= 0:
            assert start[parent] <= start[number]
            assert end[number] <= end[parent]


def test_the_tree_counts_nested_events_once(home: Path) -> None:
    inner = {**KINETO[5], "name": "inner", "ts": 106.0, "dur": 5.0}
    found = modules.tree(written(home / "t.json", kineto(traceEvents=[*KINETO, inner])))
    assert found.total_ns == 20125
    (unknown,) = found.children
    assert [(each.name, each.total_ns) for each in unknown.children] == [("gemm", 15125), ("inner", 5000)]


def test_groups_of_another_program_are_labelled_measured(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "t.json").write_text(json.dumps(kineto()))
    assert main(["top", "t.json", "--by", "operator"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "By operator, own time on the device, measured by torch.profiler"
    assert printed[2].split()[:3] == ["gemm", "1", "20.12"]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['}, {"ph":"X"', "]}", "\\"]
)
times = st.integers(0, 10**12)


@st.composite
def chrome_event(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a complete event whose members are in any order and whose numbers may be texts."""
    inner = {"ph": "X", "name": "not an event", "ts": 1, "dur": 1}
    wrapped = draw(st.sampled_from([lambda value: value, lambda value: [{"deep": value}, inner, inner]]))
    number = draw(st.sampled_from([float, str]))
    event = {
        "ph": "X",
        "name": draw(names),
        "ts": number(draw(times) / 1000),
        "dur": number(draw(times) / 1000),
        "pid": draw(st.integers(0, 3)),
        "tid": draw(st.integers(0, 3) | names),
        "args": wrapped(draw(values)),
        "else": draw(values),
    }
    return {name: event[name] for name in draw(st.permutations(list(event)))}


@given(
    st.lists(chrome_event(), min_size=1, max_size=12),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
    st.booleans(),
    st.sampled_from([8, 100, 1 << 18]),
)
def test_any_valid_json_reads_as_pythons_json_does(
    tmp_path_factory: pytest.TempPathFactory,
    written_events: list[dict[str, Any]],
    indent: int | None,
    separators: tuple[str, str],
    ascii_only: bool,
    piece: int,
) -> None:
    path = tmp_path_factory.mktemp("json") / "t.json"
    document = kineto(traceEvents=written_events)
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only)
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_text, "_PIECE", piece)
        trace = open_trace(str(path))
    starts = [round(float(event["ts"]) * 1000) for event in written_events]
    expected = [
        (event["name"], start - min(starts), round(float(event["dur"]) * 1000))
        for event, start in zip(json.loads(text)["traceEvents"], starts, strict=True)
    ]
    assert sorted(each[1:] for each in events(trace)) == sorted(expected)
    assert trace.problems == ()


def in_parts(path: Path, borders: list[int]) -> ForeignEvents:
    parts = [read_part(str(path), 0, borders[0])]
    for first, last in pairwise((*borders, None)):
        if not parts[-1].is_last:
            parts.append(read_part(str(path), first or 0, last))
    return join_parts(parts)


def check_equal(found: ForeignEvents, expected: ForeignEvents) -> None:
    for one, other in zip(vars_of(found), vars_of(expected), strict=True):
        assert one == other


def vars_of(found: ForeignEvents) -> list[object]:
    values = [getattr(found, field.name) for field in fields(found) if field.name != "headers"]
    headers = [(bytes(header.deviceProperties), header.otherData) for header in found.headers]
    return [*(value.tolist() if isinstance(value, np.ndarray) else str(value) for value in values), headers]


PAIR = [
    {"ph": "B", "name": "outer", "pid": 1, "tid": 2, "ts": 5},
    {"ph": "b", "name": "load", "cat": "dma", "id": "0x1", "pid": 1, "ts": 6},
    {"ph": "e", "name": "load", "cat": "dma", "id": "0x1", "pid": 1, "ts": 8},
    {"ph": "E", "pid": 1, "tid": 2, "ts": 9},
]


@given(
    st.lists(chrome_event(), max_size=6),
    st.sampled_from([None, 1]),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=3),
    st.sampled_from([8, 100, 1 << 16]),
    st.integers(0, 40),
)
def test_parts_of_a_file_read_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory,
    written_events: list[dict[str, Any]],
    indent: int | None,
    chosen: list[int],
    piece: int,
    cut: int,
) -> None:
    path = tmp_path_factory.mktemp("json") / "t.json"
    document = kineto(traceEvents=[*KINETO, *written_events, *PAIR], samples=[{}, {"ph": "X"}, {}])
    data = json.dumps(document, indent=indent).encode()
    path.write_bytes(data[: len(data) - cut])
    braces = [place for place, byte in enumerate(data[: len(data) - cut]) if byte == ord("{") and place]
    borders = sorted({braces[number % len(braces)] for number in chosen})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_text, "_PIECE", piece)
        expected = join_parts([read_part(str(path))])
        check_equal(in_parts(path, borders), expected)


@pytest.mark.parametrize("broken", [False, True])
def test_a_large_file_is_read_by_several_processes(
    home: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    path = home / "t.json"
    many = [{**event, "args": {"inner": [{}, {"a": 1}, {}]}} for event in [*KINETO, *PAIR] * 100]
    path.write_text(json.dumps(kineto(traceEvents=many)))
    expected = read_chrome(str(path))
    monkeypatch.setattr(chrome_text, "_PIECE", 1000)
    monkeypatch.setattr(chrome_columns, "_LEAD", 0)
    monkeypatch.setattr(chrome_columns, "_SMALLEST_PART", 20_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    if broken:
        monkeypatch.setattr(sys, "executable", "/bin/false")
    parts = chrome_columns.read_parts(str(path))
    assert len(parts) == 3
    check_equal(join_parts(parts), expected)
    path.write_text(json.dumps(kineto(traceEvents=many)).replace('"ts"', '"ts" 1', 1))
    assert len(chrome_columns.read_parts(str(path))) == 1
