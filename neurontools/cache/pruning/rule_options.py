"""How users set the rules of a removal: options of `prune` and settings of the policy. Every parser of neuron-cache loads this."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools import env
from neurontools.base.units import parse_age, parse_size
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def parse_count(text: str) -> int:
    """Return a number of entries.

    Raises:
        UsageError: not a number.
    """
    if not text.strip().isascii() or not text.strip().isdigit():
        raise UsageError(f"invalid number of entries {text!r}", "use for example 10")
    return int(text)


class RuleOption(NamedTuple):
    """How users set a rule: a field of `PruneRules`, its option, and what the option takes; "" for a switch.

    `setting` is the environment variable of the policy; a switch is a word of `cache_remove`.
    """

    field: str
    flag: str
    help: str
    metavar: str = ""
    parse: Callable[[str], int | float] = parse_count
    setting: str = ""

    @property
    def name(self) -> str:
        """The option without dashes."""
        return self.flag.removeprefix("--")


RULES = (
    RuleOption(
        "max_bytes",
        "--max-size",
        "remove the least recently used entries until the rest fits",
        "SIZE",
        parse_size,
        env.CACHE_MAX_SIZE,
    ),
    RuleOption(
        "older_than_s",
        "--older-than",
        "remove entries not used for AGE (30d, 12h)",
        "AGE",
        parse_age,
        env.CACHE_OLDER_THAN,
    ),
    RuleOption(
        "keep_last",
        "--keep-last",
        "keep the N most recently used finished entries",
        "N",
        parse_count,
        env.CACHE_KEEP_LAST,
    ),
    RuleOption("failed", "--failed", "remove cached failures"),
    RuleOption("interrupted", "--interrupted", "remove leftovers of killed compiles"),
    RuleOption("incomplete", "--incomplete", "remove graphs that were never compiled"),
    RuleOption("old_compilers", "--old-compilers", "remove entries of other compiler versions"),
)
"""The rules of options and settings, in the order of help."""
