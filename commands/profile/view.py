"""neuron-profile view and summary: the viewer with flags of the real tool, numbers as text or JSON, and trace files."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.parsing import add_json
from neurontools.commands.profile.options import add_reading_verb, load_trace, open_profile
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.profiler.formats import FORMAT_USES, TraceFormat

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.trace.selection import SystemFilter
    from neurontools.profiler.trace.trace import Trace


_NO_DATABASE = "there is no database"
_GROUPS = "rows are grouped by process, clock and core"
_WITHOUT_EFFECT = {
    "--port": "there is no server",
    "--db-endpoint": _NO_DATABASE,
    "--db-org": _NO_DATABASE,
    "--db-bucket": _NO_DATABASE,
    "--data-path": "--output-file says where files are written",
    "--display-name": "a profile has the name of its directory",
    "--framework-source-root": "a profile has the full paths of source files",
    "--nki-source-root": "a profile has the full paths of source files",
    "--system-trace-primary-group": _GROUPS,
    "--system-trace-secondary-group": _GROUPS,
    "-F": "there are no further settings",
}
_SWITCHES_WITHOUT_EFFECT = {"--show-perfetto-flows": "trace files have no arrows"}
_ALWAYS = ("--force", "--enable-memory-tracker")  # existing files are replaced, memory is recorded
_REFUSED_FLAGS = {
    "--ingest-only": ("there is no database", "write tables with --output-format parquet"),
    "--terminology": ("there is no glossary here", "docs/reference/neuron-profile.md explains the metrics"),
}


def add_real_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to `view`; help lists those that choose a part."""
    add = parser.add_argument
    add("--ignore-device-profile", action="store_true", help="skip what the device did (modelled)")
    add("--ignore-system-profile", action="store_true", help="skip wall-clock events (measured)")
    add(
        "--system-trace-filter-neuron-core",
        metavar="LIST",
        help="wall-clock events: only these NeuronCores of each process",
    )
    add(
        "--system-trace-filter-event-type",
        metavar="LIST",
        help="wall-clock events: only these names; hardware, software; ^name excludes",
    )
    add(
        "--system-trace-filter-instance-id",
        metavar="LIST",
        help="wall-clock events: only those of these instances",
    )
    for flag in _WITHOUT_EFFECT:
        add(flag, dest=flag, action="append", metavar="VALUE", help=argparse.SUPPRESS)
    for flag in (*_SWITCHES_WITHOUT_EFFECT, *_ALWAYS, *_REFUSED_FLAGS):
        add(flag, dest=flag, action="store_true", help=argparse.SUPPRESS)


def check_real_flags(arguments: argparse.Namespace) -> None:
    """Warn of flags that have no effect.

    Raises:
        UsageError: a flag asks for what does not exist here.
    """
    given = vars(arguments)
    for flag, (reason, remedy) in _REFUSED_FLAGS.items():
        if given[flag]:
            raise UsageError(f"{flag}: {reason}", remedy)
    for flag, reason in {**_WITHOUT_EFFECT, **_SWITCHES_WITHOUT_EFFECT}.items():
        if given[flag]:
            console.warn(f"{flag} has no effect: {reason}")


def system_filter(arguments: argparse.Namespace) -> SystemFilter | None:
    """Return which wall-clock events the command line asks for; None for all.

    Raises:
        UsageError: the list of cores is invalid.
    """
    cores = arguments.system_trace_filter_neuron_core
    names = arguments.system_trace_filter_event_type
    instances = arguments.system_trace_filter_instance_id
    if not cores and not names and not instances:
        return None
    from neurontools.profiler.capture.settings import event_names, parse_numbers
    from neurontools.profiler.trace.selection import SystemFilter

    return SystemFilter(
        ncs=parse_numbers(cores, "--system-trace-filter-neuron-core") if cores else None,
        names=event_names(names) if names else None,
        instances=frozenset(word.strip() for word in instances.split(",")) if instances else None,
    )


_FILES = tuple(form.value for form in TraceFormat)
FORMATS = ("summary-text", "summary-json", *_FILES)
_REFUSED = {
    "db": "there is no database",
    "json": "summary-json has the numbers, parquet and chrome have the events",
}
_NOTICE_S = 2.0


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    purpose = "show the timeline on a terminal, print a summary, or write a trace file"
    view = add_reading_verb(verbs, "view", purpose, _view)
    view.add_argument(
        "--output-format", choices=(*FORMATS, *_REFUSED), metavar="FORMAT", help=", ".join(FORMATS)
    )
    view.add_argument(
        "--output-file",
        metavar="FILE",
        help="file or directory to write (default: ntff with the ending of the format)",
    )
    add_real_flags(view)
    view.add_argument("other", nargs="?", metavar="OTHER", help="a second profile to compare it with")
    summary = add_reading_verb(verbs, "summary", "print a summary of the profile", _summary)
    add_json(summary, "print JSON (base units)")


def _view(arguments: argparse.Namespace) -> int:
    form = arguments.output_format
    if form in _REFUSED:
        raise UsageError(f"--output-format {form}: {_REFUSED[form]}", f"use one of {', '.join(FORMATS)}")
    check_real_flags(arguments)
    only = {
        "without_device": arguments.ignore_device_profile,
        "without_system": arguments.ignore_system_profile,
        "system": system_filter(arguments),
    }
    trace = load_trace(arguments, shows_problems=True, further=only)
    if form is None and not arguments.output_file and console.has_screen():
        return _terminal(trace, open_profile(arguments.other) if arguments.other else None)
    if arguments.other:
        raise UsageError("two profiles are compared on a terminal only", "use neuron-profile diff")
    if form in _FILES:
        return _export(trace, form, arguments.output_file)
    return _print_summary(trace, as_json=form == "summary-json", path=arguments.output_file)


def _terminal(trace: Trace, other: Trace | None) -> int:
    if trace.event_count == 0:
        raise NeuronToolsError(
            "the profile has no events: the program executed nothing on a NeuronCore",
            "capture a run that uses the device",
        )
    from neurontools.tui.profile.app import ProfileApp

    code = ProfileApp(trace, other).run()
    return 0 if code is None else code


def _summary(arguments: argparse.Namespace) -> int:
    return _print_summary(load_trace(arguments, shows_problems=True), as_json=arguments.json, path=None)


def _print_summary(trace: Trace, *, as_json: bool, path: str | None) -> int:
    from neurontools.profiler.analysis.summary import report, to_json, to_text

    text = json.dumps(to_json(report(trace, None)), indent=2) if as_json else to_text(report(trace))
    if path is None:
        console.out(text)
        return 0
    from neurontools.profiler.exchange.export import write_text

    write_text(path, text + "\n")
    console.err(_written(path))
    return 0


def _export(trace: Trace, form: str, path: str | None) -> int:
    from neurontools.profiler.exchange.export import export

    use = FORMAT_USES[TraceFormat(form)]
    target = path or use.default_path
    next_notice = time.monotonic() + _NOTICE_S

    def progress(done: int, total: int) -> None:
        nonlocal next_notice
        if time.monotonic() >= next_notice:
            next_notice = time.monotonic() + _NOTICE_S
            console.notice(f"writing {target}: {done / total:.0%}")

    export(trace, TraceFormat(form), target, progress)
    console.err(f"{_written(target)}; {use.opens}")
    return 0


def _written(path: str) -> str:
    from neurontools.base.units import format_size

    size = f", {format_size(os.path.getsize(path))}" if os.path.isfile(path) else ""
    return f"wrote {printable(path)}{size}"
