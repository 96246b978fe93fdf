"""A profile for Python programs and notebooks: its numbers as tables of numpy columns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.errors import MissingDependencyError
from neurontools.profiler.analysis.host import Gap, find_gaps
from neurontools.profiler.analysis.operators import By, GroupTotal, group_totals
from neurontools.profiler.analysis.roofline import RooflinePoint, roofline
from neurontools.profiler.analysis.steps import TrainingStep, column_of, find_steps, of_steps
from neurontools.profiler.analysis.summary import report, to_json
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.open import open_trace
from neurontools.profiler.trace.selection import Selection, select

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceRow


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


BLOCK_EVENTS = 1 << 16


class OpenProfile:
    """A profile or a part of it. `trace` has everything that the tools use.

    Args:
        trace: what was read.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def select(
        self,
        *,
        steps: tuple[int, int] | None = None,
        ncs: Iterable[int] | None = None,
        engines: Iterable[str] | None = None,
        from_ns: int | None = None,
        to_ns: int | None = None,
        skip_warmup: bool = False,
    ) -> OpenProfile:
        """Return a part.

        Args:
            steps: the first and the last step, both included.
            ncs: process-local NeuronCores.
            engines: names such as `Tensor` and `DMA`.
            from_ns: start of a stretch of time, since the first event.
            to_ns: its end.
            skip_warmup: leave out loads and first executions.

        Raises:
            ProfileError: nothing is left.
            ValueError: an engine is unknown.
        """
        labels = {track.label.lower(): track for track in Track}
        unknown = [name for name in engines or () if name.lower() not in labels]
        if unknown:
            raise ValueError(f"unknown engine {unknown[0]!r}")
        wanted = Selection(
            ncs=None if ncs is None else frozenset(ncs),
            from_ns=from_ns,
            to_ns=to_ns,
            skip_warmup=skip_warmup,
            engines=None if engines is None else frozenset(labels[name.lower()] for name in engines),
        )
        return OpenProfile(select(self.trace if steps is None else of_steps(self.trace, *steps), wanted))

    def summary(self) -> dict[str, Any]:
        """Return what `neuron-profile summary --json` prints."""
        return to_json(report(self.trace, None))

    def operators(self, by: str = "operator") -> ColumnTable:
        """Return totals by operator, shape, layer, source, engine, rank or opcode; see `GroupTotal`. Times are modelled."""
        rows = (
            asdict(each) | {"flops_s": each.flops_s, "bytes_s": each.bytes_s}
            for each in group_totals(self.trace, By(by))
        )
        return table_of([*_names(GroupTotal), "flops_s", "bytes_s"], rows)

    def roofline(self, by: str = "operator") -> ColumnTable:
        """Return what bounds operators, layers or source lines; see `RooflinePoint`. Times are modelled."""
        return table_of(_names(RooflinePoint), map(asdict, roofline(self.trace, By(by)).points))

    def steps(self) -> ColumnTable:
        """Return the steps of all processes; see `TrainingStep`. Times are measured, but for `device_ns`."""
        processes = find_steps(self.trace)
        sizes = [len(each) for each in processes]
        columns: dict[str, Any] = {
            name: np.repeat(np.array([getattr(each, name) for each in processes], dtype=np.int64), sizes)
            for name in ("process", "pid")
        }
        columns["number"] = column_of(processes, "numbers")
        columns |= {name: column_of(processes, name) for name in _names(TrainingStep)[1:]}
        return ColumnTable(columns)

    def gaps(self) -> ColumnTable:
        """Return the times between executions, the longest first; see `Gap`. Times are measured."""
        rows = (asdict(gap) | {"host": dict(gap.host)} for gap in find_gaps(self.trace).gaps)
        return table_of(_names(Gap), rows)

    def events(self, *tracks: str) -> Iterator[ColumnTable]:
        """Yield all events row after row, in blocks: a profile of many events need not fit in memory.

        Args:
            tracks: names of rows such as `Tensor`, `DMA`, `Host`; all if empty.
        """
        names = np.array([action.name for action in self.trace.actions], dtype=object)
        wanted = {name.lower() for name in tracks}
        for row in self.trace.rows:
            if not wanted or row.track.label.lower() in wanted:
                for block in row.events.blocks(BLOCK_EVENTS):
                    yield _events(row, block, names)

    def sql(self, query: str) -> ColumnTable:
        """Return the answer to an SQL query; for several queries keep a `SqlSession`.

        Raises:
            MissingDependencyError: DuckDB is not installed.
            ProfileError: the query is invalid.
        """
        from neurontools.profiler.query.sql import SqlSession

        with SqlSession(self.trace) as session:
            return session.query(query)


def open_profile(path: str | os.PathLike[str], session: int | None = None) -> OpenProfile:
    """Open a profile, or a trace of another program that `neuron-profile view` opens.

    Args:
        path: directory or file.
        session: which run, from 1 for the oldest; None for the newest.

    Raises:
        ProfileError: it is not a profile, or has fewer runs.
        MissingDependencyError: a package is not installed.
    """
    return OpenProfile(open_trace(str(path), session))


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _events(row: TraceRow, block: EventBlock, names: Any) -> ColumnTable:
    size = len(block)
    return ColumnTable({
        "track": np.full(size, row.track.label, dtype=object),
        "process": np.full(size, row.process),
        "nc": np.full(size, row.nc),
        "start_ns": block.start,
        "duration_ns": block.duration,
        "name": names[block.action],
        "action": block.action,
        "execution": block.execution,
        "status": block.status,
        "value": block.value,
    })  # fmt: skip
