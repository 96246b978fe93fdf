"""The verb of neuron-cache that explains: why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_verb, exclude_each_other, location, print_json
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.why.report import ReportStyle
    from neurontools.commands.cache_options import Verbs

_DESCRIPTION = """Say why a graph was compiled: the nearest entry, in what the two differ, and the classic cause behind that.
With two entries: why the second was not found where the first is. With one: the same against its nearest neighbour."""
_EXAMPLES = """examples:
  neuron-cache why --last
  neuron-cache why --run 25766
  neuron-cache why 92195234
  neuron-cache why 92195234 80686568 --full
  neuron-cache why /mnt/old/neuronxcc-2.15.1+0/MODULE_1+e30acd3a 92195234 --json

exit codes: 0 explained, or there was nothing to explain; 1 no such entry or run; 2 usage"""
_MOST_ENTRIES = 2
_PIPE_WIDTH = 100


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "why",
        _why,
        words="why something was compiled again",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "entries", nargs="*", metavar="ENTRY", help="a path, a module, or the start of one; one or two"
    )
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="RUN",
        help="every compile of a run: its name of 'stats --runs', or its process id",
    )
    parser.add_argument("--last", action="store_true", help="every compile of the last run")
    parser.add_argument("--full", action="store_true", help="the whole difference of the graphs")
    parser.add_argument("--max-lines", type=int, metavar="N", help="so many lines of it (default: 40)")


def _why(arguments: argparse.Namespace) -> int:
    given = [
        word
        for word, is_given in (
            ("ENTRY", arguments.entries),
            ("--run", arguments.run_name),
            ("--last", arguments.last),
        )
        if is_given
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", "leave one of them out")
    exclude_each_other(arguments, "full", "max_lines")
    root = location(arguments, remote=True).root
    if arguments.run_name or arguments.last:
        return _why_run(arguments, root)
    if not 1 <= len(arguments.entries) <= _MOST_ENTRIES:
        raise UsageError(
            f"why takes one or two entries, not {len(arguments.entries)}",
            "neuron-cache why --last explains the last run; 'neuron-cache ls' lists entries",
        )
    return _why_entries(arguments, root)


def _why_run(arguments: argparse.Namespace, root: str) -> int:
    from neurontools.cache.why import explain, report

    with ProgressCounter("explained", "compiles") as progress:
        if arguments.last:
            found = explain.explain_last(root, progress)
        else:
            found = explain.explain_run(root, arguments.run_name, progress)
    if arguments.json:
        print_json(report.run_json(found, full=arguments.full))
    else:
        console.out(report.format_run(found, _style(arguments)))
    return 0


def _why_entries(arguments: argparse.Namespace, root: str) -> int:
    from neurontools.cache.why import explain, report

    names = arguments.entries
    with ProgressCounter("examined", "graphs") as progress:
        if len(names) > 1:
            found = explain.explain_pair(root, *names, progress=progress)
        else:
            found = explain.explain_entry(root, names[0], progress)
    if arguments.json:
        print_json(report.explanation_json(found, full=arguments.full))
    else:
        console.out(report.format_explanation(found, _style(arguments)))
    return 0


def _style(arguments: argparse.Namespace) -> ReportStyle:
    import os
    import shutil

    from neurontools.cache.why.report import DEFAULT_LINES, ReportStyle

    on_terminal = sys.stdout.isatty()
    if arguments.max_lines is not None and arguments.max_lines < 1:
        raise UsageError(f"--max-lines {arguments.max_lines}: at least one line", "--full shows all of them")
    return ReportStyle(
        width=shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns if on_terminal else _PIPE_WIDTH,
        colour=console.colour_wanted(),
        cut=on_terminal and not arguments.full,
        full=arguments.full,
        most_lines=arguments.max_lines or DEFAULT_LINES,
        directory=os.getcwd().rstrip("/") + "/",
    )
