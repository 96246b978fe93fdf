"""The verbs of neuron-cache that mark entries: pin, unpin, tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_filter, add_verb, location, print_json
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.walk import EntryRef
    from neurontools.commands.cache_options import Verbs

_PIN_EXAMPLES = """examples:
  neuron-cache pin 92195234
  neuron-cache pin --filter 'name~bert' state=done
  neuron-cache ls --filter pinned=yes"""
_TAG_EXAMPLES = """examples:
  neuron-cache tag release-2.1 92195234
  neuron-cache tag release-2.1 --filter 'name~bert'
  neuron-cache tag --delete release-2.1 92195234
  neuron-cache ls --filter tag~release"""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    pin = add_verb(
        verbs,
        "pin",
        _pin,
        words="keep entries from every removal",
        description="Pin entries: prune, rm and clean leave them until unpin.",
        examples=_PIN_EXAMPLES,
    )
    unpin = add_verb(verbs, "unpin", _unpin, words="undo pin", description="Undo pin.")
    tag = add_verb(
        verbs,
        "tag",
        _tag,
        words="give entries a name of yours",
        description="Give entries a tag, to find them by: ls --filter tag~NAME.",
        examples=_TAG_EXAMPLES,
    )
    tag.add_argument("tag", metavar="TAG", help="letters, digits and . _ @ + -")
    tag.add_argument("-d", "--delete", action="store_true", help="take the tag away")
    for parser in (pin, unpin, tag):
        parser.add_argument(
            "entries", nargs="*", metavar="ENTRY", help="a path, a module, or the start of one"
        )
        add_filter(parser)


def _pin(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pins_and_tags import set_pin

    places = _places(arguments)
    return _report(arguments, "pinned", [place for place in places if set_pin(place)], places)


def _unpin(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pins_and_tags import remove_pin

    places = _places(arguments)
    return _report(arguments, "unpinned", [place for place in places if remove_pin(place)], places)


def _tag(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pins_and_tags import remove_tag, set_tag

    places = _places(arguments)
    mark, word = (remove_tag, "untagged") if arguments.delete else (set_tag, "tagged")
    return _report(arguments, word, [place for place in places if mark(place, arguments.tag)], places)


def _places(arguments: argparse.Namespace) -> tuple[EntryRef, ...]:
    from neurontools.cache.pins_and_tags import check_taggable
    from neurontools.cache.selection import select_entries

    if not arguments.entries and not arguments.filter:
        raise UsageError("nothing says which entries", "name some, or give --filter")
    places = select_entries(location(arguments), arguments.entries, arguments.filter)
    check_taggable(places)
    return places


def _report(
    arguments: argparse.Namespace, word: str, changed: list[EntryRef], places: tuple[EntryRef, ...]
) -> int:
    from neurontools.base.text import plural

    if arguments.json:
        print_json({word: [place.path for place in changed], "unchanged": len(places) - len(changed)})
        return 0
    for place in changed:
        console.out(f"{word} {place.path}")
    if len(changed) < len(places):
        console.out(f"{plural(len(places) - len(changed), 'entry needs', 'entries need')} no change")
    return 0
