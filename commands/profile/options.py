"""What every verb of neuron-profile that reads a profile takes: the directory and the part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.capture.format import Track
    from neurontools.profiler.trace.selection import Selection
    from neurontools.profiler.trace.trace import Trace

DEFAULT_DIRECTORY = "./output"
_MOST_WARNINGS = 3


def add_reading_verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add a verb that reads a profile."""
    parser = add_verb(verbs, name, purpose, run)
    add = parser.add_argument
    add(
        "directory",
        nargs="?",
        metavar="DIR",
        help=f"profile, or a Chrome trace of another program (default: {DEFAULT_DIRECTORY})",
    )
    add("-d", "--session-dir", metavar="DIR", help="same as DIR")
    add("-s", "--session-file", metavar="FILE", help="one process's directory or a file of its records")
    add("--session", type=int, metavar="N", help="which run of DIR, 1 is the oldest (default: the newest)")
    add("-n", "--neff-path", metavar="NEFF", help="only models loaded from this NEFF")
    add("--nc", metavar="LIST", help="only these NeuronCores of each process: 0,2,4-7")
    add("--from", dest="from_time", metavar="TIME", help="start of the time range, e.g. 1.5ms")
    add("--to", dest="to_time", metavar="TIME", help="end of the time range, e.g. 20ms")
    add("--steps", metavar="RANGE", help="only these steps of each process, e.g. 5 or 3-7")
    add(
        "--engine",
        metavar="LIST",
        help="only these engines: tensor, vector, scalar, gpsimd, sync, dma, cc-cores",
    )
    add("--skip-warmup", action="store_true", help="skip loads and first executions")
    return parser


def add_number_output(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--csv` to a verb that prints rows of numbers."""
    add_json(parser, "print JSON (base units)")
    parser.add_argument("--csv", action="store_true", help="print CSV (base units)")


def print_numbers(
    arguments: argparse.Namespace, text: str, rows: Sequence[dict[str, Any]], document: Any = None
) -> None:
    """Print numbers as text, as CSV, or as JSON.

    Args:
        arguments: of the command line.
        text: for people.
        rows: for CSV, all with the same keys.
        document: for JSON; None for the rows.
    """
    if arguments.json and arguments.csv:
        raise UsageError("--json and --csv exclude each other", "give one of them")
    if arguments.json:
        console.print_json(rows if document is None else document)
    elif arguments.csv:
        console.out(csv_text(rows))
    else:
        console.out(text)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    from dataclasses import asdict

    return asdict(value)


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV with a head; "" without rows."""
    import csv
    import io

    written = io.StringIO()
    if rows:
        writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return written.getvalue().rstrip("\n")


def open_profile(path: str) -> Trace:
    """Open the newest run of a profile, all of it.

    Raises:
        ProfileError: no profile there.
    """
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    from neurontools.profiler.trace.open import open_trace

    return open_trace(path)


def load_trace(
    arguments: argparse.Namespace, *, shows_problems: bool = False, further: Mapping[str, Any] | None = None
) -> Trace:
    """Open the profile that the arguments name, and choose the part of it; warn of damage.

    Args:
        arguments: of the command line.
        shows_problems: whether the output itself says what is wrong with the files.
        further: fields of `Selection` that only this verb has.

    Raises:
        UsageError: several profiles, or an invalid filter.
        ProfileError: no profile there, or nothing left of it.
    """
    from dataclasses import replace

    from neurontools.base.units import parse_duration_ns
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    path = profile_path(arguments)
    wanted = replace(
        _part(arguments),
        from_ns=parse_duration_ns(arguments.from_time, needs_unit=True) if arguments.from_time else None,
        to_ns=parse_duration_ns(arguments.to_time, needs_unit=True) if arguments.to_time else None,
        neff=arguments.neff_path,
        **(further or {}),
    )
    return _open(arguments, path, arguments.session, wanted, shows_problems=shows_problems)


def load_baseline(arguments: argparse.Namespace, path: str) -> Trace:
    """Open the newest run of another profile, and choose the same cores, engines and steps of it.

    Args:
        arguments: of the command line.
        path: of the profile.

    Raises:
        UsageError: an invalid filter.
        ProfileError: no profile there, or nothing left of it.
    """
    return _open(arguments, path, None, _part(arguments), shows_problems=True)


def _part(arguments: argparse.Namespace) -> Selection:
    """Return what the arguments choose of any profile of a program."""
    from neurontools.profiler.capture.settings import parse_numbers
    from neurontools.profiler.trace.selection import Selection

    return Selection(
        ncs=parse_numbers(arguments.nc, "--nc") if arguments.nc else None,
        skip_warmup=arguments.skip_warmup,
        engines=_engines(arguments.engine) if arguments.engine else None,
    )


def _open(
    arguments: argparse.Namespace, path: str, session: int | None, wanted: Selection, *, shows_problems: bool
) -> Trace:
    from neurontools.profiler.analysis.steps import of_steps
    from neurontools.profiler.capture.settings import parse_steps
    from neurontools.profiler.trace.open import open_trace
    from neurontools.profiler.trace.selection import select

    steps = parse_steps(arguments.steps, "--steps") if arguments.steps else None
    trace = open_trace(path, session)
    if not shows_problems:
        for problem in trace.problems[:_MOST_WARNINGS]:
            console.warn(problem)
        if len(trace.problems) > _MOST_WARNINGS:
            console.warn(f"{len(trace.problems) - _MOST_WARNINGS} more: neuron-profile summary lists them")
    return select(trace if steps is None else of_steps(trace, *steps), wanted)


def _engines(text: str) -> frozenset[Track]:
    from neurontools.base.text import did_you_mean
    from neurontools.profiler.capture.format import DEVICE_TRACKS

    tracks = {track.label.lower(): track for track in DEVICE_TRACKS}
    tracks["cc"] = tracks["cc-cores"]
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in tracks:
            raise UsageError(f"unknown engine {name!r}", did_you_mean(name, tracks))
    return frozenset(tracks[name] for name in names)


def profile_path(arguments: argparse.Namespace) -> str:
    """Return the path of the profile that the arguments name.

    Raises:
        UsageError: they name several.
    """
    given = [path for path in (arguments.directory, arguments.session_dir, arguments.session_file) if path]
    if len(given) > 1:
        raise UsageError(f"several profiles given: {', '.join(given)}", "give one of DIR, -d and -s")
    return str(given[0]) if given else DEFAULT_DIRECTORY
