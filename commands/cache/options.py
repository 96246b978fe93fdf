"""Options, questions and output that the verbs of neuron-cache share."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, TypeVar

from neurontools.commands import console
from neurontools.commands.parsing import add_old_spelling
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.location import Location
    from neurontools.commands.parsing import Verbs

    Run = Callable[[argparse.Namespace], int]


_T = TypeVar("_T")
_LEFT_OUT_SHOWN = 10


def add_verb(
    verbs: Verbs, name: str, run: Run, *, words: str, description: str, examples: str, json: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of a new verb with the options that all verbs have."""
    parser = verbs.add_parser(
        name,
        help=words,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    option = parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="cache directory or s3://BUCKET/PREFIX (default: NEURON_CC_FLAGS --cache_dir, NEURON_COMPILE_CACHE_URL, "
        "/var/tmp/neuron-compile-cache)",
    )
    add_old_spelling(parser, option, "--cache_dir")
    if json:
        parser.add_argument(
            "--json", action="store_true", help="print JSON (sizes in bytes, times in Unix seconds)"
        )
    return parser


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add `--filter`, which takes any number of conditions."""
    parser.add_argument(
        "-f",
        "--filter",
        nargs="+",
        action="extend",
        default=[],
        metavar="EXPR",
        help="only entries that match every condition: state=failed size>1GB used>30d compiler~2.16 (quote < and >)",
    )


def add_confirmation(
    parser: argparse.ArgumentParser, dry_run: str = "print what would be removed, change nothing"
) -> None:
    """Add `--dry-run` and `-y`."""
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def exclude_each_other(arguments: argparse.Namespace, *names: str) -> None:
    """Reject options that exclude each other.

    Raises:
        UsageError: more than one of them is given.
    """
    given = [name for name in names if getattr(arguments, name) not in (None, False, [])]
    if len(given) > 1:
        words = " and ".join(f"--{name.replace('_', '-')}" for name in given[:2])
        raise UsageError(f"{words} exclude each other", "leave one of them out")


def location(arguments: argparse.Namespace, *, remote: bool = False) -> Location:
    """Return the cache that the command line or a setting names.

    Args:
        arguments: the command line.
        remote: whether the verb works on a cache in a bucket.

    Raises:
        UsageError: the setting that applies is invalid, or names a bucket where the verb needs a directory.
    """
    from neurontools.cache.location import resolve

    found = resolve(url=arguments.cache_dir)
    if found.is_remote and not remote:
        raise UsageError(
            f"{arguments.verb} needs a local cache, but the compile cache is {found.root} ({found.source})",
            f"copy it with 'neuron-cache copy --from {found.root} --to DIR', then add --cache-dir DIR",
        )
    return found


def option(arguments: argparse.Namespace, name: str, parse: Callable[[str], _T]) -> _T | None:
    """Return the value of an option, None where it is not given.

    Raises:
        UsageError: the value is invalid; the message names the option.
    """
    text = getattr(arguments, name)
    try:
        return None if text is None else parse(text)
    except UsageError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error.message}", error.remedy) from error


def show_left_out(rows: list[tuple[str, str]]) -> None:
    """Warn about entries that were skipped, with the reason of each; at most ten."""
    from neurontools.base.text import printable

    for path, reason in rows[:_LEFT_OUT_SHOWN]:
        console.warn(printable(f"left out {path}: {reason}"))
    if len(rows) > _LEFT_OUT_SHOWN:
        console.warn(f"and {len(rows) - _LEFT_OUT_SHOWN} more; --json lists them")


def confirmed(verb: str, what: str, question: str) -> bool:
    """Show what will be removed and ask for confirmation on stderr; no answer means no.

    Raises:
        UsageError: stdin is not a terminal.
    """
    console.err(what)
    if not sys.stdin.isatty():
        raise UsageError(
            f"{verb} needs a confirmation, and stdin is not a terminal", "add -y, or --dry-run to list only"
        )
    console.err(f"{question} [y/N] ", end="")
    answer = b""
    try:
        answer = sys.stdin.buffer.readline()
    finally:
        # After Ctrl-C or Ctrl-D the next line would begin behind the question.
        if not answer.endswith(b"\n"):
            console.err("")
    return answer.strip().lower() in {b"y", b"yes"}


def width() -> int | None:
    """Return the width of the terminal, None in a pipe."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
