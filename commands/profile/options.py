"""What every verb of neuron-profile that reads a profile takes: the directory and the part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands.parsing import add_verb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.trace.trace import Trace

DEFAULT_DIRECTORY = "./output"


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
    add("--skip-warmup", action="store_true", help="skip loads and first executions")
    return parser


def load_trace(arguments: argparse.Namespace) -> Trace:
    """Open the profile that the arguments name, and choose the part of it.

    Raises:
        UsageError: several profiles, or an invalid filter.
        ProfileError: no profile there, or nothing left of it.
    """
    from neurontools.base.units import parse_duration_ns
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    from neurontools.profiler.capture.settings import parse_numbers
    from neurontools.profiler.exchange.foreign import open_trace
    from neurontools.profiler.trace.selection import Selection, select

    path = profile_path(arguments)
    wanted = Selection(
        ncs=parse_numbers(arguments.nc, "--nc") if arguments.nc else None,
        from_ns=parse_duration_ns(arguments.from_time, needs_unit=True) if arguments.from_time else None,
        to_ns=parse_duration_ns(arguments.to_time, needs_unit=True) if arguments.to_time else None,
        skip_warmup=arguments.skip_warmup,
        neff=arguments.neff_path,
    )
    return select(open_trace(path, arguments.session), wanted)


def profile_path(arguments: argparse.Namespace) -> str:
    """Return the path of the profile that the arguments name.

    Raises:
        UsageError: they name several.
    """
    from neurontools.errors import UsageError

    given = [path for path in (arguments.directory, arguments.session_dir, arguments.session_file) if path]
    if len(given) > 1:
        raise UsageError(f"several profiles given: {', '.join(given)}", "give one of DIR, -d and -s")
    return str(given[0]) if given else DEFAULT_DIRECTORY
