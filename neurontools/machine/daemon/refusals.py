"""How the machine's refusals are told to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.events import CoresBusy, DeviceBusy, DeviceLost, Invalid, OutOfMemory, Refusal
from neurontools.machine.naming import core_ranges
from neurontools.machine.protocol import ErrorCode, RpcError

if TYPE_CHECKING:
    from neurontools.machine.events import Process


def rpc_error(reason: Refusal) -> RpcError:
    """Return the error answer of a refusal."""
    match reason:
        case CoresBusy():
            what = (
                f"NeuronCores {core_ranges(reason.requested)}"
                if reason.requested
                else f"{reason.count} NeuronCores"
            )
            return RpcError(
                ErrorCode.CORES_BUSY,
                f"{what} asked for, {reason.available} of them free: {holders(reason.owners) or 'too few'}",
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
                "neurontools fault list",
                {"device": reason.device},
            )
        case DeviceBusy():
            return RpcError(
                ErrorCode.REFUSED,
                f"device {reason.device} is in use: {holders(reason.owners)}",
                "end them, or reset it all the same with --force",
            )
        case Invalid():
            return RpcError(ErrorCode.INVALID_PARAMS, reason.message)


def holders(owners: tuple[Process, ...]) -> str:
    """Return which processes hold which cores, the first three by name."""
    shown = [f"process {owner.key.pid} holds {core_ranges(owner.cores)}" for owner in owners[:3]]
    more = [f"{len(owners) - 3} more"] if len(owners) > 3 else []
    return ", ".join(shown + more)
