"""The tables of a profile in DuckDB, with the names that Neuron Explorer gives its tables and columns.

Source of the names: AWS Neuron documentation, Neuron Explorer, the schema of its Parquet files (version 7.4). Columns that
the model cannot know are left out. Additions are `source`, `execution`, `process_id`, and `active_time_ns`: the part of
`duration_ns` in which the engine works. Times are int64 nanoseconds since the first event of the profile;
`Metadata.origin_unix_ns` is its unix time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools import __version__
from neurontools.errors import MissingDependencyError
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import NO_CORE, Track
from neurontools.profiler.trace.periodic import PeriodicEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from neurontools.profiler.analysis.summary import CoreSummary
    from neurontools.profiler.trace.trace import Trace

    Progress = Callable[[int, int], None]

SCHEMA_VERSION = "7.4.0"
_TIMES = """e.start AS start_ts, e."end" AS end_ts, e."end" - e.start AS duration_ns"""
_ACTIVE = """least(CASE WHEN a.busy_ns > 0 THEN a.busy_ns ELSE e."end" - e.start END, e."end" - e.start)"""
_PLACE = (
    "r.nc AS pcore_idx, e.id AS id, e.execution AS execution, r.process_id AS process_id, a.source AS source"
)
_FROM = "FROM _events e JOIN _actions a ON e.action = a.number JOIN _rows r ON e.row = r.number"
_EVENT_COLUMNS = 'id BIGINT, "row" INTEGER, action INTEGER, start BIGINT, "end" BIGINT, execution BIGINT, status INTEGER, value BIGINT'
_EXECUTION_COLUMNS = (
    '"row" INTEGER, template INTEGER, start BIGINT, execution BIGINT, status INTEGER, first_id BIGINT'
)
_SCHEDULED_COLUMNS = (
    '"row" INTEGER, template INTEGER, place INTEGER, action INTEGER, start BIGINT, "end" BIGINT'
)
_EVENTS = """
    SELECT * FROM _recorded UNION ALL
    SELECT r.first_id + p.place AS id, r."row", p.action, r.start + p.start AS start, r.start + p."end" AS "end",
        r.execution, r.status, 0::BIGINT AS value
    FROM _executions r JOIN _scheduled p ON r."row" = p."row" AND r.template = p.template"""

TABLES = {
    "Instruction": f"""
        SELECT {_TIMES}, {_ACTIVE} AS active_time_ns, r.engine AS engine, r.engine AS timeline_track, a.opcode AS opcode, a.shape AS operands,
            a.name AS hlo_name, a.layer AS layer, a.flops AS raw_flops,
            a.read_bytes AS hbm_read_bytes, a.write_bytes AS hbm_write_bytes, {_PLACE}
        {_FROM} WHERE r.kind = 'engine'""",
    "DmaPacketAggregated": f"""
        SELECT {_TIMES}, {_ACTIVE} AS active_time_ns, a.opcode AS op, a.name AS variable, a.queue AS queue_name, a.queue_type AS queue_type,
            a.read_bytes AS read_bytes, a.write_bytes AS write_bytes, a.read_bytes + a.write_bytes AS transfer_bytes,
            CASE WHEN e."end" > e.start THEN 1e9 * (a.read_bytes + a.write_bytes) / (e."end" - e.start) END AS throughput,
            a.layer AS layer, {_PLACE}
        {_FROM} WHERE r.kind = 'dma'""",
    "CcOp": f"""
        SELECT {_TIMES}, {_ACTIVE} AS active_time_ns, a.name AS operation, a.opcode AS opcode, a.read_bytes AS input_size,
            a.write_bytes AS output_size, a.layer AS layer, {_PLACE}
        {_FROM} WHERE r.kind = 'cc'""",
    "SystemProfileEvents": f"""
        SELECT e.id AS id, a.name AS name, {_TIMES}, r.engine AS trace_event_source, r.instance_id AS instance_id,
            r.process_id AS process_id, r.nc AS nc_idx, e.execution AS execution, e.status AS status, e.value AS size
        {_FROM} WHERE r.kind = 'system'""",
    "OpcodeSummary": f"""
        SELECT r.engine AS engine, a.opcode AS opcode, sum(a.tiles)::BIGINT AS instruction_count,
            sum({_ACTIVE})::BIGINT AS instruction_time_ns
        {_FROM} WHERE r.kind IN ('engine', 'dma', 'cc') GROUP BY ALL""",
    "Summary": "SELECT * FROM _summary",
    "Metadata": "SELECT * FROM _metadata",
    "Warning": "SELECT * FROM _warnings",
    "SchemaFields": """
        SELECT table_name, column_name AS name, data_type AS type,
            CASE WHEN column_name SIMILAR TO '.*_(ns|ts)' THEN 'ns'
                WHEN column_name SIMILAR TO '.*_percent' THEN '%'
                WHEN column_name SIMILAR TO '.*_(bytes|size)' OR column_name = 'size' THEN 'B'
                WHEN column_name = 'throughput' THEN 'B/s'
                WHEN table_name = 'Summary' AND column_name SIMILAR TO '.*_time' THEN 's'
                ELSE '' END AS unit
        FROM duckdb_columns()
        WHERE NOT internal AND NOT starts_with(table_name, '_')""",
}
"""The query behind every table."""

_KINDS = {Track.DMA: "dma", Track.CC: "cc", Track.MODEL: "model"}


def connect() -> Any:
    """Return a DuckDB connection in memory that reads and writes files only where a query says so.

    Raises:
        MissingDependencyError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "SQL and Parquet need DuckDB, which is not installed", "pip install 'neurontools[profile]'"
        ) from error
    return duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": False, "python_enable_replacements": False}
    )


