"""Log lines of the cache on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache.flags import FlagSettings, flags_hash, old_flags_hash, parse_flags
from neurontools.cache.logs import VERBOSE, WRAPPER, log, logger, show_cache_lines
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Paths published in the AWS Neuron documentation and in public issues: flags, hash by the old rule, hash by the new rule.
PUBLISHED = [
    ([], "d41d8cd9", "d7517139"),
    (["--model-type=transformer"], "abb26765", "cc298dfa"),
    (["--model-type=transformer", "--auto-cast=none"], "2c2d707e", "d7cde3b5"),
    (["--target=trn1"], "76a333c7", "e30acd3a"),
    (["--target=trn1", "--model-type=transformer"], "2743d61b", "3cc9a3cb"),
    (["--target=trn2"], None, "fad94d7c"),
    (["--target=inf2"], None, "b4f3b477"),
    (["--model-type=transformer", "--auto-cast=none", "--execute-repetition=1"], None, "39f12043"),
]


@pytest.mark.parametrize(("flags", "old", "new"), PUBLISHED)
def test_hashes_are_those_of_published_paths(flags: list[str], old: str | None, new: str) -> None:
    assert flags_hash(flags) == new
    assert old in {None, old_flags_hash(flags)}


def test_the_order_of_flags_matters() -> None:
    assert flags_hash(["-a", "-b"]) != flags_hash(["-b", "-a"])


def test_wrapper_flags_never_reach_the_compiler() -> None:
    settings = parse_flags(
        "--cache_dir=/c --no_cache --model-type=transformer --retry_failed_compilation --log_level=INFO "
        "--dump --compile_workdir /w -O1"
    )
    assert settings == FlagSettings(
        compiler=("--model-type=transformer", "-O1"),
        cache_dir="/c",
        log_level="INFO",
        no_cache=True,
        retry_failed=True,
    )


def test_a_value_may_follow_a_blank_and_hold_blanks() -> None:
    assert parse_flags("--cache_dir '/a b' --x='1 2'") == FlagSettings(("--x=1 2",), cache_dir="/a b")


@given(st.lists(st.text("ab-=_ '\"\\$*#\t", max_size=12)))
def test_any_quoted_flags_come_back(words: list[str]) -> None:
    import shlex

    wrapper = ("--cache_dir", "--no_cache", "--retry", "--log_level", "--dump", "--compile_workdir")
    flags = [word for word in words if not word.startswith(wrapper)]
    assert parse_flags(shlex.join(flags)).compiler == tuple(flags)


def test_an_open_quote_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="NEURON_CC_FLAGS"):
        parse_flags("--x='1")


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
