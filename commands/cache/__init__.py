"""neuron-cache: inspect and prune the compile cache. Each module holds a group of verbs, loaded with the parser."""

from __future__ import annotations

import argparse
import gc

from neurontools.commands import console

_EPILOG = """examples:
  neuron-cache ls --sort size --limit 10
  neuron-cache ls --filter state=failed 'used>30d'
  neuron-cache show 92195234
  neuron-cache stats
  neuron-cache tui
  neuron-cache why
  neuron-cache prune --max-size 20GB --older-than 30d --dry-run
  neuron-cache prune --failed --interrupted -y
  neuron-cache locks
  neuron-cache verify --fix
  neuron-cache pin 92195234
  neuron-cache copy --to bert.tar.zst --filter 'name~bert'
  neuron-cache copy --from s3://bucket/prefix

exit codes: 0 success, 1 failed or a problem was found, 2 usage error, 130 interrupted"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    from neurontools.commands.cache import checks, copy, entries, removal

    parser = argparse.ArgumentParser(
        prog="neuron-cache",
        description="Inspect the compile cache and keep it small. No daemon is needed or started.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for add in (
        entries.add_list,
        entries.add_browser,
        entries.add_stats,
        checks.add_why,
        removal.add_prune,
        removal.add_locks,
        checks.add_verify,
        entries.add_pins_and_tags,
        copy.add_copy,
    ):
        add(verbs)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    # A big cache is a million objects without cycles: by default the garbage collector traverses them again and again.
    gc.set_threshold(100_000, 20, 100)
    code: int = arguments.run(arguments)
    return code


main = console.command(build_parser, _run)
