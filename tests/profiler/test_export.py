from __future__ import annotations

import io
import itertools
import json
import os
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.summary import engine_totals
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.exchange.export import export
from neurontools.profiler.exchange.export_timeline import write_chrome
from neurontools.profiler.exchange.perfetto import write_perfetto
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.trace.rows import EventBlock, FlatEvents, RowEvents
from neurontools.profiler.trace.trace import TraceAction, TraceRow

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace

Fields = dict[int, list[Any]]


def decode(data: bytes) -> Fields:
    """Decode a protobuf message: numbers and bytes by field."""
    fields: Fields = defaultdict(list)
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            fields[key >> 3].append(number())
        else:
            assert key & 7 == 2
            length = number()
            assert at + length <= len(data)
            fields[key >> 3].append(data[at : at + length])
            at += length
    return fields


class Slice:
    """A slice as a viewer sees it."""

    def __init__(self, track: str, name: str, start: int, duration: int, notes: dict[str, Any]) -> None:
        self.track, self.name, self.start, self.duration, self.notes = track, name, start, duration, notes


Counters = dict[str, list[tuple[int, int]]]


def read_perfetto(data: bytes) -> list[Slice]:
    return read_perfetto_with_counters(data)[0]


def read_perfetto_with_counters(data: bytes) -> tuple[list[Slice], Counters]:
    counters: Counters = {}
    packets = [decode(packet) for packet in decode(data)[1]]
    interned = decode(packets[0][12][0])
    names = {decode(each)[1][0]: decode(each)[2][0].decode() for each in interned[2]}
    notes = {decode(each)[1][0]: decode(each)[2][0].decode() for each in interned[3]}
    assert packets[0][13] == [1]
    groups: dict[int, str] = {}
    tracks: dict[int, str] = {}
    open_slices: dict[int, tuple[str, int, dict[str, Any]]] = {}
    found = []
    for packet in packets[1:]:
        assert packet[10] == [1]
        if packet[60]:
            descriptor = decode(packet[60][0])
            if descriptor[3]:
                groups[descriptor[1][0]] = decode(descriptor[3][0])[6][0].decode()
            else:
                tracks[descriptor[1][0]] = f"{groups[descriptor[5][0]]}/{descriptor[2][0].decode()}"
            continue
        assert packet[13] == [2]
        event = decode(packet[11][0])
        (track,), (timestamp,) = event[11], packet[8]
        if event[9] == [4]:
            counters.setdefault(tracks[track], []).append((timestamp, event[30][0]))
            continue
        if event[9] == [1]:
            assert track not in open_slices, "slices of a track nest"
            arguments = {}
            for each in map(decode, event[4]):
                arguments[notes[each[1][0]]] = each[4][0] if each[4] else each[6][0].decode()
            open_slices[track] = (names[event[10][0]], timestamp, arguments)
        else:
            name, start, arguments = open_slices.pop(track)
            found.append(Slice(tracks[track], name, start, timestamp - start, arguments))
    assert not open_slices
    return found, counters


