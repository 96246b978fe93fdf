"""Requests that the machine or its daemon refuses: one class for each kind of error that a client may want to catch.

The state machine raises them, the wire carries code, message and facts, and the client raises the same class again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from msgspec import Struct

from neurontools.errors import DaemonError


class ErrorCode(IntEnum):
    """JSON-RPC's own codes, then ours."""

    PARSE = -32700
    INVALID_REQUEST = -32600
    UNKNOWN_METHOD = -32601
    INVALID_PARAMS = -32602
    INTERNAL = -32603
    OTHER_VERSION = -32000
    HELLO_FIRST = -32001
    REFUSED = -32002
    CORES_BUSY = -32003
    OUT_OF_MEMORY = -32004
    PEER_REFUSED = -32005
    DEVICE_LOST = -32006


class ErrorBody(Struct, frozen=True):
    """The error object of JSON-RPC; `data` holds facts for programs, and the remedy."""

    code: int
    message: str
    data: dict[str, Any] = {}


class RefusedError(DaemonError):
    """A refused request.

    Args:
        message: one line for a person.
        remedy: what to do about it, or "".
        code: the kind of error, None for that of the class.
        facts: for programs; those that the class declares are attributes.
    """

    code = ErrorCode.REFUSED

    def __init__(
        self, message: str, remedy: str = "", *, code: ErrorCode | None = None, **facts: Any
    ) -> None:
        super().__init__(message, remedy)
        self.request_id: int | str | None = None
        self.code = code or self.code
        self.facts = facts
        vars(self).update(facts)

    @property
    def body(self) -> ErrorBody:
        """The error on the wire."""
        return ErrorBody(int(self.code), self.message, {**self.facts, "remedy": self.remedy})


class CoresBusyError(RefusedError):
    """Cores are not free.

    `requested` are the requested ids, empty when `count` cores of any id were requested; `available` is the number of
    free ones among them; `owners` are the pids that hold the others.
    """

    code = ErrorCode.CORES_BUSY
    requested: tuple[int, ...] = ()
    count: int = 0
    available: int = 0
    owners: tuple[int, ...] = ()


class OutOfDeviceMemoryError(RefusedError):
    """A device's memory is full; `total`, `used` and `needed` in bytes."""

    code = ErrorCode.OUT_OF_MEMORY
    device: int = 0
    total: int = 0
    used: int = 0
    needed: int = 0


class DeviceLostError(RefusedError):
    """A device is lost; `device` is its number."""

    code = ErrorCode.DEVICE_LOST
    device: int = 0


class InvalidParamsError(RefusedError):
    """The request does not fit its method or this machine."""

    code = ErrorCode.INVALID_PARAMS


class PeerRefusedError(RefusedError):
    """The request is not for this process or this user."""

    code = ErrorCode.PEER_REFUSED


class OtherVersionError(RefusedError):
    """The daemon speaks another version of the protocol."""

    code = ErrorCode.OTHER_VERSION


_KINDS: dict[int, type[RefusedError]] = {
    kind.code: kind for kind in (CoresBusyError, OutOfDeviceMemoryError, DeviceLostError, OtherVersionError)
}


def refused_error(body: ErrorBody) -> RefusedError:
    """Return the error that stands on the wire."""
    kind = _KINDS.get(body.code, RefusedError)
    facts = {name: value for name, value in body.data.items() if name in kind.__annotations__}
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    return kind(body.message, str(body.data.get("remedy", "")), **{**facts, **lists})
