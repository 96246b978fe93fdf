"""All output of commands to stdout and stderr, progress lines, and all exit codes.

Text passes `base.text.printable_lines` here, so nothing that a file or another user names can control a terminal.

Exit codes: 0 success, 1 failed, 2 usage error, 3 no machine, 4 daemon error, 130 interrupted, or the child's own.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Self

from neurontools import env
from neurontools.base.text import format_error, printable, printable_lines
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence


INTERRUPTED = 130

_STDERR = 2
_LONGEST_POLL_S = 3600.0


def out(text: str, *, styled: bool = False) -> None:
    """Write data and a newline to stdout; `styled` text may have colours of ours."""
    with _writing():
        sys.stdout.write(printable_lines(text, styled=styled) + "\n")


def out_now(text: str, *, styled: bool = False) -> None:
    """Write data and a newline to stdout as UTF-8, and flush; `styled` text may have colours of ours."""
    bytes_now((printable_lines(text, styled=styled) + "\n").encode("utf-8", "backslashreplace"))


def bytes_now(data: bytes) -> None:
    """Write bytes to stdout unchanged, and flush."""
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def pause(seconds: float) -> None:
    """Wait, but end the command as soon as the reader of its output is gone.

    Raises:
        BrokenPipeError: the reader is gone.
    """
    from select import poll

    output = poll()
    output.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
    while True:
        part = min(seconds, _LONGEST_POLL_S)
        if output.poll(part * 1000):
            raise BrokenPipeError
        seconds -= part
        if seconds <= 0:
            return


def err(text: str, *, end: str = "\n", styled: bool = False) -> None:
    """Write a message to stderr, or nowhere if stderr is full; `styled` text may have colours of ours."""
    try:
        sys.stderr.write(printable_lines(text, styled=styled) + end)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def notice(text: str) -> None:
    """Write a message to stderr if it is a terminal."""
    if sys.stderr.isatty():
        err(text)


def warn(text: str) -> None:
    """Write a warning of one line to stderr."""
    err(f"warning: {printable(text)}")


def _warn_of_settings() -> None:
    """Report problems of the settings file on a terminal, if it was read."""
    for line in env.config_problems():
        notice(f"warning: {line}")


def fail(error: NeuronToolsError) -> int:
    """Write an error and its remedy to stderr and return its exit code."""
    err(format_error(error), end="", styled=error.has_lines)
    return error.exit_code


def colour_wanted() -> bool:
    """Return whether stdout gets colours: NO_COLOR first, then FORCE_COLOR, then a terminal that is not dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def has_screen() -> bool:
    """Return whether a full-screen program can draw: on a terminal, through stderr, unless the terminal is dumb."""
    return not screen_obstacle()


def screen_obstacle() -> str:
    """Return why a full-screen program cannot draw; "" if it can."""
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return "not a terminal"
    term = os.environ.get("TERM", "")
    return {"": "TERM is not set", "dumb": "TERM is dumb"}.get(term, "")


def run(body: Callable[[], int], *, about_settings: bool = False) -> int:
    """Run a command's body and return an exit code however it ends.

    Args:
        body: does the work and returns the exit code.
        about_settings: the body itself reports problems of the settings file.

    A `NeuronToolsError` is printed as one line and a hint; `--debug` on the command line adds a traceback. A reader
    that closes the pipe (`| head`) is not an error.
    """
    _open_closed_streams()
    _write_every_character()
    try:
        code = body()
        if not about_settings:
            _warn_of_settings()
        with _writing():
            sys.stdout.flush()
    except NeuronToolsError as error:
        if _debugging():
            return _trace()
        _warn_of_settings()
        return fail(error)
    except SystemExit:  # of argparse: help, the version, or a wrong command line
        if _is_written():
            raise
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return 0
    except OSError as error:
        if _debugging():
            return _trace()
        return fail(_of_system(error))
    return code


def command(
    build_parser: Callable[[], ArgumentParser],
    body: Callable[[Namespace], int] | None = None,
    *,
    about_settings: bool = False,
) -> Callable[..., int]:
    """Return the `main` of a command: it takes the words of the command line and returns the exit code.

    Args:
        build_parser: returns the command's parser.
        body: runs a parsed command line; None for that of the verb (`run` among its defaults).
        about_settings: as of `run`.
    """

    def run_command(argv: Sequence[str] | None) -> int:
        arguments = parse(build_parser(), argv)
        return int((body or arguments.run)(arguments))

    def main(argv: Sequence[str] | None = None) -> int:
        return run(lambda: run_command(argv), about_settings=about_settings)

    return main


def exit_on_sigterm() -> None:
    """End by SIGTERM as by Ctrl-C, with exit code 143: open files are closed first."""
    import signal

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    import json

    out(json.dumps(value, indent=2))


