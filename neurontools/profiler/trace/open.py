"""Open a profile: captures become a trace, with rows on one axis and executions placed on the device's clock.

Traces of other programs open here too; only for those are the modules of `exchange/` imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.files import packing_of, read_input
from neurontools.base.garbage import without_collection
from neurontools.profiler.capture.files import HostEvent
from neurontools.profiler.capture.format import (
    META_FILE,
    NC_EXEC_RUNNING,
    NO_CORE,
    NRT_EXECUTE,
    NRT_LOAD,
    SAMPLED_TRACKS,
    SYSTEM_EVENTS,
    TRACK_OF_LABEL,
    ProfileError,
    Track,
)
from neurontools.profiler.capture.settings import DeviceProfile
from neurontools.profiler.trace.periodic import Executions, PeriodicEvents, Template
from neurontools.profiler.trace.reader import open_captures
from neurontools.profiler.trace.rows import EventBlock, FlatEvents
from neurontools.profiler.trace.trace import CoreRuns, Trace, TraceAction, TraceRow, numbered
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import LoadedModel, Meta, NeffProgram
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask, Records
    from neurontools.profiler.trace.reader import ProcessCapture
    from neurontools.profiler.trace.rows import RowEvents

_COMPLETED = (
    NrtStatus.NRT_SUCCESS,
    NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR,
    NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR,
)
"""With these the device did run."""
_SNIFFED_BYTES = 64


def open_trace(path: str, session: int | None = None) -> Trace:
    """Open a profile, or a trace of another program: a Chrome trace file, a directory of Parquet tables.

    Args:
        path: the directory of captures, or a file.
        session: which run, as in `load`.

    Raises:
        ProfileError: nothing there that can be read.
    """
    if _is_json(path):
        from neurontools.profiler.exchange.foreign import open_chrome

        return open_chrome(path)
    if _has_tables(path):
        from neurontools.profiler.exchange.foreign import open_tables

        return open_tables(path)
    return load(path, session)


def _is_json(path: str) -> bool:
    if os.path.isdir(path) or not os.path.lexists(path) or os.path.basename(path) == META_FILE:
        return False
    first = read_input(path, ProfileError, "check the file", _SNIFFED_BYTES)
    packing = packing_of(first)
    if packing is not None and packing[0] != "gzip":
        raise ProfileError(
            f"{path} is packed with {packing[0]}, which is not read here",
            f"unpack it with {packing[1]}, and open the trace in it; gzip is read as it is",
        )
    is_named = path.endswith((".json", ".json.gz"))
    is_packed = first.startswith(b"\x1f\x8b")
    return is_named or is_packed or first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}


def _has_tables(path: str) -> bool:
    """Return whether a directory has Parquet tables and no capture of ours."""
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, META_FILE)):
        return False
    return any(name.endswith(".parquet") for name in os.listdir(path))


def load(path: str, session: int | None = None) -> Trace:
    """Open the captures of one run at or below a directory as one trace. Arguments and errors are `open_captures`'."""
    with without_collection():
        return merge(open_captures(path, session))


def merge(captures: tuple[ProcessCapture, ...]) -> Trace:
    """Put captures on one axis: the monotonic clock where they share a boot, else unix time."""
    tables = _Tables()
    offsets = [_offset(capture.meta, captures[0].meta) for capture in captures]
    starts = [
        int(capture.records["start_ns"].min()) + offset
        for capture, offset in zip(captures, offsets, strict=True)
        if len(capture.records)
    ]
    origin = min(starts, default=0)
    builders = [
        _ProcessRows(process, capture, offset - origin, tables)
        for process, (capture, offset) in enumerate(zip(captures, offsets, strict=True))
    ]
    rows = [row for builder in builders for row in builder.rows()]
    first = captures[0].meta
    return Trace(
        processes=tuple(capture.meta for capture in captures),
        rows=numbered(rows),
        models=tuple(tables.models),
        actions=tuple(tables.actions),
        runs=tuple(runs for builder in builders for runs in builder.runs),
        programs={name: program for capture in captures for name, program in capture.programs.items()},
        origin_unix_ns=origin + first.started_unix_ns - first.started_ns,
        problems=tuple(problem for capture in captures for problem in capture.problems),
        directories=tuple(capture.directory for capture in captures),
    )


