"""What the environment says: memory for checks, logical NeuronCore configuration, how the root rank is reached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.collectives.checking import DEFAULT_BUDGET_BYTES
from neurontools.collectives.sizes import parse_size
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LNC = "NEURON_LOGICAL_NC_CONFIG"
ROOT_COMM_ID = "NEURON_RT_ROOT_COMM_ID"

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^:\s]+):(\d{1,5})", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%", re.ASCII)


def lnc_wanted(environ: Mapping[str, str]) -> int | None:
    """Return the logical NeuronCore configuration that NEURON_LOGICAL_NC_CONFIG asks for, None where it is unset.

    Raises:
        UsageError: it is neither 1 nor 2.
    """
    text = environ.get(LNC, "")
    if not text:
        return None
    if text not in {"1", "2"}:
        raise UsageError(f"{LNC}={text} is not a logical NeuronCore configuration", "set 1 or 2, or unset it")
    return int(text)


def check_root(environ: Mapping[str, str]) -> None:
    """Refuse MPI hosts without a usable NEURON_RT_ROOT_COMM_ID (system-tools.md section 5).

    Raises:
        UsageError: it is missing or not of the form host:port.
    """
    text = environ.get(ROOT_COMM_ID, "")
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) < 65536:
        problem = f"{ROOT_COMM_ID}={text} is not ip:port" if text else f"{ROOT_COMM_ID} is not set"
        raise UsageError(f"{problem}, which MPI hosts need", f"export {ROOT_COMM_ID}=10.0.0.1:46820")


def check_budget(given: str | None) -> int:
    """Return the bytes of this computer's memory that a check may take.

    That is the size given, else 1 GiB; never more than NEURONTOOLS_HOST_MEMORY allows of what is available.

    Raises:
        UsageError: a size makes no sense.
    """
    wanted = DEFAULT_BUDGET_BYTES if given is None else parse_size(given)
    return max(min(wanted, _allowed(env.host_memory())), 1)


def _allowed(text: str) -> int:
    match = _PERCENT.fullmatch(text)
    if match is None:
        return parse_size(text)
    return int(_available_bytes() * min(float(match[1]), 100.0) / 100)


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4 * DEFAULT_BUDGET_BYTES