def show(as_json: bool, value: Callable[[], object], text: Callable[[], str]) -> int:
    """Print a result as JSON or as text, of which only one is made; return exit code 0."""
    if as_json:
        print_json(value())
    else:
        out(text())
    return 0


def _trace() -> int:
    import traceback

    err(traceback.format_exc(), end="")
    return 1


def _of_system(error: OSError) -> NeuronToolsError:
    if error.filename is None and isinstance(error, FileNotFoundError) and _is_nowhere():
        return NeuronToolsError("the working directory does not exist", "change to an existing directory")
    return NeuronToolsError(f"{error.filename or 'system call'}: {error.strerror or error}")


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _is_written() -> bool:
    try:
        with _writing():
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except NeuronToolsError as error:
        fail(error)
        return False
    return True


def _debugging() -> bool:
    # What follows `--` belongs to the program that neuron-run starts.
    words = sys.argv[1:]
    return "--debug" in (words[: words.index("--")] if "--" in words else words)


def _open_closed_streams() -> None:
    # The next opened file would get a closed descriptor. A read-only stdout fails at the first
    # write, like a closed one.
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == _STDERR else os.O_RDONLY)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def _write_every_character() -> None:
    # File names that are not valid text are written as their bytes; characters outside the encoding are escaped.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise NeuronToolsError(f"cannot write the output: {error.strerror or error}") from error


def _discard_output() -> None:
    # Buffered output would fail again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(parser: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """Parse a command line after adding what every command has: `--debug`, `--version`, and `help COMMAND` for verbs.

    Sub-commands take `--debug` too, because it is usually added at the end of the line.

    Raises:
        UsageError: the command line is invalid.
    """
    from functools import partial

    from neurontools.commands import parsing

    words = list(sys.argv[1:] if argv is None else argv)
    add_common_options(parser)
    for verb in parsing.family(parser):
        verb.print_help = partial(_print_help, parser, verb)  # type: ignore[method-assign]
    if words[:1] == ["help"] and parsing.verbs(parser):
        words = [*words[1:], "--help"]
    return parsing.parse(parser, words)


def add_common_options(parser: ArgumentParser) -> None:
    """Add the options that every command has."""
    from argparse import SUPPRESS

    from neurontools import __version__
    from neurontools.commands import parsing

    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("-V", "--version", action="version", version=f"%(prog)s {__version__}")
    for verb in parsing.family(parser):
        if "--debug" not in verb._option_string_actions:  # noqa: SLF001  argparse tells it nowhere else
            verb.add_argument(
                "--debug", action="store_true", default=SUPPRESS, help="show the traceback of an error"
            )


def _print_help(root: ArgumentParser, parser: ArgumentParser, _file: object = None) -> None:
    from neurontools.commands.help_text import complete_help

    complete_help(root)
    print_help_text(parser.format_help().removesuffix("\n"))


def print_help_text(text: str) -> None:
    """Print a help text, with colours on a terminal."""
    styled = colour_wanted()
    if styled:
        from neurontools.commands.help_text import paint_help

        text = paint_help(text)
    out(text, styled=styled)


_DELAY_S = 1.0
_PERIOD_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """One line on a terminal that is rewritten in place and cleared at the end.

    Quiet in a pipe, with `enabled=False`, and for the first `delay_s` seconds, so that quick work never flickers.
    """

    def __init__(
        self, *, enabled: bool = True, delay_s: float = _DELAY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.is_enabled = enabled and sys.stderr.isatty()
        """Whether it will ever show anything."""
        self._next_s = clock() + delay_s if self.is_enabled else float("inf")
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show a text, at most ten times a second."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        from shutil import get_terminal_size

        columns = get_terminal_size().columns - 1
        sys.stderr.write(f"{_CLEAR}{printable(text)[:columns]}")
        sys.stderr.flush()
        self._is_shown = True
        self._next_s = now_s + _PERIOD_S

    def count(self, action: str, done: int, total: int | None = None, unit: str = "") -> None:
        """Show how far a piece of work is: `listing 1200 of 5000 entries`."""
        amount = f"{done}" if total is None else f"{done} of {total}"
        self.show(" ".join(word for word in (action, amount, unit) if word))

    def clear(self) -> None:
        """Remove the line, before other output or at the end."""
        if self._is_shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class ProgressCounter(ProgressLine):
    """A progress line that counts: `counter(1200, 5000)` shows `listing 1200 of 5000 entries`."""

    def __init__(self, action: str, unit: str) -> None:
        super().__init__()
        self._action = action
        self._unit = unit

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show how many are done, and of how many where that is known."""
        self.count(self._action, done, total, self._unit)
