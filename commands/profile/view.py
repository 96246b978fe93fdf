"""neuron-profile view and summary: the viewer, numbers as text or JSON, and trace files."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.parsing import add_json
from neurontools.commands.profile.options import add_reading_verb, load_trace, open_profile
from neurontools.commands.profile.real_flags import add_real_flags, check_real_flags, system_filter
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.profiler.formats import FORMAT_USES, TraceFormat

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.trace.trace import Trace

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
