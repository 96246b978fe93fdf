"""Verbs of neuron-cache that check and explain: verify, why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import add_verb, exclude_each_other, location, width
from neurontools.commands.console import ProgressCounter
from neurontools.commands.parsing import add_limit
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.cache.walk import EntryRef
    from neurontools.cache.why.report import ReportStyle
    from neurontools.commands.parsing import Verbs


_VERIFY_EXAMPLES = """examples:
  neuron-cache verify
  neuron-cache verify --fix
  neuron-cache verify 92195234 --json

exit codes: 0 no problems, 1 problems found (with --fix: problems left), 2 usage error, 130 interrupted"""
_WHY_DESCRIPTION = """Explain why a graph was compiled: the most similar entry, the differences, and the likely cause.
With two entries, explain why the first was not reused for the second; with one, compare it with the most similar entry."""
_WHY_EXAMPLES = """examples:
  neuron-cache why
  neuron-cache why --run 25766
  neuron-cache why 92195234
  neuron-cache why 92195234 80686568 --full
  neuron-cache why /mnt/old/neuronxcc-2.15.1+0/MODULE_1+e30acd3a 92195234 --json

exit codes: 0 explained, or nothing to explain; 1 no such entry or run; 2 usage error; 130 interrupted"""
_MOST_ENTRIES = 2
_PIPE_WIDTH = 100


def add_verify(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "verify",
        _verify,
        words="check stored entries",
        description="Check flags hashes, NEFF headers, sizes and digests, done markers, and look for leftovers.",
        examples=_VERIFY_EXAMPLES,
    )
    parser.add_argument("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="remove damaged and half-written entries and leftovers, unless they are pinned or in use",
    )


def _verify(arguments: argparse.Namespace) -> int:
    from neurontools.cache import verify
    from neurontools.cache.entries import check_root_exists
    from neurontools.cache.selection import find_entries
    from neurontools.cache.verify import repair, verify_root
    from neurontools.cache.walk import walk

    where = location(arguments, remote=not arguments.fix)
    root = where.root
    unread: list[str] = []
    if arguments.entries:
        places: Sequence[EntryRef] = find_entries(root, arguments.entries)
    else:
        walked = walk(root)
        check_root_exists(where, walked)
        places, unread = walked.places, walked.unread
    with ProgressCounter("checking", "entries") as progress:
        checked, findings = verify_root(root, places, progress)
    if not arguments.entries:
        findings += (*verify.unreadable_problems(unread), *verify.verify_orphans(root))
    repairs = repair(root, findings) if arguments.fix else ()
    if arguments.json:
        console.print_json(verify.verify_json(root, checked, findings, repairs))
    else:
        console.out(verify.format_problems(root, checked, findings, width()))
        if repairs:
            console.out(verify.format_repairs(repairs))
    left = not all(repair.done for repair in repairs) if arguments.fix else bool(findings)
    return int(left)


def add_why(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "why",
        _why,
        words="explain why a graph was compiled again",
        description=_WHY_DESCRIPTION,
        examples=_WHY_EXAMPLES,
    )
    parser.add_argument(
        "entries",
        nargs="*",
        metavar="ENTRY",
        help="one or two entries, by path, module name or unique prefix",
    )
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="RUN",
        help="explain every compile of a run: a name from 'stats --runs', a process id, or a profile directory",
    )
    parser.add_argument(
        "--last", action="store_true", help="explain every compile of the last run (default without ENTRY)"
    )
    parser.add_argument("--full", action="store_true", help="print the whole difference of the graphs")
    add_limit(parser, "print at most N lines of the difference (default: 40)")


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
    exclude_each_other(arguments, "full", "limit")
    root = location(arguments, remote=True).root
    if not arguments.entries:
        explain = _why_run
    elif len(arguments.entries) <= _MOST_ENTRIES:
        explain = _why_entries
    else:
        raise UsageError(
            f"why takes one or two entries, not {len(arguments.entries)}",
            "neuron-cache why explains the last run; 'neuron-cache ls' lists entries",
        )
    from neurontools.base.garbage import without_collection

    with without_collection():  # graphs of 50,000 operators are a million objects without a cycle
        return explain(arguments, root)


def _why_run(arguments: argparse.Namespace, root: str) -> int:
    from neurontools.cache.why import explain, report

    with ProgressCounter("explaining", "compiles") as progress:
        if arguments.run_name:
            found = explain.explain_run(root, arguments.run_name, progress)
        else:
            found = explain.explain_last(root, progress)
    if arguments.json:
        console.print_json(report.run_json(found, full=arguments.full))
    else:
        style = _style(arguments)
        console.out(report.format_run(found, style), styled=style.colour)
    return 0


def _why_entries(arguments: argparse.Namespace, root: str) -> int:
    from neurontools.cache.why import explain, report

    names = arguments.entries
    with ProgressCounter("comparing", "graphs") as progress:
        if len(names) > 1:
            found = explain.explain_pair(root, *names, progress=progress)
        else:
            found = explain.explain_entry(root, names[0], progress)
    if arguments.json:
        console.print_json(report.explanation_json(found, full=arguments.full))
    else:
        style = _style(arguments)
        console.out(report.format_explanation(found, style), styled=style.colour)
    return 0


def _style(arguments: argparse.Namespace) -> ReportStyle:
    import os
    import shutil

    from neurontools.cache.why.report import DEFAULT_LINES, ReportStyle

    on_terminal = sys.stdout.isatty()
    return ReportStyle(
        width=shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns if on_terminal else _PIPE_WIDTH,
        colour=console.colour_wanted(),
        cut=on_terminal and not arguments.full,
        full=arguments.full,
        most_lines=arguments.limit or DEFAULT_LINES,
        directory=os.getcwd().rstrip("/") + "/",
    )
