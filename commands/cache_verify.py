"""The verb of neuron-cache that checks what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import Progress, add_verb, location, print_json, width

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.cache.walk import Place
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
    from neurontools.cache import verify, verify_text
    from neurontools.cache.entries import must_exist
    from neurontools.cache.naming import find_places
    from neurontools.cache.quarantine import quarantined
    from neurontools.cache.remote.replicas import verify_root
    from neurontools.cache.repairing import repair
    from neurontools.cache.walk import walk

    where = location(arguments, remote=not arguments.fix)
    root = where.root
    unread: list[str] = []
    if arguments.entries:
        places: Sequence[Place] = find_places(root, arguments.entries)
    else:
        walked = walk(root)
        must_exist(where, walked)
        places, unread = walked.places, walked.unread
    with Progress("checking", "entries") as progress:
        checked, findings = verify_root(root, places, progress)
    if not arguments.entries:
        findings += (*verify.unreadable(unread), *verify.check_leftovers(root))
    repairs = repair(root, findings) if arguments.fix else ()
    kept = len(quarantined(root))
    if arguments.json:
        print_json(verify_text.verify_json(root, checked, findings, repairs, kept))
    else:
        console.out(verify_text.findings_text(root, checked, findings, kept, width()))
        if repairs:
            console.out(verify_text.repairs_text(repairs))
    left = not all(repair.done for repair in repairs) if arguments.fix else bool(findings)
    return int(left)
