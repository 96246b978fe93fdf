"""Parquet with Neuron Explorer's names: SQL gives our totals, its tables open as a trace, damage is one line."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.profile import main
from neurontools.profiler.analysis.metrics import stated_metric
from neurontools.profiler.analysis.operators import By, group_totals, top_operators
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.exchange import parquet
from neurontools.profiler.exchange.export import export
from neurontools.profiler.formats import TraceFormat
from neurontools.profiler.query.tables import TABLES
from neurontools.profiler.trace.open import load, open_trace
from neurontools.profiler.trace.selection import Selection, select

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace

duckdb = pytest.importorskip("duckdb", reason="Parquet needs DuckDB, an extra")


def test_tables_hold_the_summary_and_say_that_it_is_a_simulation(trace: Trace, home: Path) -> None:
    export(trace, TraceFormat.PARQUET, str(home / "tables"))
    assert {path.stem for path in (home / "tables").iterdir()} == set(TABLES)
    with duckdb.connect() as reader:
        (row,) = reader.execute(f"SELECT * FROM '{home}/tables/Metadata.parquet'").fetchall()
        assert row[:2] == ("7.4.0", True)
        summary = reader.execute(
            f"SELECT nc_idx, total_time, model_flops FROM '{home}/tables/Summary.parquet' ORDER BY 1"
        ).fetchall()
        fields = reader.execute(
            f"SELECT table_name, name, unit FROM '{home}/tables/SchemaFields.parquet'"
        ).fetchall()
    expected = [
        (core.nc, *(metric.value for metric in core.metrics if metric.name in {"total_time", "model_flops"}))
        for core in summarise(trace).cores
    ]
    assert summary == expected
    assert {
        ("Instruction", "duration_ns", "ns"),
        ("Instruction", "hbm_read_bytes", "B"),
        ("Instruction", "opcode", ""),
        ("Summary", "total_time", "s"),
        ("Summary", "mfu_estimated_percent", "%"),
    } <= set(fields)


def test_our_own_tables_open_as_a_trace(trace: Trace, home: Path) -> None:
    export(trace, TraceFormat.PARQUET, str(home / "tables"))
    again = open_trace(str(home / "tables"))
    assert again.measured_by == "neurontools (device times modelled)"
    expected: Counter[str] = Counter()
    for each in top_operators(trace):
        expected[each.name] += each.count
    found: Counter[str] = Counter()
    for each in top_operators(again):
        found[each.name] += each.count
    assert found == expected
    assert {row.process_label for row in again.rows_of(Track.DEVICE)} == {"NC0", "NC1"}


@pytest.mark.parametrize("by", [By.OPERATOR, By.LAYER, By.SOURCE, By.OPCODE])
def test_our_own_tables_have_the_totals_of_the_profile(home: Path, maker: Maker, by: By) -> None:
    class Waits(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            more = {"read_bytes": 4096, "flops": 10**6, "source": "net.py:3", "layer": "net.fc"}
            return (
                self.operation("aten.mm", "Tensor", 1_000, 9_000, busy_ns=4_000, count=4, **more),
                self.operation("aten.relu", "Scalar", 11_000, 2_000, opcode="ACTIVATE"),
            )

    Waits().finished(home / "p", steps=4)
    trace = load(str(home / "p"))
    export(trace, TraceFormat.PARQUET, str(home / "tables"))
    again = open_trace(str(home / "tables"))
    assert group_totals(again, by) == group_totals(trace, by)
    assert sum(each.flops for each in group_totals(again, by)) == 4 * 10**6


def explorer(directory: Path, **tables: str) -> Path:
    """Write tables as Neuron Explorer names them, each from a query."""
    directory.mkdir()
    with duckdb.connect() as writer:
        for name, query in tables.items():
            writer.execute(f"COPY ({query}) TO '{directory}/{name}.parquet' (FORMAT parquet)")
    return directory


INSTRUCTIONS = """
    SELECT 1000 * i AS start_ts, 1000 * i + 400 AS end_ts, 400 AS duration_ns, 'Tensor' AS engine,
        'MATMUL' AS opcode, 'dot.' || (i % 2) AS hlo_name, 0 AS pcore_idx FROM range({first}, {last}) t(i)"""


def test_tables_of_explorer_open_with_their_parts(home: Path) -> None:
    directory = explorer(
        home / "e",
        Instruction_0=INSTRUCTIONS.format(first=0, last=10),
        Instruction_1=INSTRUCTIONS.format(first=10, last=30),
        SystemProfileEvents="SELECT 'nrt_execute' AS name, 500 AS start_ts, 100 AS duration_ns, 7 AS process_id",
        FlowUnknown="SELECT 1 AS x",
    )
    trace = open_trace(str(directory))
    assert trace.measured_by == "Neuron Explorer"
    assert [(row.process_label, row.label, row.events.count) for row in trace.rows] == [
        ("pid 7", "system", 1),
        ("NC0", "Tensor", 30),
    ]
    assert [(each.name, each.count, each.total_ns) for each in top_operators(trace)] == [
        ("dot.0", 15, 6000),
        ("dot.1", 15, 6000),
    ]


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"Flow": "SELECT 1 AS in_id"}, "no table of events"),
        (
            {"Instruction": "SELECT 1 AS duration_ns"},
            "the table Instruction is left out: it lacks the column start_ts",
        ),
        ({"Instruction": "SELECT 1 AS start_ts, 'long' AS duration_ns"}, "Instruction.parquet is left out"),
        ({"Instruction": "SELECT 1 AS start_ts, -5 AS duration_ns"}, "negative or impossible times"),
        (
            {
                "Instruction": INSTRUCTIONS.format(first=0, last=2),
                "Metadata": "SELECT '9.0.0' AS schema_version",
            },
            "schema 9.0.0",
        ),
    ],
)
def test_tables_that_cannot_be_shown_are_refused_in_one_line(
    home: Path, tables: dict[str, str], reason: str
) -> None:
    with pytest.raises(ProfileError, match=reason) as raised:
        open_trace(str(explorer(home / "e", **tables)))
    assert "\n" not in raised.value.message


def test_a_damaged_file_is_named(home: Path) -> None:
    directory = explorer(home / "e", Instruction=INSTRUCTIONS.format(first=0, last=2000))
    data = (directory / "Instruction.parquet").read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"PAR1" + data[4:200] + data[300:]):
        (directory / "Instruction.parquet").write_bytes(damaged)
        with pytest.raises(ProfileError, match=r"Instruction\.parquet is left out"):
            open_trace(str(directory))


def test_a_damaged_file_costs_its_own_events_only(home: Path) -> None:
    directory = explorer(
        home / "e",
        Instruction_0=INSTRUCTIONS.format(first=0, last=10),
        Instruction_1=INSTRUCTIONS.format(first=10, last=30),
        SystemProfileEvents="SELECT 'nrt_execute' AS name, 500 AS start_ts, 100 AS duration_ns, 7 AS process_id",
        Metadata="SELECT '7.4.0' AS schema_version",
    )
    for name in ("Instruction_0", "Metadata"):
        (directory / f"{name}.parquet").write_bytes(b"PAR1")
    trace = open_trace(str(directory))
    assert [row.events.count for row in trace.rows] == [1, 20]
    assert trace.measured_by == "Neuron Explorer"
    assert [problem.partition(":")[0] for problem in trace.problems] == [
        "the table Metadata is left out",
        "Instruction_0.parquet is left out",
    ]


def test_what_explorer_knows_of_instructions_is_shown(home: Path) -> None:
    facts = "2000 AS raw_flops, 64 AS hbm_read_bytes, 32 AS hbm_write_bytes, 'net.fc' || (i % 2) AS layer"
    query = INSTRUCTIONS.format(first=0, last=10).replace(
        " FROM", f", {facts}, 'k.py:7' AS nki_source_location FROM"
    )
    trace = open_trace(str(explorer(home / "e", Instruction=query)))
    layers = group_totals(trace, By.LAYER)
    assert [(each.name, each.count, each.flops, each.bytes_moved) for each in layers] == [
        ("net.fc0", 5, 10_000, 480),
        ("net.fc1", 5, 10_000, 480),
    ]
    assert [each.name for each in group_totals(trace, By.SOURCE)] == ["k.py:7"]
    assert [each.name for each in group_totals(trace, By.ENGINE)] == ["Tensor"]


SUMMARY = "SELECT 0.25::DOUBLE AS total_time, 31.5 AS mfu_estimated_percent, 1200::BIGINT AS hbm_read_bytes, 1 AS nc_idx"


def test_the_metrics_of_explorer_are_shown_and_checked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = explorer(
        home / "e",
        Instruction=INSTRUCTIONS.format(first=0, last=10),
        Summary=SUMMARY + ", 'x' AS note, NULL::INT AS n",
    )
    (core,) = summarise(open_trace(str(directory))).cores
    assert (core.nc, [(each.name, each.value, each.unit) for each in core.metrics]) == (
        1,
        [("total_time", 0.25, "s"), ("mfu_estimated_percent", 31.5, "%"), ("hbm_read_bytes", 1200, "B")],
    )
    assert main(["summary", str(directory)]) == 0
    text = capsys.readouterr().out
    assert "Metrics of NC1, stated by Neuron Explorer" in text
    assert "Wall time" not in text
    conditions = ["--fail-if", "mfu_estimated_percent<30", "--fail-if", "total_time>100ms"]
    assert main(["check", str(directory), *conditions]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["passed", "failed"]


def test_a_part_of_a_trace_has_no_stated_metrics(home: Path) -> None:
    directory = explorer(home / "e", Instruction=INSTRUCTIONS.format(first=0, last=10), Summary=SUMMARY)
    assert select(open_trace(str(directory)), Selection(from_ns=2000)).stated == ()


def test_names_of_metrics_tell_their_units(trace: Trace) -> None:
    metrics = [metric for core in summarise(trace).cores for metric in core.metrics]
    assert [stated_metric(metric.name, float(metric.value)) for metric in metrics] == metrics


def test_very_many_different_events_have_names_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_MOST_FACTS", 5)
    query = INSTRUCTIONS.format(first=0, last=10).replace(" FROM", ", 1000 + i AS raw_flops FROM")
    (first, second) = group_totals(open_trace(str(explorer(home / "e", Instruction=query))), By.OPERATOR)
    assert (first.count, second.count, first.flops, second.flops) == (5, 5, 0, 0)


def test_a_directory_that_cannot_be_written_is_named(trace: Trace, home: Path) -> None:
    (home / "tables").write_text("a file")
    with pytest.raises(ProfileError, match="cannot write"):
        export(trace, TraceFormat.PARQUET, str(home / "tables"))


@pytest.mark.parametrize(
    "name", ["start_ts=5", "duration_ns=7", "hlo_name=x", "a*b?[c]{d,e}", "it's", 'a "b", c', "x%20y", "[!a]"]
)
def test_names_of_directories_are_never_columns_or_patterns(home: Path, name: str) -> None:
    plain = open_trace(str(explorer(home / "plain", Instruction=INSTRUCTIONS.format(first=0, last=10))))
    directory = home / name / name  # the last one and one above it
    shutil.copytree(home / "plain", directory)
    trace = open_trace(str(directory))
    assert (trace.event_count, trace.end_ns) == (plain.event_count, plain.end_ns)
    assert {each.name for each in top_operators(trace)} == {"dot.0", "dot.1"}
    export(trace, TraceFormat.PARQUET, str(directory / "again"))
    assert open_trace(str(directory / "again")).event_count == trace.event_count


BOMBS = {
    "rows": "SELECT 5 AS start_ts, 1 AS duration_ns, 'mm' AS hlo_name FROM range(12000000)",
    "columns": "SELECT 1 AS start_ts, 1 AS duration_ns, " + ", ".join(f"1 AS c{n}" for n in range(5000)),
    "long texts": "SELECT i AS start_ts, 1 AS duration_ns, repeat(chr(97 + i::INT), 20000000) AS hlo_name "
    "FROM range(8) t(i)",
    "one text": "SELECT 1 AS start_ts, 1 AS duration_ns, repeat('x', 3000000) AS hlo_name FROM range(2000)",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_table_that_is_huge_when_read_is_left_out(
    home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_FREE_MEMORY", 1 << 28)
    directory = home / "e"
    directory.mkdir()
    with duckdb.connect(config={"threads": 1}) as writer:
        options = "FORMAT parquet, COMPRESSION zstd"
        writer.execute(f"COPY ({BOMBS[kind]}) TO '{directory}/Instruction.parquet' ({options})")
    with pytest.raises(ProfileError, match=r"Instruction\.parquet is left out: .") as raised:
        open_trace(str(directory))
    assert "\n" not in raised.value.message
