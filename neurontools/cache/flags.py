"""NEURON_CC_FLAGS: flags of the wrapper and of the compiler, and the hash in an entry's name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLAGS_VARIABLE = "NEURON_CC_FLAGS"
_WITH_VALUE = frozenset({"--cache_dir", "--log_level", "--compile_workdir"})
_ALONE = frozenset({"--no_cache", "--retry_failed_compilation", "--dump"})


@dataclass(frozen=True, slots=True)
class FlagSettings:
    """Parsed NEURON_CC_FLAGS. Only `compiler` is passed to the compiler and hashed."""

    compiler: tuple[str, ...] = ()
    cache_dir: str = ""
    log_level: str = ""
    no_cache: bool = False
    retry_failed: bool = False


def parse_environment_flags(environ: Mapping[str, str]) -> FlagSettings:
    """Return the parsed NEURON_CC_FLAGS of an environment.

    Raises:
        UsageError: a quote is not closed.
    """
    text = environ.get(FLAGS_VARIABLE, "")
    return parse_flags(text) if text.strip() else FlagSettings()


def parse_flags(text: str) -> FlagSettings:
    """Return a parsed flags string; values may follow `=` or a blank.

    Raises:
        UsageError: a quote is not closed.
    """
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot read {FLAGS_VARIABLE}: {error}", "close the quote") from error
    compiler: list[str] = []
    wrapper: dict[str, str] = {}
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if name in _WITH_VALUE:
            if not equals and position < len(words):
                value = words[position]
                position += 1
            wrapper[name] = value
        elif name in _ALONE:
            wrapper[name] = "1"
        else:
            compiler.append(words[position - 1])
    return FlagSettings(
        compiler=tuple(compiler),
        cache_dir=wrapper.get("--cache_dir", ""),
        log_level=wrapper.get("--log_level", ""),
        no_cache="--no_cache" in wrapper,
        retry_failed="--retry_failed_compilation" in wrapper,
    )


def flags_hash(flags: Sequence[str]) -> str:
    """Return the 8 hex digits that name a list of flags: the rule since about version 2.15, order-sensitive."""
    return _md5(json.dumps(list(flags)))


def old_flags_hash(flags: Sequence[str]) -> str:
    """Return the 8 hex digits by the rule of versions up to about 2.12."""
    return _md5(" ".join(flags))


class FlagsRule(StrEnum):
    """The rule by which the flags hash in a directory's name matches the flags stored in it."""

    NEW = "md5 of JSON"
    OLD = "md5 of words"
    NONE = "no rule"


def flags_rule(module: str, flags: Sequence[str]) -> FlagsRule:
    """Return the rule that turns stored flags into the hash after the plus sign of a module's name."""
    stored = module.rpartition("+")[2]
    if stored == flags_hash(flags):
        return FlagsRule.NEW
    return FlagsRule.OLD if stored == old_flags_hash(flags) else FlagsRule.NONE


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]
