"""Error answers: refusals of the machine, and parameters that do not fit a method."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, get_type_hints

from neurontools.base.text import did_you_mean
from neurontools.machine.events import CoresBusy, DeviceBusy, DeviceLost, Invalid, OutOfMemory, Refusal
from neurontools.machine.machine_names import core_ranges, format_cores
from neurontools.machine.protocol import ErrorCode, RpcError

if TYPE_CHECKING:
    from neurontools.machine.events import Process

_AT = re.compile(r"(?P<reason>.*) - at `\$\.?(?P<path>.*)`")
_FIELD = re.compile(r"Object (?P<problem>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value '(?P<value>.*)'", re.DOTALL)
_SHOWN_LENGTH = 40


def refusal_error(reason: Refusal) -> RpcError:
    """Return the error answer of a refusal."""
    match reason:
        case CoresBusy():
            return RpcError(
                ErrorCode.CORES_BUSY,
                f"requested {_requested(reason)}, {reason.available or 'none'} free: "
                f"{format_holders(reason.owners) or 'too few'}",
                "wait for them, or set NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES to others",
                {
                    "requested": list(reason.requested),
                    "count": reason.count,
                    "available": reason.available,
                    "owners": [process.key.pid for process in reason.owners],
                },
            )
        case OutOfMemory():
            return RpcError(
                ErrorCode.OUT_OF_MEMORY,
                f"memory of device {reason.device} is full: {reason.needed} bytes needed, "
                f"{reason.total - reason.used} of {reason.total} free",
                "",
                {
                    "device": reason.device,
                    "total": reason.total,
                    "used": reason.used,
                    "needed": reason.needed,
                },
            )
        case DeviceLost():
            return RpcError(
                ErrorCode.DEVICE_LOST,
                f"Could not open the nd{reason.device}: the device is lost",
                "see 'neurontools fault list'",
                {"device": reason.device},
            )
        case DeviceBusy():
            return RpcError(
                ErrorCode.REFUSED,
                f"device {reason.device} is in use: {format_holders(reason.owners)}",
                "end them, or use --force",
            )
        case Invalid():
            return RpcError(ErrorCode.INVALID_PARAMS, reason.message, reason.remedy)


def invalid_params(error: ValueError, request_type: type) -> RpcError:
    """Return the error answer for parameters that are not those of a method; it names the parameter.

    Args:
        error: what msgspec found wrong.
        request_type: the method's parameters.
    """
    text = str(error)
    at = _AT.fullmatch(text)
    reason, path = (at["reason"], at["path"]) if at else (text, "")
    if enum := _ENUM.fullmatch(reason):
        value = enum["value"]
        return RpcError(
            ErrorCode.INVALID_PARAMS,
            f"unknown {path} {value[:_SHOWN_LENGTH]!r}",
            _suggestion(value, get_type_hints(request_type).get(path)),
        )
    if field := _FIELD.fullmatch(reason):
        name = f"{path}.{field['name'][:_SHOWN_LENGTH]}" if path else field["name"][:_SHOWN_LENGTH]
        missing = field["problem"].startswith("missing")
        message = f"parameter {name!r} is missing" if missing else f"unknown parameter {name!r}"
        return RpcError(ErrorCode.INVALID_PARAMS, message)
    return RpcError(
        ErrorCode.INVALID_PARAMS, f"parameter {path!r}: {reason[:1].lower()}{reason[1:].replace('`', '')}"
    )


def format_holders(owners: tuple[Process, ...]) -> str:
    """Return which processes hold which cores, the first three by name."""
    shown = [f"process {owner.key.pid} holds {format_cores(owner.cores)}" for owner in owners[:3]]
    more = [f"{len(owners) - 3} more"] if len(owners) > 3 else []
    return ", ".join(shown + more)


def _requested(reason: CoresBusy) -> str:
    return (
        f"NeuronCores {core_ranges(reason.requested)}" if reason.requested else f"{reason.count} NeuronCores"
    )


def _suggestion(value: str, hint: object) -> str:
    choices = [kind for kind in getattr(hint, "__args__", (hint,)) if isinstance(kind, type)]
    names = [str(item) for kind in choices if issubclass(kind, Enum) for item in kind]
    return did_you_mean(value, names)
