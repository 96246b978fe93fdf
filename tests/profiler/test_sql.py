"""SQL over profiles, and the Python interface: totals are those of the events, whoever counts."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import neurontools.profiler
from neurontools.errors import MissingDependencyError
from neurontools.profiler.analysis.operators import By, group_totals
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.query.sql import ColumnTable, SqlSession, table_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from neurontools.profiler.query.api import OpenProfile
    from neurontools.profiler.trace.trace import Trace

    Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def opened(profile_dir: Path) -> OpenProfile:
    return neurontools.profiler.open(profile_dir)


def test_sql_has_the_totals_of_the_groups(trace: Trace) -> None:
    pytest.importorskip("duckdb")

    with SqlSession(trace) as session:
        for by, column in ((By.ENGINE, "engine"), (By.OPERATOR, "hlo_name")):
            found = session.query(f"""
                SELECT name, sum(number) AS number, sum(ns) AS ns, sum(flops) AS flops, sum(bytes) AS bytes FROM (
                    SELECT {column} AS name, 1 AS number, duration_ns AS ns, raw_flops AS flops,
                        hbm_read_bytes + hbm_write_bytes AS bytes FROM Instruction
                    UNION ALL SELECT {"'DMA'" if by is By.ENGINE else "variable"}, 1, duration_ns, 0, transfer_bytes
                    FROM DmaPacketAggregated)
                GROUP BY ALL""")
            rows = {
                row["name"]: (row["number"], row["ns"], row["flops"], row["bytes"]) for row in found.rows()
            }
            assert found["ns"].dtype == np.int64
            assert rows == {
                group.name.removeprefix("NC0 "): (group.count, group.total_ns, group.flops, group.bytes_moved)
                for group in group_totals(trace, by)
            }
        steps = list(session.query("SELECT * FROM Step ORDER BY number").rows())
        (expected,) = find_steps(trace)
        assert [row["duration_ns"] for row in steps] == expected.duration_ns.tolist()
        assert [row["is_first"] for row in steps] == expected.is_first.tolist()
        assert session.query("SELECT sum(duration_ns) AS ns FROM Gap")["ns"].tolist() == [5_900_000]
        tables = {column.table for column in session.schema()}
        assert {
            "Instruction",
            "SystemProfileEvents",
            "OpcodeSummary",
            "Metadata",
            "Summary",
            "Step",
        } <= tables


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT * FROM Nothing", "Table with name Nothing does not exist"),
        ("SELECT nothing FROM Instruction", "nothing"),
        ("SELEKT 1", "syntax error"),
    ],
)
def test_invalid_queries_are_one_line(opened: OpenProfile, query: str, error: str) -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(ProfileError) as raised:
        opened.sql(query)
    assert error in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("SELECT * FROM Instructon", "did you mean 'Instruction'?"),
        ("SELECT * FROM step", ""),
        ("SELECT * FROM names", "lists tables"),
        ("SELECT * FROM done", "lists tables"),
        ("SELECT * FROM text", "lists tables"),
        ("SELECT * FROM trace", "lists tables"),
        ("SELECT * FROM sys", "lists tables"),
        ("SELECT * FROM self", "lists tables"),
        ("SELECT start FROM Step", "did you mean 'start_ns'?"),
        ("SELECT * FROM '/etc/passwd'", "lists tables"),
        ("SELECT * FROM read_csv('/etc/passwd')", "a query reads the tables of the profile"),
        ("SELECT * FROM read_text('/etc/passwd')", "a query reads the tables of the profile"),
        ("SELECT * FROM glob('/etc/*')", "a query reads the tables of the profile"),
        ("COPY (SELECT 1) TO 'made.csv'", "a query reads the tables of the profile"),
        ("ATTACH 'made.db'", "a query reads the tables of the profile"),
        ("SET enable_external_access = true", ""),
    ],
)
def test_a_query_knows_tables_and_nothing_else(
    opened: OpenProfile, query: str, remedy: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(home)
    if query == "SELECT * FROM step":
        assert len(opened.sql(query))
        return
    with pytest.raises(ProfileError) as raised:
        opened.sql(query)
    assert remedy in str(raised.value.remedy)
    assert "Python" not in raised.value.message
    assert "\n" not in raised.value.message
    assert not list(home.glob("made*"))


def test_without_duckdb_the_error_says_what_to_install(
    opened: OpenProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError) as raised:
        opened.sql("SELECT 1")
    assert raised.value.remedy == "pip install 'neurontools[profile]'"


def test_sql_on_the_command_line(tool: Tool, profile_dir: Path) -> None:
    pytest.importorskip("duckdb")
    query = "SELECT engine, count(*) AS events FROM Instruction GROUP BY ALL ORDER BY engine"
    wanted = [("GpSimd", 10), ("Scalar", 10), ("Tensor", 20), ("Vector", 10)]
    for arguments in ((query, str(profile_dir)), (str(profile_dir), query), (str(profile_dir), "-q", query)):
        found = json.loads(tool("neuron-profile", "sql", *arguments, "--json").stdout)
        assert [(row["engine"].removeprefix("NC0 "), row["events"]) for row in found] == wanted
    text = tool("neuron-profile", "sql", query, str(profile_dir), "--csv", "--steps", "2").stdout
    assert [int(row["events"]) for row in csv.DictReader(io.StringIO(text))] == [2, 2, 4, 2]
    schema = tool("neuron-profile", "sql", "--show-profile-schema").stdout
    assert "OpcodeSummary" in schema
    for arguments, code, error in (
        ((str(profile_dir),), 2, "error: no query given"),
        ((query, "missing"), 1, "error: no profile at missing"),
        (("SELECT * FROM Nothing", str(profile_dir)), 1, "error: the query failed: Catalog Error"),
    ):
        done = tool("neuron-profile", "sql", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith(error)


def test_python_gets_columns(opened: OpenProfile) -> None:
    operators = opened.operators("engine")
    assert operators["name"].tolist() == ["Tensor", "DMA", "Scalar", "Vector", "GpSimd"]
    assert operators["total_ns"].dtype == np.int64
    assert len(opened.steps()) == 5
    assert opened.steps()["is_first"].tolist() == [True, False, False, False, False]
    assert opened.gaps()["duration_ns"].sum() == 5_900_000
    assert opened.roofline()["bound"].tolist()[:2] == ["compute", "memory"]
    assert opened.summary()["event_count"] == opened.trace.event_count
    part = opened.select(steps=(2, 3), engines=["tensor"], ncs=[0])
    assert part.operators()["count"].tolist() == [4]
    with pytest.raises(ValueError, match="unknown engine 'tenser'"):
        opened.select(engines=["tenser"])


def test_events_come_in_blocks(opened: OpenProfile) -> None:
    blocks = list(opened.events())
    assert sum(map(len, blocks)) == opened.trace.event_count
    tensor = list(opened.events("Tensor"))
    assert sum(block["duration_ns"].sum() for block in tensor) == 20 * 7_000
    assert {name for block in tensor for name in block["name"]} == {"aten.mm"}


def test_missing_values_are_none_in_rows_and_other_libraries() -> None:
    table = table_of(["rank", "ns"], [{"rank": None, "ns": 1}, {"rank": 3, "ns": 2}])
    assert list(table.rows()) == [{"rank": None, "ns": 1}, {"rank": 3, "ns": 2}]
    assert len(ColumnTable({})) == 0
    for name, method in (("pyarrow", "arrow"), ("pandas", "pandas"), ("polars", "polars")):
        try:
            __import__(name)
        except ImportError:
            with pytest.raises(MissingDependencyError, match=f"{name} is not installed"):
                getattr(table, method)()
        else:
            assert list(getattr(table, method)()["ns"].to_numpy()) == [1, 2]


def test_the_example_of_the_page_runs(
    profile_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    page = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
    (example,) = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(profile_dir.parent)
    exec(example.replace('"prof"', '"profile"'), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "700000.0"
    assert lines[1].startswith("(unknown) 172200 ")
