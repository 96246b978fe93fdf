"""Opening captures: the directory of one process, or a directory with several."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.profiler.capture.format import (
    EVENTS_FILE,
    META_FILE,
    RECORD,
    SYSTEM_EVENTS,
    LoadedModel,
    Meta,
    NeffProgram,
    ProfileError,
    Track,
    read_meta,
    read_models,
    record_dtype,
    require_numpy,
)

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Records

_CAPTURE = "capture one with `neuron-run --profile DIR -- COMMAND`"
_DEPTH = 2


@dataclass(frozen=True, slots=True)
class ProcessCapture:
    """One process's capture. `events` is the mapped file; `complete` is False when the process was killed."""

    directory: str
    meta: Meta
    programs: dict[str, NeffProgram]
    models: tuple[LoadedModel, ...]
    events: Records

    @property
    def complete(self) -> bool:
        """Whether the process ended in order."""
        return self.meta.ended_ns > 0


def open_captures(path: str) -> tuple[ProcessCapture, ...]:
    """Open every capture at or below a directory, or that of an events.bin, in order of rank and start.

    Raises:
        ProfileError: the path does not exist, is not a capture, or is damaged.
        MissingDependencyError: numpy is not installed.
    """
    require_numpy()
    directory = _directory(path)
    found = sorted(_find(directory, _DEPTH))
    if not found:
        raise _foreign(directory)
    captures = [_open(path) for path in found]
    return tuple(sorted(captures, key=_order))


def _order(capture: ProcessCapture) -> tuple[int, int, str]:
    meta = capture.meta
    return -1 if meta.rank is None else meta.rank, meta.started_unix_ns, capture.directory


def _directory(path: str) -> str:
    if os.path.isdir(path):
        return path
    if not os.path.lexists(path):
        raise ProfileError(f"no profile at {path}: no such directory", _CAPTURE)
    if os.path.basename(path) in {EVENTS_FILE, META_FILE}:
        return os.path.dirname(path) or "."
    if path.endswith(".ntff"):
        raise _real_ntff(path)
    raise ProfileError(f"{path} is a file, not the directory of a profile", _CAPTURE)


def _find(directory: str, depth: int) -> list[str]:
    """Return the directories with a meta.json, the nearest ones on each way down."""
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError as error:
        if depth < _DEPTH:
            return []
        raise ProfileError(f"cannot read {directory}: {error.strerror}", "check its permissions") from error
    if any(entry.name == META_FILE for entry in listed):
        return [directory]
    if depth == 0:
        return []
    below = [entry.path for entry in listed if entry.is_dir(follow_symlinks=False)]
    return [found for path in below for found in _find(path, depth - 1)]


def _foreign(directory: str) -> ProfileError:
    names = sorted(os.listdir(directory))
    real = next((name for name in names if name.endswith((".ntff", ".pb"))), None)
    if real:
        return _real_ntff(os.path.join(directory, real))
    if not names:
        return ProfileError(f"{directory} is empty: the run used no NeuronCore or was not profiled", _CAPTURE)
    return ProfileError(f"{directory} is not a profile: it has no {META_FILE}", _CAPTURE)


def _real_ntff(path: str) -> ProfileError:
    return ProfileError(
        f"{path} is a trace of real Neuron hardware, which this viewer does not read",
        "open it with the vendor's neuron-explorer; here only captures of the simulated device open",
    )


def _open(directory: str) -> ProcessCapture:
    meta = read_meta(directory)
    events = _map(os.path.join(directory, EVENTS_FILE))
    # Models come second: a process that still runs stores a model before its first event.
    programs, models = read_models(directory)
    _check(directory, events, programs, models)
    return ProcessCapture(directory, meta, programs, models, events)


def _map(path: str) -> Records:
    """Map the whole records of a file; a partial one at the end, or a tail that never reached the disk, is cut."""
    np = require_numpy()
    try:
        count = os.path.getsize(path) // RECORD.size
        if count == 0:
            return np.zeros(0, dtype=record_dtype())
        events = np.memmap(path, dtype=record_dtype(), mode="r", shape=(count,))
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
    while count and events["start_ns"][count - 1] == 0:
        written = np.flatnonzero(events["start_ns"])
        count = int(written[-1]) + 1 if len(written) else 0
    return events[:count]


def _check(
    directory: str, events: Records, programs: dict[str, NeffProgram], models: tuple[LoadedModel, ...]
) -> None:
    """Refuse records that point nowhere: everything above may index without looking."""
    np = require_numpy()
    sizes = np.array([len(programs[model.neff_hash].operations) for model in models], dtype=np.int64)
    bad = (events["model"] >= len(models)) | (events["track"] > max(Track))
    bad |= (events["start_ns"] <= 0) | (events["duration_ns"] < 0)
    if not bad.any() and len(events):
        limit = np.where(events["track"] < Track.MODEL, len(SYSTEM_EVENTS), sizes[events["model"]])
        bad = (events["operation"] >= limit) & (events["track"] != Track.MODEL)
    if bad.any():
        number = int(np.argmax(bad))
        raise ProfileError(
            f"{os.path.join(directory, EVENTS_FILE)} is damaged: record {number} of {len(events)} is invalid",
            "capture the run again",
        )
