"""Which entries a lookup on this computer could hit: those of our compiler with the flags that NEURON_CC_FLAGS says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.cache.flags import read_environment_flags
from neurontools.compiler.options import names_flag
from neurontools.compiler.version import COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.cache.entry_reader import Entry

# What a lookup adds by the device, where the user's flags do not name it.
_ADDED = ("--target", "--logical-nc-config")


def misfit(environ: Mapping[str, str] | None = None) -> Callable[[Entry], str]:
    """Return what says why an entry cannot be hit here, "" for one that can.

    Args:
        environ: environment, None for this process's.

    Raises:
        UsageError: a quote in NEURON_CC_FLAGS is not closed.
    """
    wanted = read_environment_flags(os.environ if environ is None else environ).compiler
    added = tuple(f"{flag}=" for flag in _ADDED if not names_flag(wanted, flag))

    def judge(entry: Entry) -> str:
        if entry.compiler != COMPILER_VERSION:
            return f"of another compiler ({entry.compiler})"
        own = tuple(flag for flag in entry.flags if not flag.startswith(added or ("\0",)))
        return "" if own == wanted else "of other flags"

    return judge
