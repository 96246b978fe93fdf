"""One trace of two workers has the same totals by worker, engine and operator, whoever adds them up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.profiler.analysis.operators import By, group_totals, top_operators
from neurontools.profiler.analysis.summary import engine_totals
from neurontools.profiler.capture.format import read_meta
from neurontools.profiler.exchange.export import export
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.query.tables import connect, create_tables
from neurontools.profiler.trace.open import load
from tests.profiler.advice.programs import gpt, neff_bytes
from tests.profiler.test_export import (
    as_chrome,
    as_perfetto,
    engine_of,
    read_chrome,
    read_perfetto,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.test_export import Slice

Totals = dict[tuple[str, str, str], tuple[int, int, int]]
"""By worker, engine and operator: events, the time of all, and the part of it in which the engine works."""

_TABLES = "Instruction", "DmaPacketAggregated", "CcOp"
_QUERY = """
    SELECT process_id, engine, hlo_name, count(*), sum(duration_ns)::BIGINT, sum(active_time_ns)::BIGINT
    FROM {} GROUP BY ALL
    UNION ALL SELECT process_id, 'DMA', variable, count(*), sum(duration_ns)::BIGINT, sum(active_time_ns)::BIGINT
    FROM {} GROUP BY ALL
    UNION ALL SELECT process_id, 'CC-cores', operation, count(*), sum(duration_ns)::BIGINT, sum(active_time_ns)::BIGINT
    FROM {} GROUP BY ALL"""


@pytest.fixture
def workers(home: Path, maker: Maker) -> Trace:
    """Two workers with two programs on two cores each; one executes more than the other."""
    neffs = neff_bytes(gpt(layers=1, fused=False)), neff_bytes(gpt(layers=1, dtype="float32", batch=2))
    for rank in (0, 1):
        capture = maker.worker(home / "run", rank, 2)
        now = maker.start_ns
        for nc, neff in enumerate(neffs):
            model = maker.model(nc, neff, 10001 + nc, f"gpt{nc}")
            capture.on_load(model, now, now + 1_000)
            for number in range(1, 4 + rank):
                now += 5_000_000
                capture.on_execute(model, number, now, now + 4_000_000, 0)
        capture.on_close()
    for process in (home / "run").iterdir():
        written = read_meta(str(process))
        replace(written, pid=100 + (written.rank or 0)).write(str(process))
    return load(str(home / "run"))


def ours(trace: Trace) -> Totals:
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for row in trace.rows:
        if not row.track.measured and row.name != "Model":
            for block in row.events.blocks():
                for action, duration in zip(block.action.tolist(), block.duration.tolist(), strict=True):
                    each = trace.actions[action]
                    sums = found.setdefault((row.process_label, row.name, each.name), Counter())
                    worked = min(each.busy_ns or duration, duration)
                    sums.update({"count": 1, "time": duration, "worked": worked})
    return {key: (sums["count"], sums["time"], sums["worked"]) for key, sums in found.items()}


def of_slices(slices: Iterable[Slice]) -> Totals:
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for each in slices:
        worker, _, clock = each.track.split("/")[0].partition(" NC")
        if "modelled" in clock and engine_of(each) != "Model":
            sums = found.setdefault((worker, engine_of(each), each.name), Counter())
            worked = each.notes.get("active_time_ns", each.duration)
            sums.update({"count": 1, "time": each.duration, "worked": worked})
    return {key: (sums["count"], sums["time"], sums["worked"]) for key, sums in found.items()}


def of_sql(connection: Any, *tables: str) -> Totals:
    rows = connection.execute(_QUERY.format(*tables)).fetchall()
    return {(f"rank {pid - 100} (pid {pid})", engine, name): tuple(sums) for pid, engine, name, *sums in rows}  # type: ignore[misc]


def test_every_event_of_two_workers_counts_the_same_everywhere(workers: Trace, home: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    expected = ours(workers)
    assert {worker for worker, _, _ in expected} == {"rank 0 (pid 100)", "rank 1 (pid 101)"}
    assert any(worked < time for _, time, worked in expected.values())
    assert of_slices(read_perfetto(as_perfetto(workers))) == expected
    assert of_slices(read_chrome(as_chrome(workers))) == expected
    with connect() as connection:
        create_tables(connection, workers)
        assert of_sql(connection, *_TABLES) == expected
    export(workers, TraceFormat.PARQUET, str(home / "tables"))
    with duckdb.connect() as reader:
        assert of_sql(reader, *(f"'{home}/tables/{name}.parquet'" for name in _TABLES)) == expected


def test_totals_from_programs_and_executions_are_those_of_single_events(workers: Trace) -> None:
    expected = ours(workers)

    def summed(place: int) -> dict[str, tuple[int, int]]:
        found: dict[str, Counter[str]] = {}
        for key, (count, _, worked) in expected.items():
            found.setdefault(key[place], Counter()).update({"count": count, "worked": worked})
        return {key: (sums["count"], sums["worked"]) for key, sums in found.items()}

    for place, by in enumerate((By.RANK, By.ENGINE, By.OPERATOR)):
        assert {each.name: (each.count, each.total_ns) for each in group_totals(workers, by)} == summed(place)
    assert {each.engine: (each.count, each.total_ns) for each in engine_totals(workers)} == summed(1)
    operators: dict[str, Counter[str]] = {}
    for each in top_operators(workers):
        operators.setdefault(each.name, Counter()).update({"count": each.count, "worked": each.total_ns})
    assert {key: (sums["count"], sums["worked"]) for key, sums in operators.items()} == summed(2)
