"""Log lines of the compile cache on stderr, in the shape that users grep for (compile-runtime.md section 1.5)."""

from __future__ import annotations

import logging
import os
import re
import sys
from datetime import datetime

_LOGGER = "neurontools.cache"
_LEVEL_FLAG = re.compile(r"--log_level[= ]([A-Za-z]+)")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:06d}"
        tag = getattr(record, "tag", "NEURON_CC_WRAPPER")
        return f"{stamp}:  {os.getpid()}  {record.levelname} ||{tag}||: {record.getMessage()}"


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at the time of the line."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


def show_cache_lines() -> None:
    """Print the cache's log lines from now on, from the level that `--log_level` in NEURON_CC_FLAGS names."""
    logger = logging.getLogger(_LOGGER)
    if any(isinstance(handler, _Stderr) for handler in logger.handlers):
        return
    handler = _Stderr()
    handler.setFormatter(_Lines())
    logger.addHandler(handler)
    logger.setLevel(log_level(os.environ.get("NEURON_CC_FLAGS", "")))
    logger.propagate = False


def log_level(flags: str) -> int:
    """Return the level that compiler flags ask for; INFO is the default.

    Args:
        flags: the value of NEURON_CC_FLAGS.
    """
    found = _LEVEL_FLAG.search(flags)
    names = logging.getLevelNamesMapping()
    return names.get(found.group(1).upper(), logging.INFO) if found else logging.INFO
