"""The compile cache's log lines on stderr, as the real wrapper prints them (compile-runtime.md section 1.5).

Ours is one line at the end of a program that compiled more than its first steps need; a person on a terminal sees it.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys

from neurontools.cache.location import DEFAULT_ROOT
from neurontools.cache.logs import WrapperFormatter, logger
from neurontools.xla import metrics

# The first step and the second one, in which an optimizer has its state, are new graphs in every program.
_USUAL_COMPILES = 2


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at the time of the line."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def show_cache_lines() -> None:
    """Print the cache's log lines from now on, INFO and above unless a level is set already."""
    if any(isinstance(handler, _Stderr) for handler in logger.handlers):
        return
    handler = _Stderr()
    handler.setFormatter(WrapperFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def tell_at_exit(root: str) -> None:
    """Tell of compiles when the program ends; see `tell_of_compiles`."""
    atexit.unregister(tell_of_compiles)
    atexit.register(tell_of_compiles, root)


def tell_of_compiles(root: str) -> None:
    """Say on a terminal how many graphs this program compiled into a cache, where that is more than usual."""
    compiled = metrics.counters().get("UncachedCompile", 0)
    if compiled > _USUAL_COMPILES and os.environ.get("LOCAL_RANK", "0") == "0" and sys.stderr.isatty():
        where = "" if root == DEFAULT_ROOT else f" --cache-dir {shlex.quote(root)}"
        sys.stderr.write(f"{compiled} graphs compiled; why: neuron-cache why --last{where}\n")
