"""The verb of neuron-cache that checks what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_verb, location, print_json, width
from neurontools.commands.progress import ProgressCounter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.cache.walk import EntryRef
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache verify
  neuron-cache verify --fix
  neuron-cache verify 92195234 --json

Exit code 1 says that something is wrong, with --fix that something wrong is left."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "verify",
        _verify,
        words="check names, headers, sizes, digests, markers",
        description="Check flags hash against directory name, NEFF header, size and digest, done markers, leftovers.",
        examples=_EXAMPLES,
    )
    parser.add_argument("entries", nargs="*", metavar="ENTRY", help="a path, a module, or the start of one")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="move what is damaged or half written to .quarantine in the root, remove leftovers",
    )


def _verify(arguments: argparse.Namespace) -> int:
    from neurontools.cache import verify
    from neurontools.cache.entries import check_root_exists
    from neurontools.cache.orphans import list_quarantine
    from neurontools.cache.remote.replicas import verify_root
    from neurontools.cache.selection import find_entries
    from neurontools.cache.verify import repair
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
    kept = len(list_quarantine(root))
    if arguments.json:
        print_json(verify.verify_json(root, checked, findings, repairs, kept))
    else:
        console.out(verify.format_problems(root, checked, findings, kept, width()))
        if repairs:
            console.out(verify.format_repairs(repairs))
    left = not all(repair.done for repair in repairs) if arguments.fix else bool(findings)
    return int(left)