def _offset(meta: Meta, first: Meta) -> int:
    """Return what to add to the times of a process."""
    if meta.boot_id and meta.boot_id == first.boot_id:
        return 0
    return (meta.started_unix_ns - meta.started_ns) - (first.started_unix_ns - first.started_ns)


class _Tables:
    """Numbers for actions and models over all captures; a program that several processes share appears once."""

    def __init__(self) -> None:
        self.actions: list[TraceAction] = [
            TraceAction(name, "", Track.HARDWARE if name.startswith("nc_") else Track.RUNTIME)
            for name in SYSTEM_EVENTS
        ]
        self.models: list[LoadedModel] = []
        self._programs: dict[str, dict[Track, Template]] = {}
        self._hosts: dict[tuple[str, HostEvent, str], int] = {}

    def model(self, model: LoadedModel) -> tuple[int, int]:
        """Return the numbers of a model and of the action that is its execution."""
        self.models.append(model)
        self.actions.append(TraceAction(model.name, "MODEL", Track.MODEL))
        return len(self.models) - 1, len(self.actions) - 1

    def program(self, program: NeffProgram) -> dict[Track, Template]:
        """Return what a program does on each row."""
        templates = self._programs.get(program.neff_hash)
        if templates is None:
            templates = self._programs[program.neff_hash] = self._templates(program)
        return templates

    def host(self, name: str, kind: HostEvent, source: str, track: Track) -> int:
        """Return the number of the action that is an event of the host; its opcode is the name of its kind."""
        key = name, kind, source
        if key not in self._hosts:
            self._hosts[key] = len(self.actions)
            line, *stack = source.split("\n")
            self.actions.append(TraceAction(name, kind.name, track, source=line, stack=tuple(stack)))
        return self._hosts[key]

    def _templates(self, program: NeffProgram) -> dict[Track, Template]:
        base = len(self.actions)
        tracks = [TRACK_OF_LABEL[operation.engine] for operation in program.operations]
        self.actions += [
            TraceAction(
                operation.name,
                operation.opcode,
                track,
                operation.flops,
                operation.read_bytes,
                operation.write_bytes,
                operation.shape,
                operation.source,
                operation.busy_ns,
                operation.count,
                operation.layer,
                place,
            )
            for place, (operation, track) in enumerate(zip(program.operations, tracks, strict=True))
        ]
        start, duration = (
            np.fromiter(map(attrgetter(name), program.operations), np.int64, len(tracks))
            for name in ("start_ns", "duration_ns")
        )
        track_of, templates = np.array(tracks), {}
        for track in sorted(set(tracks)):
            own = np.flatnonzero(track_of == track)
            own = own[np.argsort(start[own], kind="stable")]
            action = (own + base).astype(np.uint32)
            templates[track] = Template(start[own], duration[own], action, None)
        return templates