def read_chrome(text: str) -> list[Slice]:
    events = json.loads(text)["traceEvents"]
    groups = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    threads = {
        (each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"
    }
    slices = []
    for event in events:
        if event["ph"] == "X":
            assert event["tid"] >= 1
            assert event["pid"] >= 1
            track = f"{groups[event['pid']]}/{threads[event['pid'], event['tid']]}"
            start, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
            slices.append(Slice(track, event["name"], start, duration, event["args"]))
    return slices


def as_perfetto(trace: Trace) -> bytes:
    file = io.BytesIO()
    write_perfetto(trace, file)
    return file.getvalue()


def as_chrome(trace: Trace) -> str:
    file = io.StringIO()
    write_chrome(trace, file)
    return file.getvalue()


def engine_of(slice_: Slice) -> str:
    return slice_.track.split("/")[1].split()[0]


def totals(slices: list[Slice]) -> dict[tuple[str, str], tuple[int, int]]:
    """Count and total time by operator and engine of the modelled clock."""
    count: Counter[tuple[str, str]] = Counter()
    time: Counter[tuple[str, str]] = Counter()
    for each in slices:
        if "modelled" in each.track and engine_of(each) != "Model":
            count[each.name, engine_of(each)] += 1
            time[each.name, engine_of(each)] += each.duration
    return {key: (count[key], time[key]) for key in count}


def test_summary_chrome_and_perfetto_give_identical_totals(trace: Trace) -> None:
    expected = {(each.name, each.engine): (each.count, each.total_ns) for each in top_operators(trace)}
    assert totals(read_chrome(as_chrome(trace))) == expected
    assert totals(read_perfetto(as_perfetto(trace))) == expected
    engines = {each.engine: each.total_ns for each in engine_totals(trace)}
    for slices in (read_chrome(as_chrome(trace)), read_perfetto(as_perfetto(trace))):
        found: Counter[str] = Counter()
        for each in slices:
            found[engine_of(each)] += each.duration
        assert {engine: found[engine] for engine in engines} == engines


def test_every_event_keeps_its_nanoseconds(trace: Trace) -> None:
    blocks = [block for row in trace.rows for block in row.events.blocks()]
    expected = sorted(
        pair for block in blocks for pair in zip(block.start.tolist(), block.duration.tolist(), strict=True)
    )
    for slices in (read_chrome(as_chrome(trace)), read_perfetto(as_perfetto(trace))):
        assert sorted((each.start, each.duration) for each in slices) == expected


def test_events_of_a_track_never_overlap(trace: Trace) -> None:
    for slices in (read_chrome(as_chrome(trace)), read_perfetto(as_perfetto(trace))):
        by_track: dict[str, list[Slice]] = defaultdict(list)
        for each in slices:
            by_track[each.track].append(each)
        for mine in by_track.values():
            mine.sort(key=lambda each: each.start)
            assert all(a.start + a.duration <= b.start for a, b in itertools.pairwise(mine))
    assert any(track.endswith("DMA 2") for track in by_track)


def test_thread_ids_are_unique_over_all_processes(trace: Trace) -> None:
    events = [each for each in json.loads(as_chrome(trace))["traceEvents"] if each["name"] == "thread_name"]
    assert len({each["tid"] for each in events}) == len(events)


def test_chrome_json_is_one_event_a_line_and_survives_a_cut(trace: Trace) -> None:
    text = as_chrome(trace)
    lines = text.splitlines()
    half = "\n".join(lines[: len(lines) // 2]).rstrip(",")
    assert len(json.loads(half + "]}")["traceEvents"]) == len(lines) // 2 - 1


def test_names_with_control_characters_and_quotes_are_escaped(home: Path, maker: Maker) -> None:
    from neurontools.profiler.trace.open import load

    name = 'a"b\\\x01\n\u2028 é \ud800'

    class Odd(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (self.operation(name, "Tensor", 0, 10),)

    Odd().finished(home / "p", steps=1)
    odd = load(str(home / "p"))
    assert name in {each.name for each in read_chrome(as_chrome(odd))}
    assert name.replace("\ud800", "?") in {each.name for each in read_perfetto(as_perfetto(odd))}


def test_arguments_reach_both_formats(trace: Trace) -> None:
    for slices in (read_chrome(as_chrome(trace)), read_perfetto(as_perfetto(trace))):
        product = next(each for each in slices if each.name == "aten.mm")
        assert product.notes["flops"] == 4_194_304
        assert product.notes["opcode"] == "MATMUL"
        assert product.notes["source"] == "train.py:12"
        run = [each.notes["execution"] for each in slices if each.name == "nrt_execute"]
        assert sorted(run) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_export_replaces_a_file_only_when_it_is_complete(trace: Trace, home: Path) -> None:
    path = home / "t.json"
    path.write_text("old")

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        export(trace, TraceFormat.CHROME, str(path), stop)
    assert path.read_text() == "old"
    assert list(home.glob("*.part")) == []
    export(trace, TraceFormat.CHROME, str(path))
    assert read_chrome(path.read_text())


def test_progress_ends_at_all_events(trace: Trace, home: Path) -> None:
    missing = set() if find_spec("duckdb") else {TraceFormat.PARQUET}
    for form in set(TraceFormat) - missing:
        seen: list[tuple[int, int]] = []
        export(trace, form, str(home / form.value), lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1] == (trace.event_count, trace.event_count)


def test_a_pipe_is_written_to_and_stays_a_pipe(trace: Trace, home: Path) -> None:
    pipe = home / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pipe.read_bytes)
        keeper = os.open(pipe, os.O_WRONLY)  # waits for the reader, who gets an end whatever export does
        export(trace, TraceFormat.CHROME, str(pipe))
        os.close(keeper)
        text = received.result()
    assert pipe.is_fifo()
    json.loads(text)


def test_a_link_stays_and_its_file_is_replaced(trace: Trace, home: Path) -> None:
    (home / "link").symlink_to(home / "real.json")
    export(trace, TraceFormat.CHROME, str(home / "link"))
    assert (home / "link").is_symlink()
    json.loads((home / "real.json").read_text())


def test_an_unwritable_file_is_named(trace: Trace, home: Path) -> None:
    with pytest.raises(ProfileError, match="cannot write"):
        export(trace, TraceFormat.PERFETTO, str(home / "missing" / "t"))


def chrome_counters(text: str) -> Counters:
    found: Counters = {}
    events = json.loads(text)["traceEvents"]
    groups = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    for each in events:
        if each["ph"] == "C":
            step = (round(each["ts"] * 1000), each["args"]["value"])
            found.setdefault(f"{groups[each['pid']]}/{each['name']}", []).append(step)
    return found


def with_memory(trace: Trace) -> Trace:
    """Return a trace in which NC0 takes 1000 bytes, takes 500 more, and gives back the first."""
    meta = trace.processes[0]
    size = len(trace.actions)
    block = EventBlock(
        start=np.array([10, 20, 30], dtype=np.int64),
        duration=np.zeros(3, dtype=np.int64),
        action=np.array([size, size, size + 1], dtype=np.uint32),
        model=np.zeros(3, dtype=np.uint32),
        execution=np.array([1, 2, 1], dtype=np.uint32),
        status=np.zeros(3, dtype=np.uint32),
        value=np.array([1000, 500, 1000], dtype=np.int64),
    )
    row = TraceRow(0, meta.pid, 0, 0, Track.MEMORY, 0, 0, FlatEvents(block), meta.rank, group="host")
    actions = (TraceAction("a", "ALLOCATION", Track.MEMORY), TraceAction("a", "RELEASE", Track.MEMORY))
    return replace(trace, actions=(*trace.actions, *actions)).with_rows((*trace.rows, row), trace.runs)


def test_counters_show_memory_in_use_and_bytes_of_the_dma(trace: Trace) -> None:
    both = with_memory(trace)
    slices, counters = read_perfetto_with_counters(as_perfetto(both))
    assert counters == chrome_counters(as_chrome(both))
    assert len(slices) == trace.event_count
    (memory,) = [steps for name, steps in counters.items() if name.endswith("/HBM bytes")]
    assert memory == [(10, 1000), (20, 1500), (30, 500)]
    transfers = [steps for name, steps in counters.items() if name.endswith("/DMA bytes/s")]
    assert len(transfers) == 2
    for steps in transfers:
        moved = sum(value * (after - at) for (at, value), (after, _) in itertools.pairwise(steps)) / 1e9
        assert round(moved) == 5 * (65_536 * 2 + 32_768)
        assert steps[-1][1] == 0
        assert steps == sorted(steps)


def test_counters_do_not_depend_on_the_size_of_blocks(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_perfetto_with_counters(as_perfetto(trace))[1]
    blocks = RowEvents.blocks
    monkeypatch.setattr(RowEvents, "blocks", lambda self, size=0: blocks(self, 2))
    assert read_perfetto_with_counters(as_perfetto(trace))[1] == whole
