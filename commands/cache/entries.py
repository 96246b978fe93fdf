"""Verbs of neuron-cache about entries: ls, show, stats, pin, tag, tui."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import did_you_mean
from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_filter,
    add_verb,
    exclude_each_other,
    location,
    width,
)
from neurontools.commands.console import ProgressCounter
from neurontools.commands.parsing import add_limit
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.stats import Stats
    from neurontools.cache.walk import EntryRef
    from neurontools.commands.parsing import Verbs


_LS_EXAMPLES = """examples:
  neuron-cache ls --filter state=failed,interrupted
  neuron-cache ls --filter 'size>1GB' 'accessed>30d' 'compiler~2.16' --sort size
  neuron-cache ls --columns state,size,used,path --limit 20
  neuron-cache rm $(neuron-cache ls -q --filter name~bert)

Fields for --filter, --sort and --columns, with the operators of filters:
  state                = !=            state of the entry: done, failed, locked, todo, interrupted
  size                 = != < <= > >=  bytes on disk
  made (age, created)  < <= > >=       time since it was compiled
  used (accessed)      < <= > >=       time since its last use
  hits                 = != < <= > >=  hits of this user
  compiler             = != ~ !~       compiler version
  flags                = != ~ !~       compiler flags
  name (model)         = != ~ !~       name of the network
  module               = != ~ !~       name of its directory or file
  path                 = != ~ !~       path
  note                 = != ~ !~       why it failed, or which process holds its lock
  layout               = !=            layout of the cache: current, oldest, torchneuron, vllm
  pinned               = !=            whether it is pinned: yes, no
  tags (tag)           = != ~ !~       tags
  ours                 = !=            whether this simulator compiled it: yes, no"""
_SHOW_EXAMPLES = """examples:
  neuron-cache show MODULE_9219523464496887986+e30acd3a
  neuron-cache show 92195234 --json"""
_PIN_EXAMPLES = """examples:
  neuron-cache pin 92195234
  neuron-cache pin --filter 'name~bert' state=done
  neuron-cache pin --delete 92195234
  neuron-cache ls --filter pinned=yes"""
_TAG_EXAMPLES = """examples:
  neuron-cache tag release-2.1 92195234
  neuron-cache tag release-2.1 --filter 'name~bert'
  neuron-cache tag --delete release-2.1 92195234
  neuron-cache ls --filter tag~release"""
_TUI_EXAMPLES = """examples:
  neuron-cache tui
  neuron-cache tui --theme light --cache-dir /mnt/cache
  neuron-cache tui --filter 'state=failed'