def create_tables(connection: Any, trace: Trace, progress: Progress | None = None) -> None:
    """Fill a connection with the tables of a trace, as views named as in TABLES.

    Args:
        connection: of DuckDB.
        trace: the profile.
        progress: called with the number of events read and of all.
    """
    summary = summarise(trace)
    warnings = [(_text(warning), "profile") for warning in summary.warnings]
    _create_table(connection, "_actions", _ACTIONS, _actions(trace))
    _create_table(connection, "_rows", _ROWS, _rows(trace))
    _create_table(connection, "_warnings", "message VARCHAR, category VARCHAR", warnings)
    _create_summary(connection, [core for core in summary.cores if core.metrics])
    _create_table(connection, "_metadata", _METADATA, [_metadata(trace)])
    _insert_events(connection, trace, progress)
    for name, query in TABLES.items():
        connection.execute(f'CREATE VIEW "{name}" AS {query}')


def insert(connection: Any, name: str, columns: Mapping[str, NDArray[Any]], selected: str = "*") -> None:
    """Add rows to a table.

    Args:
        connection: of DuckDB.
        name: of the table.
        columns: of equal length, by name.
        selected: expressions of their names, in the order of the table's columns.
    """
    connection.register("_values", columns)
    connection.execute(f'INSERT INTO "{name}" SELECT {selected} FROM _values')  # noqa: S608 # names of ours
    connection.unregister("_values")


def by_column(rows: Sequence[Sequence[object]]) -> dict[str, NDArray[Any]]:
    """Return the columns of rows; there is at least one row."""
    return {
        f"c{place}": np.array(column, dtype=object) for place, column in enumerate(zip(*rows, strict=True))
    }


def _create_table(connection: Any, name: str, columns: str, rows: Sequence[Sequence[object]]) -> None:
    connection.execute(f'CREATE TABLE "{name}" ({columns})')
    if rows:
        insert(connection, name, by_column(rows))


_ACTIONS = (
    "number INTEGER, name VARCHAR, opcode VARCHAR, shape VARCHAR, source VARCHAR, layer VARCHAR, queue VARCHAR, "
    "queue_type VARCHAR, flops BIGINT, read_bytes BIGINT, write_bytes BIGINT, busy_ns BIGINT, tiles BIGINT"
)
_ROWS = "number INTEGER, kind VARCHAR, engine VARCHAR, nc INTEGER, process_id BIGINT, instance_id VARCHAR"
_METADATA = (
    "schema_version VARCHAR, is_simulation BOOLEAN, measured_by VARCHAR, tool_version VARCHAR, instance_type VARCHAR, "
    "origin_unix_ns BIGINT, first_ts BIGINT, last_ts BIGINT"
)


