"""A profile for Python programs and notebooks: its numbers as tables of numpy columns."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.profiler.analysis.host import Gap, find_gaps
from neurontools.profiler.analysis.operators import By, GroupTotal, group_totals
from neurontools.profiler.analysis.roofline import RooflinePoint, roofline
from neurontools.profiler.analysis.steps import TrainingStep, column_of, find_steps, of_steps
from neurontools.profiler.analysis.summary import report, to_json
from neurontools.profiler.capture.format import Track
from neurontools.profiler.query.sql import ColumnTable, SqlSession, table_of
from neurontools.profiler.trace.open import open_trace
from neurontools.profiler.trace.selection import Selection, select

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceRow


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
