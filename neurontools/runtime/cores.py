"""The cores that a process requests: NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES.

Source: AWS Neuron documentation, runtime configuration.
"""

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
class CoreRequest:
    """Cores that a process requests: given ones, or a number of any (0: all of the machine)."""

    cores: tuple[int, ...] | None = None
    count: int = 0

    def format(self, core_count: int) -> str:
        """Return the request as the real runtime's log line names it."""
        if self.cores is None:
            return str(self.count or core_count)
        return f"lnc{self.cores[0]}-lnc{self.cores[-1]}"


def parse_core_request(environ: Mapping[str, str]) -> CoreRequest:
    """Return the request of the environment; NEURON_RT_VISIBLE_CORES has precedence over NEURON_RT_NUM_CORES.

    Raises:
        NrtError: NRT_INVALID when a value is malformed or the cores are not contiguous and rising.
    """
    visible = environ.get(VISIBLE_CORES, "")
    if visible.strip():
        return CoreRequest(cores=parse_visible_cores(visible))
    count = environ.get(NUM_CORES, "")
    if not count.strip():
        return CoreRequest()
    if not _COUNT.fullmatch(count):
        raise _invalid(f"{NUM_CORES}={count} is not a number of cores", "use a number, 0 for all cores")
    return CoreRequest(count=int(count))


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
                f"{VISIBLE_CORES}={text} is malformed", "use an index (3), a range (0-3) or a list (3,4)"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        cores.extend(range(first, last + 1) if first <= last else range(first, last - 1, -1))
    if cores != list(range(cores[0], cores[0] + len(cores))):
        raise _invalid(
            NOT_CONTIGUOUS,
            f"use consecutive cores in rising order, unlike {VISIBLE_CORES}={text}",
        )
    return tuple(cores)


def format_not_available(
    request: CoreRequest, available: int, core_count: int, lnc: int, *, reason: str = ""
) -> str:
    """Return the real runtime's line for cores that are not free.

    Args:
        request: the cores.
        available: how many of those are free.
        core_count: logical cores of the machine.
        lnc: physical cores in a logical one.
        reason: what the newest runtime adds in parentheses for named cores.
    """
    return (
        f"Logical Neuron Core(s) not available - Requested:{request.format(core_count)} "
        f"Available:{available} Logical Core size:{lnc}{f' ({reason})' if reason else ''}"
    )


def _invalid(detail: str, remedy: str) -> NrtError:
    return NrtError("nrt_init", NrtStatus.NRT_INVALID, remedy, detail=detail)
