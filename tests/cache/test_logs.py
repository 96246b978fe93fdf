"""Log lines of the cache on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.cache.logs import VERBOSE, WRAPPER, log, logger, show_cache_lines

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cache_logger() -> Iterator[logging.Logger]:
    kept = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.handlers[:], logger.propagate = kept[0], kept[2]
    logger.setLevel(kept[1])


def test_cache_lines_go_to_stderr_in_the_real_shape_and_only_once(
    cache_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    show_cache_lines()
    show_cache_lines()
    cache_logger.info("Using a cached neff at /x/model.neff", extra={"tag": "NEURON_CC_WRAPPER"})
    cache_logger.debug("not shown")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO ||NEURON_CC_WRAPPER||: Using a cached neff at /x/model.neff")


def test_a_level_that_is_set_is_kept(
    cache_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    cache_logger.setLevel(logging.ERROR)
    show_cache_lines()
    cache_logger.info("quiet")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_the_short_line_unless_the_long_one_is_asked_for(
    cache_logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_cache_lines()

    def say() -> str:
        log(logging.INFO, WRAPPER, "Call compiler with cmd: neuronx-cc", short="Compiling MODULE_1")
        log(logging.INFO, WRAPPER, "Failed compilation", short="")
        return capsys.readouterr().err

    assert "||NEURON_CC_WRAPPER||: Call compiler" in say()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert say() == "Compiling MODULE_1\n"
    monkeypatch.setenv(VERBOSE, "1")
    assert len(say().splitlines()) == 2
