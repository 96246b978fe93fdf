"""Capture options: the NEURON_RT_INSPECT_* variables (AWS Neuron documentation, neuron-profile user guide)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import UsageError
from neurontools.machine.machine_names import parse_indices
from neurontools.profiler.capture.format import NC_EXEC_RUNNING, SYSTEM_EVENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.profiler.capture.host_events import StepWindow

PREFIX = "NEURON_RT_INSPECT_"
DEFAULT_OUTPUT_DIR = "./output"
DEFAULT_MAX_EVENTS = 1_000_000
_MAX_NC = 255
_STEPS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_POSITIVE = re.compile("0*[1-9][0-9]{0,17}")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


class DeviceProfile(StrEnum):
    """Which executions get device records: none, the first of each model on a core, or all."""

    OFF = "off"
    MODEL = "model"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What to record.

    Args:
        device: which executions get modelled instruction records.
        system_events: numbers of the system events to record, see `SYSTEM_EVENTS`.
        ncs: process-local NeuronCores to record; None for all.
        steps: the first and the last training step to record, from 1; None for the whole run.
        max_events_per_nc: maximum number of system events, and of device records, per NeuronCore.
    """

    device: DeviceProfile = DeviceProfile.OFF
    system_events: frozenset[int] = frozenset(range(len(SYSTEM_EVENTS)))
    ncs: frozenset[int] | None = None
    max_events_per_nc: int = DEFAULT_MAX_EVENTS
    steps: StepWindow | None = None


def output_directory(environ: Mapping[str, str]) -> str | None:
    """Return where captures go, or None when NEURON_RT_INSPECT_ENABLE is off."""
    if not _flag(environ, "ENABLE", default=False):
        return None
    return environ.get(PREFIX + "OUTPUT_DIR") or DEFAULT_OUTPUT_DIR


def options_from_environ(environ: Mapping[str, str]) -> CaptureOptions:
    """Return the capture options of an environment.

    Raises:
        UsageError: a variable is invalid.
    """
    system = _system_events(environ.get(PREFIX + "EVENT_FILTER_TYPE", ""))
    filter_nc = PREFIX + "EVENT_FILTER_NC"
    ncs = environ.get(filter_nc, "")
    return CaptureOptions(
        device=_device(environ),
        system_events=system if _flag(environ, "SYSTEM_PROFILE", default=True) else frozenset(),
        ncs=parse_numbers(ncs, filter_nc) if ncs.strip() else None,
        max_events_per_nc=_max_events(environ),
        steps=parse_steps(environ[env.PROFILE_STEPS], env.PROFILE_STEPS)
        if environ.get(env.PROFILE_STEPS)
        else None,
    )


def _flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(PREFIX + name)
    if text is None:
        return default
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"{PREFIX}{name}={text} is neither 0 nor 1", f"set {PREFIX}{name} to 0 or 1")


def _device(environ: Mapping[str, str]) -> DeviceProfile:
    text = environ.get(PREFIX + "DEVICE_PROFILE", "0").lower()
    words = dict.fromkeys(_TRUE, DeviceProfile.SESSION) | dict.fromkeys(_FALSE, DeviceProfile.OFF)
    found = {"model": DeviceProfile.MODEL, "session": DeviceProfile.SESSION, **words}.get(text)
    if found is not None:
        return found
    raise UsageError(
        f"{PREFIX}DEVICE_PROFILE={text} is unknown",
        "use 0, 1, session (every execution) or model (the first)",
    )


def _max_events(environ: Mapping[str, str]) -> int:
    name = PREFIX + "SYS_TRACE_MAX_EVENTS_PER_NC"
    text = environ.get(name, str(DEFAULT_MAX_EVENTS))
    if not _POSITIVE.fullmatch(text):
        raise UsageError(f"{name}={text} is not a positive number", f"the default is {DEFAULT_MAX_EVENTS}")
    return int(text)


def parse_numbers(text: str, name: str) -> frozenset[int]:
    """Return the numbers of a list such as `0,2,4-7`; `name` is that of the variable or flag.

    Raises:
        UsageError: the list is invalid.
    """
    try:
        return frozenset(number for number in parse_indices(text) if number <= _MAX_NC)
    except ValueError as error:
        raise UsageError(
            f"invalid list of cores {name}={text}: {error}", "use for example 0,2,4-7"
        ) from error


def parse_steps(text: str, name: str) -> StepWindow:
    """Return the first and the last step of a range such as `10-20` or `5`; `name` is that of the variable or flag.

    Raises:
        UsageError: the text is not a range, or begins before 1.
    """
    found = _STEPS.fullmatch(text.strip())
    first = int(found[1]) if found else 0
    last = int(found[2] or first) if found else 0
    if not 1 <= first <= last:
        raise UsageError(
            f"{name} {text} is not a range of steps", "use for example 10-20; the first step is 1"
        )
    return first, last


def _system_events(text: str) -> frozenset[int]:
    """Return the events of a filter: `hardware`, `software` and names add, `^` before one of them removes."""
    groups = {
        "hardware": {NC_EXEC_RUNNING},
        "software": set(range(len(SYSTEM_EVENTS))) - {NC_EXEC_RUNNING},
        **{name: {number} for number, name in enumerate(SYSTEM_EVENTS)},
    }
    words = [word.strip() for word in text.split(",") if word.strip()]
    added = [word for word in words if not word.startswith("^")]
    chosen = (
        set().union(*(groups.get(word, set()) for word in added)) if added else set(range(len(SYSTEM_EVENTS)))
    )
    for word in words:
        if word.startswith("^"):
            chosen -= groups.get(word[1:], set())
    return frozenset(chosen)
