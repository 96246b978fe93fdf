"""Everything that a command writes to stdout and stderr, and every exit code: one place.

Exit codes: 0 fine, 1 failed, 2 usage, 3 no machine, 4 daemon trouble, 130 interrupted, or the child's own.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

INTERRUPTED = 130
USAGE = 2


def out(text: str) -> None:
    """Write data to stdout, a newline after it."""
    sys.stdout.write(text + "\n")


def notice(text: str) -> None:
    """Tell a person on a terminal what is going on; silent in a pipe."""
    if sys.stderr.isatty():
        sys.stderr.write(text + "\n")


def warn(text: str) -> None:
    """Write a warning to stderr."""
    sys.stderr.write(f"warning: {text}\n")


def fail(error: NeuronToolsError) -> int:
    """Write an error and its remedy to stderr and return its exit code."""
    sys.stderr.write(f"error: {error.message}\n")
    if error.remedy:
        sys.stderr.write(f"hint: {error.remedy}\n")
    return error.exit_code


def colour_wanted(choice: str = "auto") -> bool:
    """Return whether stdout gets colours: `--color` first, then NO_COLOR, FORCE_COLOR, then the terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def run(body: Callable[[], int]) -> int:
    """Run a command's body and turn every way it can end into an exit code.

    A `NeuronToolsError` is one line and a hint; a traceback appears only with `--debug` on the command line. A reader
    that went away (`| head`) is no error.
    """
    try:
        code = body()
        sys.stdout.flush()
    except NeuronToolsError as error:
        if "--debug" in sys.argv[1:]:
            raise
        return fail(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if "--debug" in sys.argv[1:]:
            raise
        return fail(NeuronToolsError(f"{error.filename or 'system call'}: {error.strerror or error}"))
    return code


def parse(parser: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """Parse a command line after adding what every command has: `--debug` and `--version`."""
    from neurontools import __version__

    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser.parse_args(argv)
