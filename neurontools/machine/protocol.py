r"""The wire between neurond and its clients: JSON-RPC 2.0, one message a line, and one bare line for rendered text.

    {"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":1,"client":"neuron-top"}}
    {"jsonrpc":"2.0","id":1,"result":{...}}   or   {"jsonrpc":"2.0","id":1,"error":{"code":..,"message":..,"data":{..}}}
    {"jsonrpc":"2.0","method":"snapshot","params":{...}}            pushed to who asked to watch
    {"jsonrpc":"2.0","method":"changes","params":[...]}             to who asked for changes (module `changes`)

    RENDER <tool>\0<emulate>\0<argument>\0...                        ->  <exit> <stdout bytes> <stderr bytes>\n, then both

`hello` comes first on a connection. The descriptor of a telemetry page travels with the first byte of the answer to
`register`, those of many with that to `register_synthetic`, at most `MAX_DESCRIPTORS`. A request holds at most `MAX_LINE_BYTES`; an answer may be longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 1 << 20
MAX_DESCRIPTORS = 200
RENDER = b"RENDER "
SNAPSHOT = "snapshot"
CHANGES = "changes"
SYNTHETIC_PIDS_ABOVE = 4194304  # the greatest pid that Linux gives

Value = int | float | str | bool | list[Any] | dict[str, Any] | None


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


class RpcError(Exception):
    """A request that gets an error as its answer.

    Args:
        code: what kind of error.
        message: one line for a person.
        remedy: what to do about it, or "".
        data: facts for programs.
        request_id: of the request as far as it could be read.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        remedy: str = "",
        data: dict[str, Value] | None = None,
        request_id: Value = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.data = data or {}
        self.request_id = request_id

    def body(self) -> dict[str, Any]:
        """Return the error object of JSON-RPC."""
        return {
            "code": int(self.code),
            "message": self.message,
            "data": {**self.data, "remedy": self.remedy},
        }


@dataclass(frozen=True, slots=True)
class Request:
    """A call; `request_id` is None for one that wants no answer."""

    request_id: int | str | None
    method: str
    params: Params


class Params:
    """The named parameters of a request; every getter checks the type.

    Raises:
        RpcError: a getter's parameter is missing or of another type or range.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def only(self, *names: str) -> None:
        """Refuse parameters with other names."""
        unknown = sorted(set(self._values) - set(names))
        if unknown:
            raise _invalid(f"unknown parameter {unknown[0]!r}")

    def integer(self, name: str, minimum: int, maximum: int = 1 << 62) -> int:
        """Return a whole number."""
        value = self._values.get(name)
        if type(value) is not int or not minimum <= value <= maximum:
            raise _invalid(f"parameter {name!r} must be a whole number from {minimum}")
        return value

    def optional_integer(self, name: str, minimum: int) -> int | None:
        """Return a whole number, None when it is not given."""
        return None if self._values.get(name) is None else self.integer(name, minimum)

    def number(self, name: str, minimum: float, maximum: float) -> float:
        """Return a number within bounds."""
        value = self._values.get(name)
        if type(value) not in {int, float} or not minimum <= value <= maximum:  # type: ignore[operator]
            raise _invalid(f"parameter {name!r} must be a number from {minimum} to {maximum}")
        return float(value)  # type: ignore[arg-type]

    def optional_number(self, name: str, minimum: float, maximum: float) -> float | None:
        """Return a number within bounds, None when it is not given."""
        return None if self._values.get(name) is None else self.number(name, minimum, maximum)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise _invalid(f"parameter {name!r} must be a text")
        return value

    def boolean(self, name: str, *, default: bool | None = None) -> bool:
        """Return a truth value."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise _invalid(f"parameter {name!r} must be true or false")
        return value

    def mappings(self, name: str, longest: int) -> list[Params]:
        """Return a list of named parameters of their own."""
        value = self._values.get(name)
        if (
            not isinstance(value, list)
            or len(value) > longest
            or any(not isinstance(item, dict) for item in value)
        ):
            raise _invalid(f"parameter {name!r} must be a list of at most {longest} objects")
        return [Params(item) for item in value]

    def optional_integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers, None when it is not given."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise _invalid(f"parameter {name!r} must be a list of whole numbers")
        return tuple(value)


def parse_request(line: bytes | None) -> Request:
    """Return the request in a line of a `LineBuffer`.

    Raises:
        RpcError: too long, no JSON, no JSON-RPC 2.0 request, or a batch (not offered).
    """
    if line is None:
        raise RpcError(ErrorCode.INVALID_REQUEST, f"a line has at most {MAX_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RpcError(ErrorCode.PARSE, "not a line of JSON") from error
    if not isinstance(message, dict):
        raise RpcError(ErrorCode.INVALID_REQUEST, "a request is a JSON object")
    request_id = message.get("id")
    if type(request_id) not in {int, str, type(None)}:
        raise RpcError(ErrorCode.INVALID_REQUEST, "an id is a whole number or a text")
    method, params = message.get("method"), message.get("params", {})
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcError(
            ErrorCode.INVALID_REQUEST, 'a request has "jsonrpc":"2.0" and a method', request_id=request_id
        )
    if not isinstance(params, dict):
        raise RpcError(ErrorCode.INVALID_PARAMS, "parameters have names here", request_id=request_id)
    return Request(request_id, method, Params(params))


def request_line(request_id: int, method: str, params: dict[str, Value]) -> bytes:
    """Return a request as a line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def result_line(request_id: int | str | None, result_json: str) -> bytes:
    """Return an answer as a line; the result is JSON text already."""
    return f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result_json}}}\n'.encode()


def push_line(method: str, params_json: str) -> bytes:
    """Return a notification as a line; the parameters are JSON text already."""
    return f'{{"jsonrpc":"2.0","method":{json.dumps(method)},"params":{params_json}}}\n'.encode()


def error_line(error: RpcError) -> bytes:
    """Return an error answer as a line."""
    return _line({"jsonrpc": "2.0", "id": error.request_id, "error": error.body()})


class LineBuffer:
    """Cuts a byte stream into lines; one that is too long comes out as None, once, and is skipped.

    Args:
        max_bytes: what a line may hold.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take more bytes and return the lines that are complete now, without their ends."""
        *complete, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for piece in complete:
            if self._skipping:
                self._skipping = False
            elif len(self._rest) + len(piece) > self._max_bytes:
                lines.append(None)
            else:
                lines.append(bytes(self._rest) + piece)
            self._rest.clear()
        if not self._skipping:
            self._rest += rest
            if len(self._rest) > self._max_bytes:
                self._rest.clear()
                self._skipping = True
                lines.append(None)
        return lines


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _invalid(message: str) -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, message)
