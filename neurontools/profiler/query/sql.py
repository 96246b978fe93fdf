"""SQL over a profile, and tables of numpy columns for its answers."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from neurontools.base.text import did_you_mean
from neurontools.errors import MissingDependencyError
from neurontools.profiler.analysis.host import find_gaps
from neurontools.profiler.analysis.steps import TrainingStep, find_steps
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.query.tables import TABLES, by_column, connect, create_tables, insert
from neurontools.profiler.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ColumnTable:
    """Columns of equal length by name. Times are nanoseconds, as the names say."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with Python's own types; missing values are None."""
        lists = [_values(column) for column in self.columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def arrow(self) -> Any:
        """Return a `pyarrow.Table`.

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        return _module("pyarrow").table({name: _values(column) for name, column in self.columns.items()})

    def pandas(self) -> Any:
        """Return a `pandas.DataFrame`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _module("pandas").DataFrame({name: _plain(column) for name, column in self.columns.items()})

    def polars(self) -> Any:
        """Return a `polars.DataFrame`.

        Raises:
            MissingDependencyError: Polars is not installed.
        """
        return _module("polars").DataFrame({name: _values(column) for name, column in self.columns.items()})


def table_of(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> ColumnTable:
    """Return rows as a table.

    Args:
        names: of the columns.
        rows: values by name; None where there is no value.
    """
    listed = list(rows)
    return ColumnTable({name: _column([row[name] for row in listed]) for name in names})


def _column(values: list[Any]) -> NDArray[Any]:
    """Return values as an array of their type; of objects where one is missing or is text."""
    if any(value is None or isinstance(value, (str, list, dict)) for value in values):
        column: NDArray[Any] = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    return np.array(values)


def _values(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = column.tolist()
    if isinstance(column, np.ma.MaskedArray):
        return values
    return [None if isinstance(value, float) and value != value else value for value in values]  # noqa: PLR0124


def _plain(column: NDArray[Any]) -> Any:
    return _values(column) if isinstance(column, np.ma.MaskedArray) else column


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name} is not installed", f"pip install {name}") from error


_STEP = (
    "process_id BIGINT, rank INTEGER, number BIGINT, start_ns BIGINT, duration_ns BIGINT, is_first BOOLEAN, "
    "executions BIGINT, device_ns BIGINT, compile_ns BIGINT, load_ns BIGINT, transfer_ns BIGINT, execute_ns BIGINT, "
    "idle_ns BIGINT"
)
_GAP = (
    "process_id BIGINT, rank INTEGER, nc_idx INTEGER, start_ns BIGINT, duration_ns BIGINT, before VARCHAR, "
    "after VARCHAR, host VARCHAR, host_ns BIGINT"
)
_EXACT = 1 << 53
_SCHEMA = "neuron-profile sql --show-profile-schema lists tables and columns"
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")
_NO_COLUMN = re.compile(r'column "([^"]+)" not found')
_CANDIDATES = re.compile(r"Candidate bindings: (.*)")
_QUOTED = re.compile(r'"([^"]+)"')
_NO_FILES = "disabled by configuration"
OWN_TABLES = {"Step": _STEP, "Gap": _GAP}
"""Tables beside those of Neuron Explorer, and their columns; `host` is what the host did for most of a gap."""


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column of a table."""

    table: str
    column: str
    type: str


class SqlSession:
    """The tables of a profile, ready for queries. Use it as a context manager.

    Args:
        trace: the profile.

    Raises:
        MissingDependencyError: DuckDB is not installed.
    """

    def __init__(self, trace: Trace) -> None:
        self._connection = connect()
        create_tables(self._connection, trace)
        for name, columns in OWN_TABLES.items():
            self._connection.execute(f'CREATE TABLE "{name}" ({columns})')
        for steps in find_steps(trace):
            names = [field.name for field in fields(TrainingStep)][1:]
            values = {"number": steps.numbers} | {name: np.array(getattr(steps, name)) for name in names}
            rank = "NULL" if steps.rank is None else steps.rank
            insert(self._connection, "Step", values, f"{steps.pid}, {rank}, *")
        gaps = _gaps(trace)
        if gaps:
            insert(self._connection, "Gap", by_column(gaps))
        # A query reads the profile and nothing else.
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the tables."""
        self._connection.close()

    def query(self, text: str) -> ColumnTable:
        """Return the result of a query.

        Raises:
            ProfileError: it is not valid SQL, or names a table or column that does not exist.
        """
        with _one_line_errors():
            done = self._connection.execute(text)
            described = (done and done.description) or ()
            columns = done.fetchnumpy() if described else {}
        # Sums of int64 are 128 bits wide, which numpy has only as floats.
        wide = [name for name, kind, *_ in described if str(kind) == "HUGEINT"]
        exact = {
            name: columns[name].astype(np.int64) for name in wide if np.all(np.abs(columns[name]) < _EXACT)
        }
        return ColumnTable(columns | exact)

    def schema(self) -> tuple[SchemaColumn, ...]:
        """Return the columns of all tables, table after table."""
        columns: list[SchemaColumn] = []
        for name in (*TABLES, *OWN_TABLES):
            described = self._connection.execute(f'DESCRIBE "{name}"').fetchall()
            columns += [SchemaColumn(name, row[0], row[1]) for row in described]
        return tuple(columns)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn errors of DuckDB into ours.

    Raises:
        ProfileError: a query is not valid SQL, or names a table or column that does not exist.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        text = str(error).strip() or type(error).__name__
        raise ProfileError(f"the query failed: {text.splitlines()[0]}", _remedy(text)) from error


def _remedy(text: str) -> str:
    """Return what to do about an error of DuckDB."""
    table = _NO_TABLE.search(text)
    if table:
        return did_you_mean(table[1], (*TABLES, *OWN_TABLES), otherwise=_SCHEMA)
    column, candidates = _NO_COLUMN.search(text), _CANDIDATES.search(text)
    if column and candidates:
        return did_you_mean(column[1], _QUOTED.findall(candidates[1]), otherwise=_SCHEMA)
    if _NO_FILES in text:
        return "a query reads the tables of the profile; save its result with --csv or --json"
    return _SCHEMA


def empty_trace() -> Trace:
    """Return a profile of nothing, whose tables have all columns that do not depend on a run."""
    return Trace((), (), (), (), (), {}, 0)


def _gaps(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (gap.pid, gap.rank, gap.nc, gap.start_ns, gap.duration_ns, gap.before, gap.after, *gap.host[0])
        for gap in find_gaps(trace).gaps
    ]
