"""Profiles as directories of Parquet tables with Neuron Explorer's names: ours written, its own read."""

from __future__ import annotations

import errno
import glob
import math
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.files import open_input
from neurontools.base.text import plural
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.exchange.chrome_columns import group_rows
from neurontools.profiler.exchange.chrome_events import ForeignEvents
from neurontools.profiler.query.tables import SCHEMA_VERSION, TABLES, connect, create_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.profiler.trace.trace import Trace

    Progress = Callable[[int, int], None]

_ENDING = ".parquet"
_TIMES = ("start_ts", "duration_ns")
_NEWEST = int(SCHEMA_VERSION.split(".")[0])
_VERSION = re.compile(r"[vV]?([0-9]{1,9})\.")
_AGAIN = "export the profile again with neuron-explorer view --output-format parquet"
_LONGEST_NS = 1 << 61
_EXPLORER = "Neuron Explorer"
_NAMES = ("name", "category")
_FACTS = ("flops", "layer", "source", "read_bytes", "write_bytes", "shape", "busy_ns")
_TEXTS = frozenset({"layer", "source", "shape"})
# Columns of tables by what they say; those of our own tables have more.
_HBM = {"read_bytes": "hbm_read_bytes", "write_bytes": "hbm_write_bytes", "shape": "", "busy_ns": ""}
_OF_OURS = {"source": "source", "shape": "operands", "busy_ns": "active_time_ns"}
_OF_TRANSFERS = {
    "source": "source",
    "read_bytes": "read_bytes",
    "write_bytes": "write_bytes",
    "busy_ns": "active_time_ns",
}
_NO_METRICS = frozenset({"nc_idx", "nd_idx", "process_id"})
_MOST_CORES = 4096
_MOST_COLUMNS = 4096
# A file may be this large whatever its size, and more in proportion.
_FREE_ROWS, _ROWS_A_BYTE = 1 << 22, 8
_FREE_BYTES, _MOST_RATIO = 64 << 20, 300
_FREE_MEMORY, _MEMORY_A_BYTE = 1 << 30, 100
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_FACTS = 1 << 16
"""If events differ in more ways, only their names are read."""
# By table: name, category, process and line of an event, each the first column that exists.
_SOURCES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "Instruction": (("hlo_name", "opcode"), ("opcode",), ("pcore_idx",), ("engine", "timeline_track")),
    "DmaPacketAggregated": (("variable", "op"), ("op",), ("pcore_idx",), ("queue_name",)),
    "CcOp": (("operation",), ("algorithm", "opcode"), ("pcore_idx",), ()),
    "SystemProfileEvents": (("name",), ("trace_event_source",), ("process_id",), ("trace_event_source",)),
}
_SYSTEM = "SystemProfileEvents"
_LINES = {"Instruction": "instructions", "DmaPacketAggregated": "DMA", "CcOp": "CC-cores", _SYSTEM: "system"}


def write_parquet(trace: Trace, directory: str, progress: Progress | None = None) -> None:
    """Write a file for each table into an empty directory.

    Raises:
        MissingDependencyError: DuckDB is not installed.
        OSError: a file cannot be written.
    """
    with connect() as connection:
        create_tables(connection, trace, progress)
        for name in TABLES:
            path = os.path.join(directory, name + _ENDING).replace("'", "''")
            _run(
                connection, f"COPY (SELECT * FROM \"{name}\") TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
            )


def _run(connection: Any, query: str) -> Any:
    """Run a query on files.

    Raises:
        OSError: it cannot read or write them.
    """
    import duckdb

    try:
        return connection.execute(query)
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        code = next((code for code in _FULL if os.strerror(code) in reason), None)
        raise OSError(code, os.strerror(code) if code else reason[:200]) from error


