"""Opening captures: the directory of one process, or a directory with several. Damaged parts are omitted and named."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.base.files import open_input
from neurontools.base.json_reader import load_json
from neurontools.base.text import plural
from neurontools.errors import NeuronToolsError
from neurontools.profiler.capture.files import HostEvent
from neurontools.profiler.capture.format import (
    EVENTS_FILE,
    META_FILE,
    MODELS_FILE,
    NAMED_TRACKS,
    RECORD,
    STRINGS_FILE,
    LoadedModel,
    Meta,
    NeffProgram,
    ProfileError,
    Track,
    parse_model,
    program_of_neff,
    read_meta,
    record_dtype,
    require_numpy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.profiler.trace.intervals import Mask, Records

    Programs = Mapping[str, NeffProgram | None]

_CAPTURE = "capture one with `neuron-run --profile DIR -- COMMAND`"
_DEPTH = 2
_SLACK_NS = 60_000_000_000
_BACKWARDS_NS = 1_000_000_000  # threads may store executions in another order, but not by that much
_LONGEST_NS = 1 << 56  # two years: a run that did not end in order
_HASH = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class ProcessCapture:
    """One process's capture.

    Args:
        directory: where it is.
        meta: its description.
        models: by number.
        programs: by hash of the NEFF; None where the NEFF cannot be read.
        records: of `record_dtype()`; mapped where one file holds them.
        strings: the names that records refer to.
        problems: what was left out, one line each.
    """

    directory: str
    meta: Meta
    models: dict[int, LoadedModel]
    programs: dict[str, NeffProgram | None]
    records: Records
    strings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the process ended in order."""
        return self.meta.ended_ns > 0


def open_captures(
    path: str, session: int | None = None, known: Programs | None = None
) -> tuple[ProcessCapture, ...]:
    """Open the captures of one run at or below a directory, or of a file of records, in order of rank and start.

    Args:
        path: the directory.
        session: which run, from 1 for the oldest; None for the newest.
        known: programs by hash of the NEFF that were read before.

    Raises:
        ProfileError: the path does not exist, is not a capture, is damaged, or has fewer runs.
        MissingDependencyError: numpy is not installed.
    """
    require_numpy()
    described, errors = _describe(path)
    sessions = _sessions(described)
    if session is not None and not 1 <= session <= len(sessions):
        raise ProfileError(
            f"{path} has {plural(len(sessions), 'run')}, no run {session}",
            f"give --session a number from 1 to {len(sessions)}",
        )
    number = len(sessions) if session is None else session
    captures = [_open(directory, meta, known or {}) for directory, meta in sessions[number - 1]]
    problems = tuple(error.message for error in errors)
    if session is None and number > 1:
        problems += (f"this is the newest of {number} runs in {path}: --session 1 shows the oldest",)
    captures.sort(key=_order)
    captures[0] = replace(captures[0], problems=(*problems, *captures[0].problems))
    return tuple(captures)


def _describe(path: str) -> tuple[list[tuple[str, Meta]], list[ProfileError]]:
    """Return the captures at or below a directory with their descriptions, and the errors of others."""
    directory = _directory(path)
    directories = sorted(_find(directory, _DEPTH))
    if not directories:
        raise _foreign(directory)
    described: list[tuple[str, Meta]] = []
    errors: list[ProfileError] = []
    for each in directories:
        try:
            described.append((each, read_meta(each)))
        except ProfileError as error:
            errors.append(error)
    if not described:
        raise errors[0]
    return described, errors


def _sessions(captures: list[tuple[str, Meta]]) -> list[list[tuple[str, Meta]]]:
    """Return the captures by run, the oldest first: those of one session, or that ran at the same time."""
    sessions: dict[str, list[tuple[str, Meta]]] = {}
    current, ends_ns = "", 0
    for directory, meta in sorted(captures, key=lambda capture: capture[1].started_unix_ns):
        key = meta.session
        if not key:
            if meta.started_unix_ns > ends_ns:
                current = directory
            lasted_ns = meta.ended_ns - meta.started_ns if meta.ended_ns else 0
            ends_ns = max(ends_ns, meta.started_unix_ns + lasted_ns)
            key = current
        sessions.setdefault(key, []).append((directory, meta))
    return list(sessions.values())