def _actions(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (
            number,
            _text(action.name),
            _text(action.opcode),
            _text(action.shape),
            _text(action.source),
            _text(action.layer),
            action.queue_name,
            str(action.queue.mode) if action.queue else "",
            action.flops,
            action.read_bytes,
            action.write_bytes,
            action.busy_ns,
            action.tiles,
        )
        for number, action in enumerate(trace.actions)
    ]


def _text(value: str) -> str:
    """Return a text that UTF-8 can hold."""
    return value.encode("utf-8", "replace").decode()


def _rows(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (
            number,
            "system" if row.track.measured else _KINDS.get(row.track, "engine"),
            _text(f"{row.process_label} {row.name}" if row.group else row.name),
            None if row.nc == NO_CORE else row.nc,
            row.pid,
            trace.processes[row.process].instance_id,
        )
        for number, row in enumerate(trace.rows)
    ]


def _metadata(trace: Trace) -> tuple[object, ...]:
    kinds = sorted({meta.instance_type for meta in trace.processes})
    return (
        SCHEMA_VERSION,
        not trace.measured_by,
        trace.measured_by,
        __version__,
        ", ".join(kinds),
        trace.origin_unix_ns,
        trace.start_ns,
        trace.end_ns,
    )


def _create_summary(connection: Any, cores: Sequence[CoreSummary]) -> None:
    """Create the table with a row of metrics for each NeuronCore."""
    names = list(dict.fromkeys(metric.name for core in cores for metric in core.metrics))
    columns = ["process_id BIGINT", "nc_idx INTEGER", *(f'"{name}" DOUBLE' for name in names)]
    rows = [
        (core.pid, core.nc, *(values.get(name) for name in names))
        for core in cores
        for values in [{metric.name: float(metric.value) for metric in core.metrics}]
    ]
    _create_table(connection, "_summary", ", ".join(columns), rows)


def _insert_events(connection: Any, trace: Trace, progress: Progress | None) -> None:
    """Make the view of all events: those of programs are joined from executions and schedules, never stored."""
    connection.execute(f"CREATE TABLE _recorded ({_EVENT_COLUMNS})")
    connection.execute(f"CREATE TABLE _executions ({_EXECUTION_COLUMNS})")
    connection.execute(f"CREATE TABLE _scheduled ({_SCHEDULED_COLUMNS})")
    connection.execute(f"CREATE VIEW _events AS {_EVENTS}")
    done = 0
    for number, row in enumerate(trace.rows):
        if isinstance(row.events, PeriodicEvents):
            _insert_executions(connection, number, row.first, row.events)
            done += row.events.count
            if progress is not None:
                progress(done, trace.event_count)
            continue
        first = row.first
        for block in row.events.blocks():
            count = len(block)
            columns = {
                "id": np.arange(first, first + count, dtype=np.int64),
                "row": np.full(count, number, dtype=np.int32),
                "action": block.action.astype(np.int32),
                "start": np.ascontiguousarray(block.start),
                "end": block.start + block.duration,
                "execution": block.execution.astype(np.int64),
                "status": block.status.astype(np.int32),
                "value": np.array(block.value),
            }
            insert(connection, "_recorded", columns)
            first += count
            done += count
            if progress is not None:
                progress(done, trace.event_count)


def _insert_executions(connection: Any, number: int, first: int, events: PeriodicEvents) -> None:
    executions, template, templates, before = events.schedule()
    count = len(template)
    columns = {
        "row": np.full(count, number, dtype=np.int32),
        "template": template.astype(np.int32),
        "start": np.ascontiguousarray(executions.start),
        "execution": executions.number.astype(np.int64),
        "status": executions.status.astype(np.int32),
        "first_id": first + before,
    }
    insert(connection, "_executions", columns)
    for place, each in enumerate(templates):
        size = len(each.start)
        columns = {
            "row": np.full(size, number, dtype=np.int32),
            "template": np.full(size, place, dtype=np.int32),
            "place": np.arange(size, dtype=np.int32),
            "action": each.action.astype(np.int32),
            "start": np.ascontiguousarray(each.start),
            "end": each.start + each.duration,
        }
        insert(connection, "_scheduled", columns)
