"""neuron-profile: look at captured profiles in the terminal, as tables, and as files of other programs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console, profile_what_if
from neurontools.commands.parsing import add_json, add_limit, add_old_spelling, add_verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.trace import Trace

DEFAULT_DIRECTORY = "./output"
FORMATS = ("summary-text", "summary-json", "json", "chrome", "perfetto")
_REMOVED = {"db": "there is no database", "parquet": "Parquet is not supported"}
_NOTICE_S = 2.0
_VIEWERS = {
    "json": "one JSON document: events, summary, metadata",
    "chrome": "open it in chrome://tracing or ui.perfetto.dev",
    "perfetto": "open it in ui.perfetto.dev",
}
_TOP_OPERATORS = 20

EXAMPLES = """examples:
  neuron-run --profile prof -- python train.py       capture
  neuron-profile view prof                           timeline on a terminal, summary in a pipe
  neuron-profile summary prof --json --nc 0          numbers for programs
  neuron-profile top prof --limit 20 --skip-warmup        operators by modelled time
  neuron-profile view prof --output-format perfetto --output-file run.pftrace
  neuron-profile inspect -o out python train.py      as neuron-run --profile
  neuron-profile what-if prof --dtype bf16 --batch 8=16
  neuron-profile what-if model.neff --instance trn1.32xlarge,trn2.48xlarge --prices prices.yaml

exit codes: 0 success, 1 no profile there, or the file is not writable, 2 usage error, 130 interrupted; inspect: the
exit code of the program
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-profile",
        description="View profiles of runs on the simulated device. Wall times are measured, device times modelled.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    purpose = "show the timeline on a terminal, print a summary, or write a trace file"
    view = _verb(verbs, "view", purpose, _view)
    view.add_argument(
        "--output-format", choices=(*FORMATS, *_REMOVED), metavar="FORMAT", help=", ".join(FORMATS)
    )
    view.add_argument(
        "--output-file",
        metavar="FILE",
        help="file to write (default: ntff.json, ntff.trace.json or ntff.pftrace)",
    )
    summary = _verb(verbs, "summary", "print a summary of the profile", _summary)
    add_json(summary, "print JSON (base units)")
    top = _verb(verbs, "top", "print the operators that take the most device time", _top)
    limit = add_limit(
        top, "number of operators (default: 20)", short=False
    )  # -n is the NEFF, as in the real tool
    add_old_spelling(top, limit, "-k")
    add_json(top, "print JSON (base units)")
    profile_what_if.add(verbs)
    purpose = "run a program with profiling, like neuron-run --profile"
    inspect = add_verb(verbs, "inspect", purpose, _inspect)
    inspect.add_argument(
        "-o",
        "--output-dir",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="directory for the profile (default: %(default)s)",
    )
    inspect.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG ...]")
    return parser


def _verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, purpose, run)
    add = parser.add_argument
    add("directory", nargs="?", metavar="DIR", help=f"profile (default: {DEFAULT_DIRECTORY})")
    add("-d", "--session-dir", metavar="DIR", help="same as DIR")
    add("-s", "--session-file", metavar="FILE", help="one process's directory or its events.bin")
    add("-n", "--neff-path", metavar="NEFF", help="only models loaded from this NEFF")
    add("--nc", metavar="LIST", help="only these NeuronCores of each process: 0,2,4-7")
    add("--from", dest="from_time", metavar="TIME", help="start of the time range, e.g. 1.5ms")
    add("--to", dest="to_time", metavar="TIME", help="end of the time range, e.g. 20ms")
    add("--skip-warmup", action="store_true", help="skip loads and first executions")
    return parser


