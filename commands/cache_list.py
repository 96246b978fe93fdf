"""The verbs of neuron-cache that look at entries: ls, show, path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_filter,
    add_verb,
    exclude_each_other,
    location,
    print_json,
    width,
)
from neurontools.commands.progress import ProgressCounter

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.cache_options import Verbs

_LS_EXAMPLES = """examples:
  neuron-cache ls --filter state=failed,interrupted
  neuron-cache ls --filter 'size>1GB' 'accessed>30d' 'compiler~2.16' --sort size
  neuron-cache ls --columns state,size,used,path --limit 20
  neuron-cache rm $(neuron-cache ls -q --filter name~bert)

fields: state, size, made (age), used (accessed), hits, compiler, flags, name, module, path, note, layout, pinned, tags, ours
Words and texts take = and !=, texts also ~ (contains) and !~, sizes, ages and numbers < <= > >= (sizes and numbers = and
!=, too). Commas part values of which one must fit: state=failed,todo"""
_SHOW_EXAMPLES = """examples:
  neuron-cache show MODULE_9219523464496887986+e30acd3a
  neuron-cache show 92195234 --json"""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_verb(
        verbs,
        "ls",
        _ls,
        words="list the entries",
        description="List the entries of the cache.",
        examples=_LS_EXAMPLES,
    )
    add_filter(parser)
    parser.add_argument(
        "--sort",
        default="used",
        metavar="KEY",
        help="used, made, age, size, hits, state, name, compiler, flags, module, path or layout; "
        "KEY:asc or KEY:desc turns it (default: used)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="show only the first N")
    parser.add_argument("--columns", metavar="LIST", help="fields to show, with commas between")
    parser.add_argument("--failed", action="store_true", help="show only failed and interrupted compiles")
    parser.add_argument("--registry", action="store_true", help="list optimum's registry records instead")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only paths")
    shown = add_verb(
        verbs,
        "show",
        _show,
        words="all that is known of an entry",
        description="Print flags, graph, NEFF header, times, hits and who compiled it; a failure's log.",
        examples=_SHOW_EXAMPLES,
    )
    shown.add_argument("entries", nargs="+", metavar="ENTRY", help="a path, a module, or the start of one")
    path = add_verb(
        verbs,
        "path",
        _path,
        words="which directory is the cache, and why",
        description="Print the cache's directory and the settings that could name it; * marks the one that won.",
    )
    path.add_argument("-q", "--quiet", action="store_true", help="print only the directory")


def _ls(arguments: argparse.Namespace) -> int:
    import time

    from neurontools.cache import fields, filters, listing
    from neurontools.cache.listing import list_entries

    now = time.time()
    exclude_each_other(arguments, "json", "quiet", "columns")
    if arguments.registry:
        exclude_each_other(arguments, "registry", "filter", "failed", "limit", "columns")
        return _ls_registry(arguments)
    columns = listing.parse_columns(arguments.columns) if arguments.columns else listing.DEFAULT_COLUMNS
    order = listing.parse_order(arguments.sort)
    chosen = filters.parse_filters(arguments.filter)
    with ProgressCounter("listing", "objects") as listed, ProgressCounter("looked at", "entries") as looked:
        found, rows = list_entries(
            location(arguments, remote=True),
            order,
            chosen,
            now=now,
            failed=arguments.failed,
            limit=arguments.limit,
            details=not arguments.quiet,
            on_listed=listed,
            on_read=looked,
        )
    if arguments.json:
        shown = [fields.entry_json(entry) for entry in rows]
        print_json({"root": found.root, "entries": shown, "skipped": found.skipped, "unread": found.unread})
    elif arguments.quiet:
        for entry in rows:
            console.out(entry.path)
    else:
        console.out(listing.format_listing(found, rows, now, columns, width()))
    return 0


def _ls_registry(arguments: argparse.Namespace) -> int:
    from neurontools.cache import entries, listing

    found = entries.scan_location(location(arguments, remote=True), details=False)
    if arguments.json:
        print_json({"root": found.root, "registry": listing.registry_json(found)})
    elif arguments.quiet:
        for record in found.registry:
            console.out(record.path)
    else:
        console.out(listing.format_registry(found, width()))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    import time

    from neurontools.cache import show
    from neurontools.cache.selection import find_entries

    root = location(arguments, remote=True).root
    shown = [show.read_details(root, place) for place in find_entries(root, arguments.entries)]
    if arguments.json:
        print_json([show.details_json(details) for details in shown])
    else:
        console.out("\n\n".join(show.format_details(details, time.time(), width()) for details in shown))
    return 0


def _path(arguments: argparse.Namespace) -> int:
    from neurontools.cache.location import format_location, location_json

    exclude_each_other(arguments, "json", "quiet")
    found = location(arguments, remote=True)
    if arguments.json:
        print_json(location_json(found))
    else:
        console.out(found.root if arguments.quiet else format_location(found))
    return 0