class _ProcessRows:
    """The rows of one capture.

    Args:
        process: its number.
        capture: what was recorded.
        shift: what to add to its times.
        tables: of the trace.
    """

    def __init__(self, process: int, capture: ProcessCapture, shift: int, tables: _Tables) -> None:
        self._process = process
        self._capture = capture
        self._shift = shift
        self._tables = tables
        size = max(capture.models, default=-1) + 1
        self._model: Codes = np.zeros(size, dtype=np.uint32)
        self._model_action: Codes = np.zeros(size, dtype=np.uint32)
        for number, model in capture.models.items():
            self._model[number], self._model_action[number] = tables.model(model)
        self.runs: list[CoreRuns] = []

    def rows(self) -> list[TraceRow]:
        """Return the rows: the host's, then those of each core."""
        records = self._capture.records
        of_process = (Track.HOST, *sorted(SAMPLED_TRACKS))
        rows = [row for track in of_process for row in self._named(records[records["track"] == track], track)]
        for nc in np.unique(records["nc"]).tolist():
            own = records[records["nc"] == nc]
            runs = own[own["track"] == Track.MODEL]
            runs = runs[np.argsort(runs["start_ns"], kind="stable")]
            rows += self._measured(nc, runs, own[own["track"] == Track.RUNTIME])
            if len(runs):
                self.runs.append(self._core_runs(nc, runs))
                rows += self._modelled(self.runs[-1])
            rows += self._named(own[own["track"] == Track.MEMORY], Track.MEMORY)
        return rows

    def _row(self, nc: int, track: Track, events: RowEvents) -> TraceRow:
        meta = self._capture.meta
        return TraceRow(self._process, meta.pid, nc, self._core(nc), track, 0, 0, events, meta.rank)

    def _core(self, nc: int) -> int:
        """Return the number in the machine of a core of the process."""
        cores = self._capture.meta.cores
        return cores[nc] if nc < len(cores) else nc

    def _measured(self, nc: int, runs: Records, loads: Records) -> list[TraceRow]:
        """Return the rows on the wall clock of a core."""
        rows = []
        names = self._capture.meta.system_events
        software = [loads] if SYSTEM_EVENTS[NRT_LOAD] in names else []
        software += [runs] if SYSTEM_EVENTS[NRT_EXECUTE] in names else []
        hardware = [runs] if SYSTEM_EVENTS[NC_EXEC_RUNNING] in names else []
        for track, parts, action in (
            (Track.RUNTIME, software, NRT_EXECUTE),
            (Track.HARDWARE, hardware, NC_EXEC_RUNNING),
        ):
            chosen = np.concatenate(parts) if parts else runs[:0]
            if len(chosen):
                rows.append(self._row(nc, track, self._system(chosen, action)))
        return rows

    def _system(self, records: Records, action: int) -> FlatEvents:
        records = records[np.argsort(records["start_ns"], kind="stable")]
        load = records["track"] == Track.RUNTIME
        return self._flat(
            records,
            action=np.where(load, NRT_LOAD, action).astype(np.uint32),
            model=self._model[records["link"]],
        )

    def _flat(self, records: Records, *, action: Codes, model: Codes) -> FlatEvents:
        return FlatEvents(
            EventBlock(
                start=records["start_ns"] + self._shift,
                duration=records["duration_ns"].astype(np.int64),
                action=action,
                model=model,
                execution=records["execution"].astype(np.uint32),
                status=records["status"].astype(np.uint32),
                value=records["value"].astype(np.int64),
            )
        )

    def _named(self, records: Records, track: Track) -> list[TraceRow]:
        """Return the row of events that carry their names."""
        if len(records) == 0:
            return []
        records = records[np.argsort(records["start_ns"], kind="stable")]
        texts = self._capture.strings
        columns = np.stack(
            [records[column].astype(np.int64) for column in ("name", "link", "status")], axis=1
        )
        origins, origin = np.unique(columns, axis=0, return_inverse=True)
        actions = [
            self._tables.host(texts[name], HostEvent(kind), texts[link], track)
            for name, link, kind in origins.tolist()
        ]
        events = self._flat(
            records,
            action=np.array(actions, dtype=np.uint32)[origin.reshape(-1)],
            model=np.zeros(len(records), dtype=np.uint32),
        )
        return [self._row(int(records["nc"][0]) if track is Track.MEMORY else NO_CORE, track, events)]

    def _core_runs(self, nc: int, runs: Records) -> CoreRuns:
        device_ns = self._device_ns(runs)
        modelled = self._has_device_records(runs)
        start: Int64s = np.full(len(runs), -1, dtype=np.int64)
        start[modelled] = _placed(runs["start_ns"][modelled] + self._shift, device_ns[modelled])
        return CoreRuns(
            process=self._process,
            nc=nc,
            core=self._core(nc),
            rank=self._capture.meta.rank,
            wall_start=runs["start_ns"] + self._shift,
            wall_ns=runs["duration_ns"].astype(np.int64),
            device_start=start,
            device_ns=np.where(modelled, device_ns, 0),
            model=self._model[runs["link"]],
            number=runs["execution"].astype(np.uint32),
            status=runs["status"].astype(np.uint32),
        )

    def _device_ns(self, runs: Records) -> Int64s:
        """Return the modelled time of executions."""
        totals: Int64s = np.zeros(len(self._model), dtype=np.int64)
        for number, model in self._capture.models.items():
            program = self._capture.programs[model.neff_hash]
            totals[number] = program.total_ns if program else 0
        return totals[runs["link"]]

    def _has_device_records(self, runs: Records) -> Mask:
        """Return which executions have modelled records: those that ran, of readable NEFFs, as the settings say."""
        models = self._capture.models
        readable: Mask = np.zeros(len(self._model), dtype=bool)
        for number, model in models.items():
            readable[number] = self._capture.programs[model.neff_hash] is not None
        ran = readable[runs["link"]] & np.isin(runs["status"], _COMPLETED)
        match self._capture.meta.device_profile:
            case DeviceProfile.OFF:
                return np.zeros(len(runs), dtype=bool)
            case DeviceProfile.MODEL:
                hashes = {number: model.neff_hash for number, model in models.items()}
                neffs = np.array([hashes[link] for link in runs["link"].tolist()])
                first: Mask = np.zeros(len(runs), dtype=bool)
                at = np.flatnonzero(ran)
                first[at[np.unique(neffs[at], return_index=True)[1]]] = True
                return first
            case _:
                return ran

    def _modelled(self, runs: CoreRuns) -> list[TraceRow]:
        """Return the rows on the device's clock of a core."""
        runs = runs.take(runs.device_start >= 0)
        if len(runs.number) == 0:
            return []
        executions = Executions(runs.device_start, runs.model, runs.number, runs.status)
        models, template = np.unique(runs.model, return_inverse=True)
        return [
            self._row(runs.nc, Track.MODEL, self._whole(runs)),
            *self._engines(runs.nc, executions, models, template),
        ]

    def _whole(self, runs: CoreRuns) -> FlatEvents:
        """Return the row with one event an execution."""
        action: Codes = np.zeros(len(self._tables.models), dtype=np.uint32)
        numbers = list(self._capture.models)
        action[self._model[numbers]] = self._model_action[numbers]
        return FlatEvents(
            EventBlock(
                runs.device_start,
                runs.device_ns,
                action[runs.model],
                runs.model,
                runs.number,
                runs.status,
                np.zeros(len(runs.number), dtype=np.int64),
            )
        )

    def _engines(self, nc: int, executions: Executions, models: Codes, template: Int64s) -> list[TraceRow]:
        programs = []
        for number in models.tolist():
            program = self._capture.programs[self._tables.models[number].neff_hash]
            assert program is not None
            templates = self._tables.program(program)
            programs.append({track: replace(each, key=number) for track, each in templates.items()})
        nothing: Int64s = np.zeros(0, dtype=np.int64)
        empty = Template(nothing, nothing, nothing.astype(np.uint32), None)
        rows = []
        for track in sorted({track for program in programs for track in program}):
            events = PeriodicEvents(executions, template, [program.get(track, empty) for program in programs])
            rows.append(self._row(nc, track, events))
        return rows


def _placed(start: Int64s, duration: Int64s) -> Int64s:
    """Return where executions begin on the device: at their wall start, or when the one before has ended."""
    if len(start) == 0:
        return start
    before = np.cumsum(duration) - duration
    return np.maximum.accumulate(start - before) + before
