"""The verb of neuron-cache that opens the browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_verb, location
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache tui
  neuron-cache tui --theme light --cache-dir /mnt/cache
  neuron-cache tui --filter 'state=failed'

'?' in it lists the keys."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "tui",
        _tui,
        words="browse the cache in the terminal: sizes, marks to delete, why",
        description="Browse the cache: entries by compiler and network with their sizes; mark and delete, pin, tag, "
        "see an entry and why it was compiled.",
        examples=_EXAMPLES,
        json=False,
    )
    parser.add_argument("--theme", default="auto", metavar="NAME", help="auto, dark, light or colorblind")
    parser.add_argument("-f", "--filter", default="", metavar="CONDITIONS", help="show only these at first")


def _tui(arguments: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the browser needs a terminal", "neuron-cache ls, show and prune work in pipes")
    from neurontools.tui.cache import actions
    from neurontools.tui.cache.app import CacheApp
    from neurontools.tui.names import AUTO
    from neurontools.tui.widgets.theme import THEMES

    if arguments.theme not in {AUTO, *THEMES}:
        raise UsageError(
            f"there is no theme {arguments.theme!r}", f"choose from {', '.join((AUTO, *THEMES))}"
        )
    root = location(arguments).root
    browser = actions.new_browser(root)
    browser.set_filter(arguments.filter)
    code = CacheApp(browser, colour=console.colour_wanted(), theme=arguments.theme).run()
    return 0 if code is None else code
