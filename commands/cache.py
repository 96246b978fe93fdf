"""neuron-cache: look into the compile cache and keep it small. Each group of verbs is a module of its own."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from neurontools.commands import (
    cache_archive,
    cache_list,
    cache_locks,
    cache_marks,
    cache_neff,
    cache_prune,
    cache_stats,
    cache_sync,
    cache_tui,
    cache_verify,
    cache_watch,
    cache_why,
    console,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = "Look into the compile cache and keep it small. Starts nothing, and changes nothing unless the verb says so."
_EXAMPLES = """examples:
  neuron-cache ls --sort size --limit 10
  neuron-cache ls --filter state=failed 'used>30d'
  neuron-cache show 92195234
  neuron-cache stats
  neuron-cache tui
  neuron-cache watch
  neuron-cache why --last
  neuron-cache prune --max-size 20GB --older-than 30d --dry-run
  neuron-cache prune --failed --interrupted -y
  neuron-cache locks
  neuron-cache verify --fix
  neuron-cache pin 92195234
  neuron-cache export --filter 'name~bert' bert.tar.zst
  neuron-cache sync /var/tmp/neuron-compile-cache s3://bucket/prefix
  neuron-cache neff info model.neff
  neuron-cache path"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-cache",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for group in (
        cache_list,
        cache_tui,
        cache_watch,
        cache_stats,
        cache_why,
        cache_prune,
        cache_locks,
        cache_verify,
        cache_marks,
        cache_archive,
        cache_sync,
        cache_neff,
    ):
        group.add(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    # A big cache is a million objects without cycles: by default the garbage collector traverses them again and again.
    gc.set_threshold(100_000, 20, 100)
    code: int = arguments.run(arguments)
    return code