def _order(capture: ProcessCapture) -> tuple[int, int, str]:
    meta = capture.meta
    return -1 if meta.rank is None else meta.rank, meta.started_unix_ns, capture.directory


def _directory(path: str) -> str:
    if os.path.isdir(path):
        return path
    if not os.path.lexists(path):
        raise ProfileError(
            f"no profile at {path}: no such directory",
            f"{_CAPTURE}; a program without a NeuronCore writes none",
        )
    name = os.path.basename(path)
    if name == META_FILE or EVENTS_FILE.fullmatch(name):
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


def _open(directory: str, meta: Meta, known: Programs) -> ProcessCapture:
    names = os.listdir(directory)
    files = sorted((int(match[1]), name) for name in names if (match := EVENTS_FILE.fullmatch(name)))
    records, dropped = _records(directory, files)
    # Models come second: a process that still runs stores a model before its first record.
    models, model_problems = _models(directory, meta)
    strings, string_problems = _strings(directory, meta)
    valid = _valid(records, models, len(strings))
    timely = valid & _within_run(records, meta)
    damaged, untimely = len(records) - int(valid.sum()), int(valid.sum()) - int(timely.sum())
    problems = [
        *((1, problem) for problem in (*model_problems, *string_problems)),
        (
            dropped,
            f"the oldest {plural(dropped, 'record')} dropped over the limit of {meta.max_events_per_nc} a core",
        ),
        (damaged, f"{plural(damaged, 'record')} damaged and left out"),
        (untimely, f"{plural(untimely, 'record')} with times outside of the run and left out"),
    ]
    if not timely.all():
        records = records[timely]
    backwards = _jumps_back(records)
    problems.append(
        (
            backwards,
            f"the clock ran backwards {plural(backwards, 'time')}: events around those times may be out of order",
        )
    )
    if meta.ended_ns:  # a process that was killed may leave half a record
        problems += [
            (1, f"{name} ends within a record, so it is cut: records after that are missing")
            for _, name in files
            if os.path.getsize(os.path.join(directory, name)) % RECORD.size
        ]
    texts = [f"process {meta.pid}: {text}" for count, text in problems if count]
    programs, unreadable = _programs(directory, models, known)
    return ProcessCapture(directory, meta, models, programs, records, strings, (*texts, *unreadable))


def _records(directory: str, files: list[tuple[int, str]]) -> tuple[Records, int]:
    """Return the records of all files, and how many older ones were dropped."""
    np = require_numpy()
    parts = [_map(os.path.join(directory, name)) for _, name in files]
    if len(parts) == 1:
        return parts[0], files[0][0]
    return np.concatenate([np.zeros(0, dtype=record_dtype()), *parts]), files[0][0] if files else 0


def _map(path: str) -> Records:
    """Map the whole records of a file; a partial one at the end, or a tail that never reached the disk, is cut."""
    np = require_numpy()
    try:
        with open_input(path) as file:
            count = os.fstat(file.fileno()).st_size // RECORD.size
            if count == 0:
                return np.zeros(0, dtype=record_dtype())
            records = np.memmap(file, dtype=record_dtype(), mode="r", shape=(count,))
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
    while count and records["start_ns"][count - 1] == 0:
        written = np.flatnonzero(records["start_ns"])
        count = int(written[-1]) + 1 if len(written) else 0
    return records[:count]


def _models(directory: str, meta: Meta) -> tuple[dict[int, LoadedModel], list[str]]:
    """Return the models by number, and the problems of their file."""
    models: dict[int, LoadedModel] = {}
    damaged = 0
    lines, problems = _lines(directory, MODELS_FILE, meta, "executions")
    for line in lines:
        try:
            model = parse_model(line)
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged += 1
        else:
            models[model.model] = model
    return models, _with_damaged(problems, damaged, MODELS_FILE)


