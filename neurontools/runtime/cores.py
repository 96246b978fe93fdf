"""Which cores a process wants: NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES (compile-runtime.md section 3.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
NOT_CONTIGUOUS = "Neuron cores are not contiguous"

_PART = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", re.ASCII)
_COUNT = re.compile(r"\s*\d{1,4}\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CoreWish:
    """Cores that a process asks for: certain ones, or a number of any (0: all of the machine)."""

    cores: tuple[int, ...] | None = None
    count: int = 0

    def requested(self, core_count: int) -> str:
        """Return the wish as the real runtime's log line names it."""
        if self.cores is None:
            return str(self.count or core_count)
        return f"lnc{self.cores[0]}-lnc{self.cores[-1]}"


def core_wish(environ: Mapping[str, str]) -> CoreWish:
    """Return the wish that the environment states; NEURON_RT_VISIBLE_CORES beats NEURON_RT_NUM_CORES.

    Raises:
        NrtError: NRT_INVALID when a value is malformed or the cores are not contiguous and rising.
    """
    visible = environ.get(VISIBLE_CORES, "")
    if visible.strip():
        return CoreWish(cores=parse_visible_cores(visible))
    count = environ.get(NUM_CORES, "")
    if not count.strip():
        return CoreWish()
    if not _COUNT.fullmatch(count):
        raise _invalid(f"{NUM_CORES}={count} is not a number of cores", "give a number, 0 for all cores")
    return CoreWish(count=int(count))


def parse_visible_cores(text: str) -> tuple[int, ...]:
    """Return the cores of an index `3`, a range `0-3`, a comma list `3,4`, or a list of those.

    Raises:
        NrtError: NRT_INVALID when it is malformed or the cores are not contiguous and rising.
    """
    cores: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _invalid(
                f"{VISIBLE_CORES}={text} is malformed", "give an index (3), a range (0-3) or a list (3,4)"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        cores.extend(range(first, last + 1) if first <= last else range(first, last - 1, -1))
    if cores != list(range(cores[0], cores[0] + len(cores))):
        raise _invalid(
            NOT_CONTIGUOUS,
            f"give cores that follow each other in rising order, {VISIBLE_CORES}={text} does not",
        )
    return tuple(cores)


def not_available(wish: CoreWish, available: int, core_count: int, lnc: int, *, reason: str = "") -> str:
    """Return the real runtime's line for cores that it can't have.

    Args:
        wish: what was asked for.
        available: how many of those are free.
        core_count: logical cores of the machine.
        lnc: physical cores in a logical one.
        reason: what the newest runtime adds in parentheses for named cores.
    """
    return (
        f"Logical Neuron Core(s) not available - Requested:{wish.requested(core_count)} "
        f"Available:{available} Logical Core size:{lnc}{f' ({reason})' if reason else ''}"
    )


def _invalid(detail: str, remedy: str) -> NrtError:
    return NrtError("nrt_init", NrtStatus.NRT_INVALID, remedy, detail=detail)
