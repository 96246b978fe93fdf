"""Log lines in the format of the real wrapper."""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime

from neurontools.base.text import printable_lines

CACHE = "NEURON_CACHE"
WRAPPER = "NEURON_CC_WRAPPER"
VERBOSE = "NEURON_CC_VERBOSE"
logger = logging.getLogger("neurontools.cache")


class WrapperFormatter(logging.Formatter):
    """Formats a record as `2023-08-25 21:51:36.000433:  7592  INFO ||NEURON_CACHE||: text`.

    The fraction is the milliseconds in six digits, as the real wrapper prints it. The tag comes from the record's
    `tag` attribute.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006  local, as there
        tag = getattr(record, "tag", CACHE)
        head = f"{moment}.{int(record.msecs):06d}: {record.process or 0:>5}  {record.levelname}"
        return f"{head} ||{tag}||: {printable_lines(record.getMessage())}"


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        short = getattr(record, "short", None)
        if short is None or not sys.stderr.isatty() or os.environ.get(VERBOSE) == "1":
            short = self.format(record)
        if short:
            sys.stderr.write(printable_lines(short) + "\n")


def show_cache_lines() -> None:
    """Print the cache's log lines to stderr, from INFO on unless a level is set already."""
    if any(isinstance(handler, _Stderr) for handler in logger.handlers):
        return
    handler = _Stderr()
    handler.setFormatter(WrapperFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def log(level: int, tag: str, text: str, short: str | None = None) -> None:
    """Log one line of the wrapper under a tag.

    Args:
        level: of the logger.
        tag: CACHE or WRAPPER.
        text: the line.
        short: what a terminal shows instead, unless NEURON_CC_VERBOSE=1 is set: "" for nothing, None for the line.
    """
    extra = {"tag": tag} if short is None else {"tag": tag, "short": short}
    logger.log(level, "%s", text, extra=extra)


def apply_level(name: str) -> None:
    """Set the level that `--log_level` in NEURON_CC_FLAGS names; other names change nothing."""
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is not None:
        logger.setLevel(level)