def _strings(directory: str, meta: Meta) -> tuple[tuple[str, ...], list[str]]:
    texts: list[str] = []
    damaged = 0
    lines, problems = _lines(directory, STRINGS_FILE, meta, "events of the host and of memory")
    for line in lines:
        try:
            text = load_json(line, any_text=True)
        except ValueError:
            text = None
        damaged += not isinstance(text, str)
        texts.append(text if isinstance(text, str) else "?")
    return tuple(texts), _with_damaged(problems, damaged, STRINGS_FILE)


def _with_damaged(problems: list[str], damaged: int, name: str) -> list[str]:
    return [*problems, f"{plural(damaged, 'line')} of {name} damaged"] if damaged else problems


def _lines(directory: str, name: str, meta: Meta, needed_for: str) -> tuple[list[bytes], list[str]]:
    """Return the whole lines of a file, and its problems."""
    try:
        with open_input(os.path.join(directory, name)) as file:
            *lines, rest = file.read().split(b"\n")
    except OSError as error:
        return [], [f"cannot read {name}: {error.strerror}; {needed_for} are missing"]
    # A process that was killed may leave half a line.
    if rest and meta.ended_ns:
        return lines, [f"{name} ends within a line, so it is cut: {needed_for} may be missing"]
    return lines, []


def _valid(records: Records, models: dict[int, LoadedModel], strings: int) -> Mask:
    """Return which records have a known track and point to what exists: everything above may index without looking."""
    np = require_numpy()
    track = records["track"]
    of_model = (track == Track.RUNTIME) | (track == Track.MODEL)
    has_model = np.isin(records["link"], np.fromiter(models, dtype=np.uint32, count=len(models)))
    named = np.isin(track, list(NAMED_TRACKS))
    texts = (records["name"] < strings) & (records["link"] < strings) & (records["status"] < len(HostEvent))
    valid: Mask = (of_model & has_model) | (named & texts)
    return valid


def _within_run(records: Records, meta: Meta) -> Mask:
    """Return which records have times that the run can have, with a minute of slack."""
    np = require_numpy()
    if len(records) == 0:
        return np.zeros(0, dtype=bool)
    start, duration = records["start_ns"], records["duration_ns"]
    earliest = max(meta.started_ns - _SLACK_NS, 1)
    latest = meta.ended_ns + _SLACK_NS if meta.ended_ns else earliest + _LONGEST_NS
    # The sum of start and a huge duration would overflow.
    return (start >= earliest) & (start <= latest) & (duration >= 0) & (duration <= latest - start)


def _jumps_back(records: Records) -> int:
    """Return how often an execution begins long before the previous one of its core."""
    np = require_numpy()
    runs = records[records["track"] == Track.MODEL]
    cores = (runs["start_ns"][runs["nc"] == nc] for nc in np.unique(runs["nc"]))
    return sum(int((np.diff(start) < -_BACKWARDS_NS).sum()) for start in cores)


def _programs(
    directory: str, models: dict[int, LoadedModel], known: Programs
) -> tuple[dict[str, NeffProgram | None], list[str]]:
    """Return the programs of all models, and the problems of unreadable NEFFs."""
    programs: dict[str, NeffProgram | None] = {}
    problems = []
    for neff_hash in dict.fromkeys(model.neff_hash for model in models.values()):
        if known.get(neff_hash) is not None:
            programs[neff_hash] = known[neff_hash]
            continue
        path = os.path.join(directory, f"neff_{neff_hash}.neff")
        programs[neff_hash] = None
        try:
            if not _HASH.fullmatch(neff_hash):
                raise ProfileError(f"{neff_hash} is not the hash of a NEFF")
            with open_input(path) as file:
                programs[neff_hash] = program_of_neff(file.read())
        except OSError as error:
            problems.append(f"no device records of NEFF {neff_hash}: cannot read {path}: {error.strerror}")
        except NeuronToolsError as error:
            problems.append(f"no device records of NEFF {neff_hash}: {error.message}")
    return programs, problems
