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
from neurontools.runtime.host_activity import HOST_LOAD, HostEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

StepWindow = tuple[int, int]
"""The first and the last step to record, from 1."""

PREFIX = "NEURON_RT_INSPECT_"
DEFAULT_OUTPUT_DIR = "./output"
DEFAULT_MAX_EVENTS = 1_000_000
_MAX_NC = 255
_STEPS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_POSITIVE = re.compile("0*[1-9][0-9]{0,17}")
_HARDWARE = frozenset({SYSTEM_EVENTS[NC_EXEC_RUNNING]})
EVENT_NAMES = (*SYSTEM_EVENTS, *(kind.name.lower() for kind in HostEvent if kind not in HOST_LOAD))
"""The names of all wall-clock events."""
_ALL = frozenset(EVENT_NAMES)
# Names of the real runtime for what has another name here; of its other events there are none.
_SAME = {
    "model_load": "nrt_load",
    "runtime_execute": "nrt_execute",
    "tensor_write": "upload",
    "nrt_tensor_write": "upload",
    "tensor_read": "download",
    "nrt_tensor_read": "download",
}
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
        host_events: kinds of events of the host and of memory to record.
        host_load: samples of the computer to record: CPU_UTIL, HOST_MEMORY.
        ncs: process-local NeuronCores to record; None for all.
        steps: the first and the last training step to record, from 1; None for the whole run.
        max_events_per_nc: maximum number of system events, and of device records, per NeuronCore.
        stacks: whether events of the host have the program's call stack instead of its line alone.
        only_failures: keep the profile only if an execution fails.
    """

    device: DeviceProfile = DeviceProfile.OFF
    system_events: frozenset[int] = frozenset(range(len(SYSTEM_EVENTS)))
    host_events: frozenset[HostEvent] = frozenset(HostEvent) - HOST_LOAD
    host_load: frozenset[HostEvent] = frozenset()
    ncs: frozenset[int] | None = None
    max_events_per_nc: int = DEFAULT_MAX_EVENTS
    steps: StepWindow | None = None
    stacks: bool = False
    only_failures: bool = False


def output_directory(environ: Mapping[str, str]) -> str | None:
    """Return where captures go, or None when NEURON_RT_INSPECT_ENABLE and NEURON_RT_INSPECT_ON_FAIL are off."""
    if not _flag(environ, "ENABLE", default=False) and not _flag(environ, "ON_FAIL", default=False):
        return None
    return environ.get(PREFIX + "OUTPUT_DIR") or DEFAULT_OUTPUT_DIR


def options_from_environ(environ: Mapping[str, str]) -> CaptureOptions:
    """Return the capture options of an environment.

    Raises:
        UsageError: a variable is invalid.
    """
    only_failures = not _flag(environ, "ENABLE", default=False) and _flag(environ, "ON_FAIL", default=False)
    events: frozenset[str] = frozenset()
    if _flag(environ, "SYSTEM_PROFILE", default=True):
        events = event_names(environ.get(PREFIX + "EVENT_FILTER_TYPE", ""))
    filter_nc = PREFIX + "EVENT_FILTER_NC"
    ncs = environ.get(filter_nc, "")
    return CaptureOptions(
        device=_device(environ, "session" if only_failures else "0"),
        system_events=frozenset(number for number, name in enumerate(SYSTEM_EVENTS) if name in events),
        host_events=frozenset(kind for kind in HostEvent if kind.name.lower() in events),
        host_load=frozenset(kind for kind in HOST_LOAD if _flag(environ, kind.name, default=False)),
        ncs=parse_numbers(ncs, filter_nc) if ncs.strip() else None,
        max_events_per_nc=_max_events(environ),
        steps=parse_steps(environ[env.PROFILE_STEPS], env.PROFILE_STEPS)
        if environ.get(env.PROFILE_STEPS)
        else None,
        stacks=env.flag(env.PROFILE_STACKS, environ),
        only_failures=only_failures,
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


def _device(environ: Mapping[str, str], default: str) -> DeviceProfile:
    text = environ.get(PREFIX + "DEVICE_PROFILE", default).lower()
    words = dict.fromkeys(_TRUE, DeviceProfile.SESSION) | dict.fromkeys(_FALSE, DeviceProfile.OFF)
    setting = {"model": DeviceProfile.MODEL, "session": DeviceProfile.SESSION, **words}.get(text)
    if setting is not None:
        return setting
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
    match = _STEPS.fullmatch(text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else 0
    if not 1 <= first <= last:
        raise UsageError(
            f"{name} {text} is not a range of steps", "use for example 10-20; the first step is 1"
        )
    return first, last


def event_names(text: str) -> frozenset[str]:
    """Return the events of a filter: `hardware`, `software` and names add, `^` before one of them removes."""
    groups = {"hardware": _HARDWARE, "software": _ALL - _HARDWARE}
    words = [word.strip() for word in text.split(",") if word.strip()]

    def events(word: str) -> frozenset[str]:
        return groups.get(word, _ALL & {_SAME.get(word, word)})

    added = [events(word) for word in words if not word.startswith("^")]
    removed = [events(word[1:]) for word in words if word.startswith("^")]
    return (frozenset().union(*added) if added else _ALL) - frozenset().union(*removed)
