"""neuron-profile advise: what to change in the profiled program, and what it gains."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_limit
from neurontools.commands.profile.options import add_reading_verb, load_trace

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.parsing import Verbs

_PURPOSE = "suggest changes to the program that make a step faster"


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_reading_verb(verbs, "advise", _PURPOSE, _advise)
    add_limit(
        parser, "number of changes to show (default: all)", short=False
    )  # -n is the NEFF, as in the real tool
    add_json(parser, "print JSON (base units)")


def _advise(arguments: argparse.Namespace) -> int:
    trace = load_trace(arguments)
    from neurontools.profiler.advice.findings import to_json, to_text
    from neurontools.profiler.advice.rules import advise_trace

    report = advise_trace(trace)
    if arguments.json:
        console.print_json(to_json(report, arguments.limit))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        console.out(to_text(report, arguments.limit, width))
    return 0