def read_tables(directory: str) -> ForeignEvents:
    """Read the events of Neuron Explorer's tables.

    Raises:
        ProfileError: no table with events, a damaged one, or one of a newer schema.
        MissingDependencyError: DuckDB is not installed.
    """
    files = {name: _files(directory, name) for name in ("Metadata", *_SOURCES, "Summary")}
    present = [name for name in _SOURCES if files[name]]
    if not present:
        raise ProfileError(
            f"{directory} has Parquet files, but no table of events ({', '.join(_SOURCES)})", _AGAIN
        )
    with ExitStack() as stack:
        connection = stack.enter_context(connect())
        problems: list[str] = []
        tables = {name: _opened(connection, stack, name, paths, problems) for name, paths in files.items()}
        _limit_memory(connection, tables)
        program = _program(connection, tables["Metadata"], directory, problems)
        for name in present:
            problems += _add_readable(connection, name, tables[name])
        if not _run(connection, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'found'").fetchone():
            raise ProfileError(f"{directory}: {'; '.join(problems)}", _AGAIN)
        stated = _stated(connection, tables["Summary"], problems)
        return replace(_events(connection, program, problems), stated=stated)


def _opened(
    connection: Any, stack: ExitStack, table: str, paths: list[str], problems: list[str]
) -> dict[str, str]:
    """Open the files of a table; return their names by the paths for DuckDB, and add unreadable ones to the problems."""
    files: dict[str, str] = {}
    for path in paths:
        name = os.path.basename(path) if table in _SOURCES else f"the table {table}"
        try:
            # By number: DuckDB takes columns from names such as `start_ts=5` above a file, and expands patterns in them.
            file = stack.enter_context(open_input(path))
            descriptor_path = f"/proc/self/fd/{file.fileno()}"
            _check_size(connection, descriptor_path, os.fstat(file.fileno()).st_size)
            files[descriptor_path] = name
        except OSError as error:
            problems.append(f"{name} is left out: {error.strerror}")
    return files


def _check_size(connection: Any, place: str, size: int) -> None:
    """Refuse a small file that is huge when it is read.

    Raises:
        OSError: it is one, or not a Parquet file.
    """
    groups = f"""SELECT DISTINCT row_group_id, row_group_num_rows, sum(total_uncompressed_size) AS size
        FROM parquet_metadata('{place}') GROUP BY ALL"""
    columns = _run(connection, f"SELECT count(*) FROM parquet_schema('{place}')").fetchone()[0]
    if columns > _MOST_COLUMNS:
        raise OSError(None, f"it has more than {_MOST_COLUMNS} columns")
    stated = _run(connection, f"SELECT num_rows FROM parquet_file_metadata('{place}')").fetchone()[0]
    counted_rows, expanded = _run(
        connection, f"SELECT coalesce(sum(row_group_num_rows), 0), coalesce(sum(size), 0) FROM ({groups})"
    ).fetchone()
    rows = max(stated, int(counted_rows))
    if rows > _FREE_ROWS + _ROWS_A_BYTE * size:
        raise OSError(None, f"{rows} rows in {size} bytes, which no profile has")
    if expanded > _FREE_BYTES + _MOST_RATIO * size:
        raise OSError(None, f"it expands to more than {_MOST_RATIO} times its size, which no profile does")


def _limit_memory(connection: Any, tables: dict[str, dict[str, str]]) -> None:
    """Let DuckDB fail rather than take memory out of proportion: one long text may stand in every row."""
    size = sum(os.stat(place).st_size for files in tables.values() for place in files)
    _run(connection, f"SET memory_limit = '{_FREE_MEMORY + _MEMORY_A_BYTE * size}B'")
    _run(connection, "SET temp_directory = ''")


def _stated(
    connection: Any, files: dict[str, str], problems: list[str]
) -> tuple[tuple[int, dict[str, float]], ...]:
    """Return the numbers of the table Summary, with the NeuronCore of each row."""
    if not files:
        return ()
    try:
        columns = _columns(connection, files)
        rows = _run(connection, f"SELECT * FROM {_table(files)} LIMIT {_MOST_CORES}").fetchall()
    except OSError as error:
        problems.append(f"the table Summary is left out: {error.strerror}")
        return ()
    stated = []
    for number, row in enumerate(rows):
        numbers = {
            name: float(value)
            for name, value in zip(columns, row, strict=True)
            if isinstance(value, int | float | Decimal) and math.isfinite(value)
        }
        nc = int(numbers.get("nc_idx", number))
        metrics = {name: value for name, value in numbers.items() if name not in _NO_METRICS}
        if metrics:
            stated.append((nc, metrics))
    return tuple(stated)


def _files(directory: str, name: str) -> list[str]:
    """Return the files of a table; large ones are in numbered parts."""
    candidates = glob.glob(os.path.join(glob.escape(directory), f"{name}*{_ENDING}"))
    parts = re.compile(re.escape(name) + r"(_[0-9]+)?" + re.escape(_ENDING))
    return sorted(path for path in candidates if parts.fullmatch(os.path.basename(path)))


def _table(files: Iterable[str]) -> str:
    listed = ", ".join(f"'{place}'" for place in files)
    return f"read_parquet([{listed}], union_by_name = true)"


def _columns(connection: Any, files: Iterable[str]) -> list[str]:
    return [row[0] for row in _run(connection, f"DESCRIBE SELECT * FROM {_table(files)}").fetchall()]


def _program(connection: Any, files: dict[str, str], directory: str, problems: list[str]) -> str:
    """Return the program that measured, and add problems of the table Metadata; a schema that is too new is refused."""
    if not files:
        return _EXPLORER
    try:
        columns = _columns(connection, files)
        row = _run(connection, f"SELECT * FROM {_table(files)} LIMIT 1").fetchone() or ()
    except OSError as error:
        problems.append(f"the table Metadata is left out: {error.strerror}")
        return _EXPLORER
    values = dict(zip(columns, row, strict=False))
    for name in ("schema_version", "parquet_schema_version"):
        match = _VERSION.match(str(values.get(name) or ""))
        if match and int(match[1]) > _NEWEST:
            raise ProfileError(
                f"{directory} has tables of schema {values[name]}, supported are those up to {_NEWEST}.x",
                "use a newer neurontools",
            )
    if values.get("measured_by"):
        return str(values["measured_by"])
    return "neurontools (device times modelled)" if "measured_by" in values else _EXPLORER


def _add_readable(connection: Any, name: str, files: dict[str, str]) -> list[str]:
    """Add the events of the readable parts of a table; return the omissions."""
    if not files:
        return []
    try:
        return _add(connection, name, files)
    except OSError as error:
        if len(files) > 1:
            parts = ({place: part} for place, part in files.items())
            return [problem for part in parts for problem in _add_readable(connection, name, part)]
        return [f"{next(iter(files.values()))} is left out: {error.strerror}"]


def _add(connection: Any, name: str, files: Iterable[str]) -> list[str]:
    """Add the events of a table to the table of all; return the omissions.

    Raises:
        OSError: a file cannot be read.
    """
    columns = _columns(connection, files)
    missing = [column for column in _TIMES if column not in columns]
    if missing:
        return [f"the table {name} is left out: it lacks the column {missing[0]}"]
    label, category, process, line = (
        [f'"{column}"' for column in wanted if column in columns] for wanted in _SOURCES[name]
    )
    core = f"coalesce({process[0]}::VARCHAR, '')" if process else "''"
    lines = "coalesce(" + ", ".join([*(f"{column}::VARCHAR" for column in line), f"'{_LINES[name]}'"]) + ")"
    is_system = name == _SYSTEM
    if is_system and "nc_idx" in columns:
        lines = f"concat({lines}, ' NC' || \"nc_idx\"::VARCHAR)"
    selected = f"""
        SELECT "start_ts"::BIGINT AS start, "duration_ns"::BIGINT AS duration,
            {_first_text(label)} AS name, {_first_text(category)} AS category,
            {"'pid '" if is_system else "'NC'"} || {core} AS process, {lines} AS line,
            {str(not is_system).lower()} AS on_device, {_facts(name, columns)}
        FROM {_table(files)}"""
    exists = _run(connection, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'found'").fetchone()
    _run(connection, f"{'INSERT INTO found' if exists else 'CREATE TABLE found AS'} {selected}")
    possible = (
        f"start IS NOT NULL AND duration >= 0 AND abs(start) < {_LONGEST_NS} AND duration < {_LONGEST_NS}"
    )
    wrong = _run(connection, f"SELECT count(*) FROM found WHERE NOT coalesce({possible}, false)").fetchone()[
        0
    ]
    if wrong:
        _run(connection, f"DELETE FROM found WHERE NOT coalesce({possible}, false)")
        return [f"{name}: {plural(wrong, 'event')} with negative or impossible times left out"]
    return []


def _facts(name: str, columns: list[str]) -> str:
    """Return the columns that describe an event besides its times."""
    # A transfer has the bytes of both ends; only in our tables are they those of HBM.
    own = (
        {}
        if "active_time_ns" not in columns
        else _OF_TRANSFERS
        if name == "DmaPacketAggregated"
        else _OF_OURS
    )
    sources = {"flops": "raw_flops", "layer": "layer", "source": "nki_source_location", **_HBM, **own}
    selected = []
    for fact, column in sources.items():
        present = column in columns and name != _SYSTEM
        if fact in _TEXTS:
            selected.append(f"""{f"coalesce({column}::VARCHAR, '')" if present else "''"} AS {fact}""")
        else:
            selected.append(f"{f'greatest(coalesce({column}::BIGINT, 0), 0)' if present else '0'} AS {fact}")
    return ", ".join(selected)


def _first_text(columns: list[str]) -> str:
    texts = [f"nullif({column}::VARCHAR, '')" for column in columns]
    return f"coalesce({', '.join([*texts, chr(39) * 2])})"


def _events(connection: Any, program: str, problems: list[str]) -> ForeignEvents:
    variants = f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(_NAMES + _FACTS)} FROM found)"
    facts = _FACTS if _run(connection, variants).fetchone()[0] <= _MOST_FACTS else ()
    names = ", ".join(_NAMES + facts)
    for table, columns in (("names", names), ("lines", "on_device, process, line")):
        _run(
            connection,
            f"CREATE TABLE {table} AS SELECT row_number() OVER (ORDER BY {columns}) - 1 AS number, * "
            f"FROM (SELECT DISTINCT {columns} FROM found)",
        )
    columns_read = _run(
        connection,
        f"""SELECT start, duration, n.number::UINTEGER AS name, l.number::UINTEGER AS line FROM found f
        JOIN names n ON {" AND ".join(f"n.{column} = f.{column}" for column in _NAMES + facts)}
        JOIN lines l ON l.process = f.process AND l.line = f.line AND l.on_device = f.on_device""",
    ).fetchnumpy()
    lines = _run(connection, "SELECT process, line, on_device FROM lines ORDER BY number").fetchall()
    of_names = _run(connection, f"SELECT {names} FROM names ORDER BY number").fetchall()
    order, bounds = group_rows(np.array(columns_read["line"], dtype=np.uint32), len(lines))
    return ForeignEvents(
        start=np.array(columns_read["start"], dtype=np.int64)[order],
        duration=np.array(columns_read["duration"], dtype=np.int64)[order],
        name=np.array(columns_read["name"], dtype=np.uint32)[order],
        bounds=bounds,
        names=tuple((name, category) for name, category, *_ in of_names),
        tracks=tuple((process, line) for process, line, _ in lines),
        processes={},
        labels={process: "/device:NEURON" for process, _, on_device in lines if on_device},
        threads={(process, line): line for process, line, _ in lines},
        headers=(),
        problems=tuple(problems),
        program=program,
        facts=tuple(dict(zip(facts, row[len(_NAMES) :], strict=True)) for row in of_names) if facts else (),
    )
