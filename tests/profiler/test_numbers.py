"""neuron-profile steps, top --by, roofline, gaps, critical-path and ranks, as a user calls them.

One trace of two workers has the same totals by worker, engine and operator, whoever adds them up.
"""

from __future__ import annotations

import csv
import io
import json
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
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]
    from collections.abc import Iterable

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.test_export import Slice

VERBS = ("steps", "top", "roofline", "gaps")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def run(tool: Tool, *arguments: str) -> Any:
    done = tool("neuron-profile", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_text_json_and_csv_of_a_verb_agree(tool: Tool, profile_dir: Path, verb: str) -> None:
    text = run(tool, verb, str(profile_dir))
    assert max(map(len, text.splitlines())) <= 80
    document = json.loads(run(tool, verb, str(profile_dir), "--json"))
    rows = rows_of(run(tool, verb, str(profile_dir), "--csv"))
    match verb:
        case "steps":
            listed = document[0]["steps"]
        case "roofline":
            listed = document["points"]
        case "gaps":
            listed = document["gaps"]
        case _:
            listed = document
    assert len(rows) == len(listed)
    key = next(key for key in listed[0] if key.endswith("_ns"))
    assert [int(row[key]) for row in rows] == [each[key] for each in listed]


def test_filters_of_steps_and_engines_choose_a_part(tool: Tool, profile_dir: Path) -> None:
    part = "--steps", "2-3", "--engine", "Tensor,dma", "--by", "engine", "--json"
    groups = json.loads(run(tool, "top", str(profile_dir), *part))
    assert [(group["name"], group["count"]) for group in groups] == [("Tensor", 8), ("DMA", 12)]
    assert groups[0]["total_ns"] == 4 * 14_000
    assert "5 steps of pid" in run(tool, "steps", str(profile_dir))
    assert "gaps between executions, measured" in run(tool, "gaps", str(profile_dir), "--nc", "1")
    assert run(tool, "gaps", str(profile_dir), "--min", "1s").startswith("No gaps")


def test_a_core_that_waits_for_another_does_not_wait_for_python(tool: Tool, profile_dir: Path) -> None:
    gaps = json.loads(run(tool, "gaps", str(profile_dir), "--json"))
    assert gaps["host"] == {"other core": 5_100_000, "python": 800_000}


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("top", "--engine", "tenser"), 2, "unknown engine 'tenser'"),
        (("top", "--by", "colour"), 2, "--by"),
        (("steps", "--steps", "9-3"), 2, "--steps 9-3 is not a range of steps"),
        (("steps", "--steps", "0"), 2, "--steps 0 is not a range of steps"),
        (("steps", "--steps", "9"), 1, "no step 9: the profile has 5 steps"),
        (("gaps", "--json", "--csv"), 2, "--json and --csv exclude each other"),
        (("ranks",), 1, "the profile has 1 worker"),
        (("top", "--from", "1s"), 1, "no events match the filters"),
    ],
)
def test_bad_requests_are_one_clear_line(
    tool: Tool, profile_dir: Path, arguments: tuple[str, ...], code: int, error: str
) -> None:
    verb, *rest = arguments
    done = tool("neuron-profile", verb, str(profile_dir), *rest)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert error in done.stderr.splitlines()[0]


@pytest.mark.parametrize("verb", [*VERBS, "critical-path"])
def test_a_run_without_executions_is_explained(tool: Tool, home: Path, maker: Maker, verb: str) -> None:
    maker.finished(home / "none", steps=0)
    done = tool("neuron-profile", verb, str(home / "none"))
    if verb == "gaps":
        assert done.stdout.startswith("No gaps")
    else:
        assert done.returncode == 1
        assert done.stderr.startswith("error: the profile has no ")


def test_workers_are_compared_and_missing_ones_named(tool: Tool, home: Path, maker: Maker) -> None:
    for rank in range(2):
        capture = maker.worker(home / "ranks", rank, 3)
        maker.train(capture, wall_ns=3_000_000 * (1 + rank))
        capture.on_close()
    text = run(tool, "ranks", str(home / "ranks"))
    assert "missing in the profile: rank 2" in text
    assert text.count("straggler") == 1
    rows = rows_of(run(tool, "ranks", str(home / "ranks"), "--csv"))
    assert [row["is_straggler"] for row in rows] == ["False", "True"]


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