Press ? for the keys."""


def add_list(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_verb(
        verbs,
        "ls",
        _ls,
        words="list entries",
        description="List the entries of the cache.",
        examples=_LS_EXAMPLES,
    )
    add_filter(parser)
    parser.add_argument(
        "--sort",
        default="used",
        metavar="KEY",
        help="sort by a field; KEY:asc or KEY:desc sets the direction (default: used)",
    )
    add_limit(parser, "print at most N entries")
    parser.add_argument("--columns", metavar="LIST", help="fields to show, separated by commas")
    parser.add_argument("--failed", action="store_true", help="show only failed and interrupted compiles")
    parser.add_argument("--registry", action="store_true", help="list optimum's registry records instead")
    parser.add_argument("-q", "--quiet", action="store_true", help="print paths only")
    shown = add_verb(
        verbs,
        "show",
        _show,
        words="print the details of entries",
        description="Print an entry's flags, graph, NEFF header, times, hits, origin and failure log.",
        examples=_SHOW_EXAMPLES,
    )
    shown.add_argument("entries", nargs="+", metavar="ENTRY", help="path, module name or unique prefix")


def _ls(arguments: argparse.Namespace) -> int:
    import time

    from neurontools.cache import fields, listing
    from neurontools.cache.listing import list_entries

    now = time.time()
    exclude_each_other(arguments, "json", "quiet", "columns")
    if arguments.registry:
        exclude_each_other(arguments, "registry", "filter", "failed", "limit", "columns")
        return _ls_registry(arguments)
    columns = listing.parse_columns(arguments.columns) if arguments.columns else listing.DEFAULT_COLUMNS
    order = listing.parse_order(arguments.sort)
    chosen = fields.parse_filters(arguments.filter)
    with ProgressCounter("listing", "objects") as listed, ProgressCounter("reading", "entries") as looked:
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
        console.print_json(
            {"root": found.root, "entries": shown, "skipped": found.skipped, "unread": found.unread}
        )
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
        console.print_json({"root": found.root, "registry": listing.registry_json(found)})
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
    return console.show(
        arguments.json,
        lambda: [show.details_json(details) for details in shown],
        lambda: "\n\n".join(show.format_details(details, time.time(), width()) for details in shown),
    )


def add_pins_and_tags(verbs: Verbs) -> None:
    """Add the verbs."""
    pin = add_verb(
        verbs,
        "pin",
        _pin,
        words="protect entries from removal",
        description="Pin entries: prune and rm keep them until they are unpinned.",
        examples=_PIN_EXAMPLES,
    )
    pin.add_argument("-d", "--delete", action="store_true", help="unpin, so that they can be removed again")
    tag = add_verb(
        verbs,
        "tag",
        _tag,
        words="tag entries",
        description="Tag entries, for example to list them by 'ls --filter tag~NAME'.",
        examples=_TAG_EXAMPLES,
    )
    tag.add_argument("tag", metavar="TAG", help="1 to 64 letters, digits and . _ @ + -")
    tag.add_argument("-d", "--delete", action="store_true", help="remove the tag")
    for parser in (pin, tag):
        parser.add_argument("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
        add_filter(parser)


def _pin(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pins_and_tags import remove_pin, set_pin

    root, places = _places(arguments)
    mark, word = (remove_pin, "unpinned") if arguments.delete else (set_pin, "pinned")
    return _report(arguments, word, [place for place in places if mark(root, place)], places)


def _tag(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pins_and_tags import remove_tag, set_tag

    root, places = _places(arguments)
    mark, word = (remove_tag, "untagged") if arguments.delete else (set_tag, "tagged")
    return _report(arguments, word, [place for place in places if mark(root, place, arguments.tag)], places)


def _places(arguments: argparse.Namespace) -> tuple[str, tuple[EntryRef, ...]]:
    from neurontools.cache.pins_and_tags import check_taggable
    from neurontools.cache.selection import select_entries

    if not arguments.entries and not arguments.filter:
        raise UsageError("no entries selected", "name entries, or add --filter")
    where = location(arguments)
    places = select_entries(where, arguments.entries, arguments.filter)
    check_taggable(places)
    return where.root, places


def _report(
    arguments: argparse.Namespace, word: str, changed: list[EntryRef], places: tuple[EntryRef, ...]
) -> int:
    from neurontools.base.text import plural

    if arguments.json:
        console.print_json({word: [place.path for place in changed], "unchanged": len(places) - len(changed)})
        return 0
    for place in changed:
        console.out(f"{word} {place.path}")
    if len(changed) < len(places):
        console.out(f"{plural(len(places) - len(changed), 'entry needs', 'entries need')} no change")
    return 0


def add_browser(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "tui",
        _tui,
        words="browse and clean up the cache interactively",
        description="Browse the cache: entries grouped by compiler and network, with sizes. Mark and delete, pin, tag, show "
        "an entry, or explain why it was compiled.",
        examples=_TUI_EXAMPLES,
        json=False,
    )
    parser.add_argument(
        "--theme",
        default="auto",
        metavar="NAME",
        help="auto, dark, light, colorblind, ansi, or a theme of Textual such as nord",
    )
    parser.add_argument("-f", "--filter", default="", metavar="EXPR", help="initial filter")


def _tui(arguments: argparse.Namespace) -> int:
    obstacle = console.screen_obstacle()
    if obstacle == "not a terminal":
        raise UsageError("neuron-cache tui needs a terminal", "use neuron-cache ls, show and prune in pipes")
    if obstacle:
        raise UsageError(f"neuron-cache tui cannot draw: {obstacle}", "set TERM, e.g. TERM=xterm-256color")
    from neurontools.tui.cache.app import CacheApp
    from neurontools.tui.cache.browser import Browser
    from neurontools.tui.names import TEXTUAL_THEMES, THEME_NAMES

    if arguments.theme not in (known := (*THEME_NAMES, *TEXTUAL_THEMES)):
        raise UsageError(f"unknown theme {arguments.theme!r}", did_you_mean(arguments.theme, known))
    browser = Browser(location(arguments).root)
    browser.set_filter(arguments.filter)
    code = CacheApp(browser, colour=console.colour_wanted(), theme=arguments.theme).run()
    return 0 if code is None else code


_STATS_EXAMPLES = """examples:
  neuron-cache stats
  neuron-cache stats --runs
  neuron-cache stats --path -q"""


def add_stats(verbs: Verbs) -> None:
    """Add the verb."""
    stats = add_verb(
        verbs,
        "stats",
        _stats,
        words="print totals, reclaimable space, hits and misses",
        description="Print totals by state, layout and compiler, reclaimable space, and this user's hits and misses.",
        examples=_STATS_EXAMPLES,
    )
    stats.add_argument(
        "--runs", action="store_true", help="print hits, misses, waits and seconds saved of each run"
    )
    stats.add_argument(
        "--path",
        action="store_true",
        help="print the cache's path and the settings that can name it, * in effect",
    )
    stats.add_argument("-q", "--quiet", action="store_true", help="with --path: print the path only")


def _stats(arguments: argparse.Namespace) -> int:
    exclude_each_other(arguments, "runs", "path")
    if arguments.path:
        return _path(arguments)
    if arguments.quiet:
        raise UsageError("-q needs --path", "neuron-cache stats --path -q")
    if arguments.runs:
        return _runs(arguments)
    from neurontools.cache import stats

    sums = _sums(arguments)
    return console.show(
        arguments.json, lambda: stats.stats_json(sums), lambda: stats.format_stats(sums, width())
    )


def _path(arguments: argparse.Namespace) -> int:
    from neurontools.cache.location import format_location, location_json

    exclude_each_other(arguments, "json", "quiet")
    found = location(arguments, remote=True)
    return console.show(
        arguments.json,
        lambda: location_json(found),
        lambda: found.root if arguments.quiet else format_location(found),
    )


def _sums(arguments: argparse.Namespace) -> Stats:
    from neurontools.cache import entries, locks, stats
    from neurontools.cache.walk import walk

    where = location(arguments, remote=True)
    with ProgressCounter("listing", "objects") as progress:
        found = walk(where.root, progress)
    entries.check_root_exists(where, found)
    with ProgressCounter("reading", "entries") as progress:
        return stats.collect_stats(found, locks.in_use_checker(found.root), progress)


def _runs(arguments: argparse.Namespace) -> int:
    from neurontools.cache import events, stats

    found = stats.group_runs(events.Events(location(arguments, remote=True).root).read())
    return console.show(
        arguments.json, lambda: stats.runs_json(found), lambda: stats.format_runs(found, width())
    )
