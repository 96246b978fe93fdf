"""The compile cache's log lines on stderr, as the real wrapper prints them (compile-runtime.md section 1.5)."""

from __future__ import annotations

import logging
import sys

from neurontools.cache.logs import WrapperFormatter, logger


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