def _load(arguments: argparse.Namespace) -> Trace:
    from neurontools.base.units import parse_duration_ns
    from neurontools.errors import UsageError
    from neurontools.profiler.capture_format import require_numpy

    require_numpy()
    from neurontools.profiler.settings import parse_numbers
    from neurontools.profiler.trace import Selection, load, select

    given = [path for path in (arguments.directory, arguments.session_dir, arguments.session_file) if path]
    if len(given) > 1:
        raise UsageError(f"several profiles given: {', '.join(given)}", "give one of DIR, -d and -s")
    wanted = Selection(
        ncs=parse_numbers(arguments.nc, "--nc") if arguments.nc else None,
        from_ns=parse_duration_ns(arguments.from_time, needs_unit=True) if arguments.from_time else None,
        to_ns=parse_duration_ns(arguments.to_time, needs_unit=True) if arguments.to_time else None,
        skip_warmup=arguments.skip_warmup,
        neff=arguments.neff_path,
    )
    return select(load(given[0] if given else DEFAULT_DIRECTORY), wanted)


def _view(arguments: argparse.Namespace) -> int:
    from neurontools.errors import UsageError

    form = arguments.output_format
    if form in _REMOVED:
        raise UsageError(f"--output-format {form}: {_REMOVED[form]}", f"use one of {', '.join(FORMATS)}")
    trace = _load(arguments)
    if form is None and not arguments.output_file and sys.stdout.isatty() and sys.stdin.isatty():
        return _terminal(trace)
    if form in {"json", "chrome", "perfetto"}:
        return _export(trace, form, arguments.output_file)
    return _print_summary(trace, as_json=form == "summary-json", path=arguments.output_file)


def _terminal(trace: Trace) -> int:
    from neurontools.errors import NeuronToolsError

    if trace.event_count == 0:
        raise NeuronToolsError(
            "the profile has no events: the program executed nothing on a NeuronCore",
            "capture a run that uses the device",
        )
    from neurontools.tui.profile.app import ProfileApp

    code = ProfileApp(trace).run()
    return 0 if code is None else code


def _summary(arguments: argparse.Namespace) -> int:
    return _print_summary(_load(arguments), as_json=arguments.json, path=None)


def _print_summary(trace: Trace, *, as_json: bool, path: str | None) -> int:
    from neurontools.profiler.summary_text import report, to_json, to_text

    text = json.dumps(to_json(report(trace, None)), indent=2) if as_json else to_text(report(trace))
    if path is None:
        console.out(text)
        return 0
    from neurontools.profiler.export import write_text

    write_text(path, text + "\n")
    console.err(_written(path))
    return 0


def _top(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from neurontools.errors import NeuronToolsError
    from neurontools.profiler.summary import top_operators
    from neurontools.profiler.summary_text import operators_text

    operators = top_operators(_load(arguments), arguments.limit or _TOP_OPERATORS)
    if arguments.json:
        console.print_json([asdict(operator) for operator in operators])
    elif operators:
        console.out(operators_text(operators))
    if operators:
        return 0
    raise NeuronToolsError(
        "the profile has no device records, so no operators",
        "capture with NEURON_RT_INSPECT_DEVICE_PROFILE=1 or neuron-run --profile",
    )


def _export(trace: Trace, form: str, path: str | None) -> int:
    from neurontools.profiler.export import DEFAULT_FILES, TraceFormat, export

    target = path or DEFAULT_FILES[TraceFormat(form)]
    next_notice = time.monotonic() + _NOTICE_S

    def progress(done: int, total: int) -> None:
        nonlocal next_notice
        if time.monotonic() >= next_notice:
            next_notice = time.monotonic() + _NOTICE_S
            console.notice(f"writing {target}: {done / total:.0%}")

    export(trace, TraceFormat(form), target, progress)
    console.err(f"{_written(target)}; {_VIEWERS[form]}")
    return 0


def _written(path: str) -> str:
    from neurontools.base.units import format_size

    size = f", {format_size(os.path.getsize(path))}" if os.path.isfile(path) else ""
    return f"wrote {printable(path)}{size}"


def _inspect(arguments: argparse.Namespace) -> int:
    from neurontools.compat import launch
    from neurontools.errors import UsageError

    if not arguments.command:
        raise UsageError("no program given", "neuron-profile inspect -o DIR python train.py")
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    launch.run(launch.RunOptions(tuple(command), profile=arguments.output_dir))
    return 0


main = console.command(build_parser)
