"""The process that runs inputs, with limits of time and memory: `python tests/fuzz/worker.py '{"targets": ...}'`.

Writes one JSON object a line to standard output: findings, and the number of inputs of a target at its end. An input
that neither ends nor can be interrupted ends the process, after the stack was written to standard error.
"""

from __future__ import annotations

import base64
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

import neurontools
from neurontools.errors import NeuronToolsError

# At the end, so that the installed package is found and the checkout's is not.
sys.path.append(str(Path(__file__).parents[2]))

from tests.fuzz import targets
from tests.fuzz.mutation import mutate
from tests.fuzz.shrinking import shrink
from tests.fuzz.target import WrongOutputError

if TYPE_CHECKING:
    from tests.fuzz.target import Target

STUCK_S = 60
"""Seconds after which an input that waits or cannot be interrupted ends the process."""

CORPUS = Path(__file__).parent / "corpus"
_PACKAGE = str(Path(neurontools.__file__).parent) + "/"
_SHRINK_AT_MOST_S = 6.0


class TooSlowError(BaseException):
    """An input takes more CPU time than it may; no handler of a program catches it."""


@dataclass(frozen=True)
class Failure:
    """How an input failed: the exception and the innermost function of the project."""

    kind: str
    site: str
    text: str


def main() -> None:
    """Run the inputs that the command line names, and those of the corpus."""
    order = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGPROF, _interrupt)
    threading.excepthook = _remember_thread_error
    for target in targets.load():
        if target.name in order["targets"]:
            for message in _Session(target, order).messages():
                out.write(json.dumps(message) + "\n")
                out.flush()


class _Session:
    """The inputs of one target."""

    def __init__(self, target: Target, order: dict[str, Any]) -> None:
        self._target = target
        self._order = order
        self._seen: Counter[tuple[str, str]] = Counter()

    def messages(self) -> Any:
        """Run everything and yield what is to be reported."""
        target, seed = self._target, self._order["seed"]
        first = self._order["first"] if target.name == self._order["targets"][0] else 0
        count = max(1, round(self._order["count"] * target.share))
        yield {"target": target.name, "at": "seeds"}
        seeds = target.seeds()
        for data in seeds:
            target.check(data)  # a seed that fails, or is refused, is a mistake of the target
        _limit_memory(target.limit_bytes)
        if self._order["corpus"]:
            for path in corpus(target):
                yield {"target": target.name, "at": path.name}
                yield from self._try(path.read_bytes(), path.name)
        for number in range(first, count):
            if number % 50 == 0:
                yield {"target": target.name, "at": number}
            random = Random(f"{seed}/{target.name}/{number}")
            yield from self._try(mutate(seeds, target.form, target.words, random), number)
        _limit_memory(None)
        yield {"target": target.name, "inputs": max(0, count - first)}

    def _try(self, data: bytes, number: int | str) -> Any:
        failure = attempt(self._target, data)
        if failure is None:
            return
        key = failure.kind, failure.site
        self._seen[key] += 1
        if self._seen[key] > 1:
            return
        if self._order["shrink"]:
            data = shrink(
                data, self._target.form, lambda shorter: self._fails(shorter, key), _SHRINK_AT_MOST_S
            )
            failure = attempt(self._target, data) or failure
        yield {
            "target": self._target.name,
            "kind": failure.kind,
            "site": failure.site,
            "text": failure.text,
            "number": number,
            "data": base64.b64encode(data).decode(),
        }

    def _fails(self, data: bytes, key: tuple[str, str]) -> bool:
        failure = attempt(self._target, data)
        return failure is not None and (failure.kind, failure.site) == key


def corpus(target: Target) -> list[Path]:
    """Return the files of the corpus that were found by, or written for, a target."""
    return sorted((CORPUS / target.name).glob("*"))


def attempt(target: Target, data: bytes) -> Failure | None:
    """Give an input to a parser and return how it failed, None where it was read or refused."""
    _thread_errors.clear()
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, target.limit_s)
    try:
        target.check(data)
    except (NeuronToolsError, OSError) as error:
        failure = _failure(error) if isinstance(error, RecursionError) else None
    except TooSlowError as error:
        failure = Failure("TooSlow", _site(error), f"more than {target.limit_s:g} s")
    except MemoryError as error:
        failure = Failure("MemoryError", _site(error), f"more than {target.limit_bytes >> 20} MiB")
    except (Exception, SystemExit) as error:
        failure = _failure(error)
    else:
        failure = None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    if failure is None and _thread_errors:
        failure = _failure(_thread_errors[0])
    if failure is not None:
        gc.collect()
    return failure


def _failure(error: BaseException) -> Failure:
    text = f"{error}".encode("ascii", "backslashreplace").decode()
    site = text.partition(":")[0] if isinstance(error, WrongOutputError) else _site(error)
    return Failure(type(error).__name__, site, text[:200])


def _site(error: BaseException) -> str:
    """Return the innermost function of the package; of all, where none of it was running."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([frame for frame in frames if frame.filename.startswith(_PACKAGE)] or list(frames))[-1]
    return f"{frame.filename.removeprefix(_PACKAGE)}:{frame.name}"


def _limit_memory(more_bytes: int | None) -> None:
    limit = resource.RLIM_INFINITY
    if more_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


_thread_errors: list[BaseException] = []


def _remember_thread_error(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _thread_errors.append(args.exc_value)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise TooSlowError


if __name__ == "__main__":
    main()
