"""Exceptions of the clients: the daemon's error answers, and a daemon that is gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import env, paths
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine.protocol import ErrorCode

if TYPE_CHECKING:
    from neurontools.errors import NeuronToolsError
    from neurontools.machine.protocol import ErrorBody


class CoresBusyError(DaemonError):
    """Cores are not free.

    `requested` are the requested ids, empty when `count` cores of any id were requested; `available` is the number of
    free ones among them; `owners` are the pids that hold the others.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        requested: tuple[int, ...] = (),
        count: int = 0,
        available: int = 0,
        owners: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, remedy)
        self.requested = requested
        self.count = count
        self.available = available
        self.owners = owners


class OutOfDeviceMemoryError(DaemonError):
    """A device's memory is full; `total`, `used` and `needed` in bytes."""

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        device: int = 0,
        total: int = 0,
        used: int = 0,
        needed: int = 0,
    ) -> None:
        super().__init__(message, remedy)
        self.device = device
        self.total = total
        self.used = used
        self.needed = needed


class DeviceLostError(DaemonError):
    """A device is lost; `device` is its number."""

    def __init__(self, message: str, remedy: str = "", *, device: int = 0) -> None:
        super().__init__(message, remedy)
        self.device = device


class OtherVersionError(DaemonError):
    """The daemon speaks another version of the protocol."""


class SilentDaemonError(DaemonError):
    """The daemon does not answer in time."""


def silent(machine: str) -> SilentDaemonError:
    """Return the error of a daemon that does not answer."""
    return SilentDaemonError(f"neurond of machine {machine!r} does not answer", "neurond restart")


def ended(machine: str) -> DaemonError:
    """Return the error of a daemon that closed the connection."""
    return DaemonError(f"neurond of machine {machine!r} ended", "neurond status")


def keeps_exiting(machine: str) -> DaemonError:
    """Return the error of a daemon whose successor closed the connection too."""
    return DaemonError(f"neurond of machine {machine!r} keeps exiting", "neurond logs")


def no_machine(machine: str) -> NoMachineError:
    """Return the error of a machine that does not run."""
    owner = paths.owner()
    if owner != os.getuid():
        return NoMachineError(
            f"no machine {machine!r} is running in {paths.runtime_dir()}",
            f"only uid {owner}, who shares that directory, can start it; unset {env.RUNTIME_DIR} to use your own",
        )
    flag = "" if machine == env.DEFAULT_MACHINE else f" --name {machine}"
    return NoMachineError(f"no machine {machine!r} is running", f"start it: neurond start{flag}")


def error_from(error: ErrorBody) -> NeuronToolsError:
    """Return the exception of an error answer."""
    data, message = error.data, error.message
    remedy = str(data.get("remedy", ""))
    match error.code:
        case ErrorCode.CORES_BUSY:
            return CoresBusyError(
                message,
                remedy,
                requested=tuple(data["requested"]),
                count=data["count"],
                available=data["available"],
                owners=tuple(data["owners"]),
            )
        case ErrorCode.OUT_OF_MEMORY:
            sizes = {name: data[name] for name in ("device", "total", "used", "needed")}
            return OutOfDeviceMemoryError(message, remedy, **sizes)
        case ErrorCode.DEVICE_LOST:
            return DeviceLostError(message, remedy, device=data["device"])
        case ErrorCode.OTHER_VERSION:
            return OtherVersionError(message, remedy)
        case _:
            return DaemonError(message, remedy)
