"""What is fuzzed: a parser, valid inputs of it, and how it is called."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.fuzz.mutation import Format

EXIT_CODES = frozenset({0, 1, 2, 3, 4})
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class WrongOutputError(AssertionError):
    """A program printed what it must not print."""


@dataclass(frozen=True)
class Target:
    """A parser.

    Args:
        name: `group/parser`; also the directory of its inputs in the corpus.
        form: what an input is made of.
        seeds: returns valid inputs.
        check: gives an input to the parser. `NeuronToolsError` and OSError refuse it; every other exception is a finding.
        words: what a text may contain.
        limit_s: CPU seconds that one input may take.
        limit_bytes: memory that one input may take.
        share: how many of the inputs of a run this target gets; less than 1 where an input takes long.
    """

    name: str
    form: Format
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], object]
    words: tuple[str, ...] = ()
    limit_s: float = 3.0
    limit_bytes: int = 512 << 20
    share: float = 1.0


def run(main: Callable[[Sequence[str]], int], *argv: str, stdin: bytes = b"", is_json: bool = False) -> str:
    """Run a command in this process and return its standard output.

    Args:
        main: the command's function.
        argv: its arguments.
        stdin: its standard input.
        is_json: whether standard output must be JSON documents, one a line or a single one.

    Raises:
        WrongOutputError: it printed control characters, or text that is not JSON; or its exit code is unknown.
    """
    streams = [
        io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="\n") for data in (stdin, b"", b"")
    ]
    saved = sys.stdin, sys.stdout, sys.stderr, sys.argv
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.argv = ["fuzz", *argv]
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdin, sys.stdout, sys.stderr, sys.argv = saved
    out, err = (_written(stream) for stream in streams[1:])
    if code not in EXIT_CODES:
        raise WrongOutputError(f"exit code {code}")
    _check_characters(out + err)
    if is_json and out:
        _check_json(out)
    return out


def _written(stream: io.TextIOWrapper) -> str:
    with contextlib.suppress(ValueError):
        stream.flush()
    data = stream.detach().getvalue()  # type: ignore[attr-defined]
    return str(data.decode("utf-8", "surrogateescape"))


def _check_characters(text: str) -> None:
    found = _CONTROL.search(text)
    if found:
        near = text[max(0, found.start() - 30) : found.end() + 30]
        raise WrongOutputError(f"printed a control character: U+{ord(found[0]):04X} in {near!r}")


def _check_json(text: str) -> None:
    def refuse(word: str) -> NoReturn:
        raise WrongOutputError(f"printed {word} in JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError:
        for line in text.splitlines():
            try:
                json.loads(line, parse_constant=refuse)
            except json.JSONDecodeError as error:
                raise WrongOutputError(f"printed what is not JSON: {line[:80]!r}") from error


@contextlib.contextmanager
def logged_errors_raised(name: str) -> Iterator[None]:
    """Raise the first exception that a logger recorded with its traceback."""
    recorder = _Recorder()
    logger = logging.getLogger(name)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(recorder)
    try:
        yield
    finally:
        logger.removeHandler(recorder)
        logger.propagate = propagate
    if recorder.error is not None:
        raise recorder.error


class _Recorder(logging.Handler):
    error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self.error is None:
            self.error = record.exc_info[1]
