r"""The wire between neurond and its clients, without I/O: JSON-RPC 2.0, one message a line, and one bare line for text.

    {"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":1,"client":"neuron-top"}}
    {"jsonrpc":"2.0","id":1,"result":{...}}   or   {"jsonrpc":"2.0","id":1,"error":{"code":..,"message":..,"data":{..}}}
    {"jsonrpc":"2.0","method":"snapshot","params":{...}}            pushed to clients that watch
    {"jsonrpc":"2.0","method":"changes","params":[...]}             to those that watch changes (module `changes`)

    RENDER <tool>\0<emulate>\0<argument>\0...                        ->  <exit> <stdout bytes> <stderr bytes>\n, then both

`hello` comes first on a connection. The descriptor of a telemetry page travels with the first byte of the answer to
`register`, those of many with that to `register_synthetic`, at most `MAX_DESCRIPTORS`. A request holds at most
`MAX_LINE_BYTES`; an answer may be longer. The methods are in module `requests`.

The state machine raises refusals, the wire carries their code, message and facts, and the client raises the same class
again.
"""

from __future__ import annotations

import json
from collections import deque
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from neurontools.base.json_reader import load_json
from neurontools.errors import DaemonError
from neurontools.machine import codec


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


PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 1 << 20
MAX_DESCRIPTORS = 200
RENDER = b"RENDER "
SNAPSHOT = "snapshot"
CHANGES = "changes"
SYNTHETIC_PIDS_ABOVE = 4194304  # the largest pid that Linux assigns

_MAX_ANSWER_BYTES = 1 << 30

Count = Annotated[int, Meta(ge=0, le=1 << 62)]

T = TypeVar("T")
R = TypeVar("R", bound=Struct)


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a method."""

    method: ClassVar[str]


class HelloRequest(Request, frozen=True, forbid_unknown_fields=False):
    """Greet the daemon, which every other method needs.

    `owner` marks the connection that speaks for what the process registered.
    """

    method: ClassVar[str] = "hello"
    protocol: Count
    client: str
    owner: bool = False


class Greeting(Struct, frozen=True):
    """The daemon, and the cores of the calling process, None when it is not registered."""

    protocol: int
    version: str
    machine: str
    pid: int
    registered: tuple[int, ...] | None


class RpcCall(Struct, frozen=True):
    """A request as the daemon reads it; `request_id` is None if no answer is wanted."""

    request_id: int | str | None
    method: str
    params: dict[str, Any]


def parse_request(line: bytes | None) -> RpcCall:
    """Return the request in a line of a `LineBuffer`.

    Raises:
        RefusedError: too long, not JSON, not a JSON-RPC 2.0 request, or a batch (not supported).
    """
    if line is None:
        raise _invalid(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        message = load_json(line, any_text=True)
    except ValueError as error:
        raise RefusedError(f"the line is not valid JSON: {error}", code=ErrorCode.PARSE) from error
    if not isinstance(message, dict):
        raise _invalid("a request must be a JSON object")
    request_id = message.get("id")
    if type(request_id) not in {int, str, type(None)}:
        raise _invalid("an id must be an integer or a string")
    method, params = message.get("method"), message.get("params", {})
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise _invalid('a request needs "jsonrpc":"2.0" and a method', request_id)
    if not isinstance(params, dict):
        raise _invalid("parameters must be named", request_id, ErrorCode.INVALID_PARAMS)
    return RpcCall(request_id, method, params)


def _invalid(
    message: str, request_id: int | str | None = None, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> RefusedError:
    error = RefusedError(message, code=code)
    error.request_id = request_id
    return error


def request_line(request_id: int, method: str, params: dict[str, Any]) -> bytes:
    """Return a request as a line."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def result_line(request_id: int | str | None, result_json: str) -> bytes:
    """Return an answer as a line; the result is JSON text already."""
    return f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result_json}}}\n'.encode()


def push_line(method: str, params_json: str) -> bytes:
    """Return a notification as a line; the parameters are JSON text already."""
    return f'{{"jsonrpc":"2.0","method":{json.dumps(method)},"params":{params_json}}}\n'.encode()


def error_line(error: RefusedError) -> bytes:
    """Return an error answer as a line."""
    message = {"jsonrpc": "2.0", "id": error.request_id, "error": error.body}
    return codec.encode(message).encode() + b"\n"


class LineBuffer:
    """Splits a byte stream into lines; a line that is too long is skipped and comes out as None.

    Args:
        max_bytes: the longest line.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._skipping = False

    @property
    def unfinished_bytes(self) -> int:
        """The bytes of the line that is not complete yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes | None]:
        """Add bytes and return the lines that they complete, without line ends."""
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


class _Head(Struct, frozen=True):
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class _Result(Struct, Generic[T], frozen=True):
    result: T


class _Params(Struct, Generic[T], frozen=True):
    params: T


class BrokenConnectionError(ConnectionError):
    """The other side closed the connection, or what it sent is not the protocol."""


class AnswerError(Exception):
    """The answer to a request is an error."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(body.message)
        self.body = body


class Answer:
    """The answer to a request, not yet decoded."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def result(self, result_type: type[T]) -> T:
        """Return the result.

        Raises:
            BrokenConnectionError: it is not of that type.
        """
        return _decode_line(self._line, _Result[result_type]).result  # type: ignore[valid-type]


class Notification:
    """A message that the daemon pushed, not yet decoded."""

    def __init__(self, method: str, line: bytes) -> None:
        self.method = method
        self._line = line

    def params(self, params_type: type[T]) -> T:
        """Return the parameters.

        Raises:
            BrokenConnectionError: they are not of that type.
        """
        return _decode_line(self._line, _Params[params_type]).params  # type: ignore[valid-type]


class ClientSession:
    """The client's side of one connection, without I/O: requests become bytes, received bytes become messages.

    Answers carry the number of their request, so late answers are skipped.
    """

    def __init__(self) -> None:
        self._last_id = 0
        self._buffer = LineBuffer(_MAX_ANSWER_BYTES)
        self._lines: deque[bytes] = deque()

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """Return what to send for a request; `next_answer` gives the answer to the last one."""
        self._last_id += 1
        return request_line(self._last_id, method, params)

    def feed(self, data: bytes) -> None:
        """Take received bytes.

        Raises:
            BrokenConnectionError: the stream ended, or a line is too long.
        """
        if not data:
            raise BrokenConnectionError("end of stream")
        for line in self._buffer.feed(data):
            if line is None:
                raise BrokenConnectionError("not the protocol")
            self._lines.append(line)

    def next_answer(self) -> Answer | None:
        """Return the answer to the last request, None when more bytes are needed.

        Raises:
            AnswerError: the answer is an error.
            BrokenConnectionError: the bytes are not the protocol.
        """
        while self._lines:
            line = self._lines.popleft()
            head = _decode_line(line, _Head)
            if head.error is not UNSET and head.id in {self._last_id, None}:
                raise AnswerError(head.error)
            if head.id == self._last_id:
                return Answer(line)
        return None

    def next_notification(self) -> Notification | None:
        """Return the next notification, None when more bytes are needed.

        Raises:
            BrokenConnectionError: the bytes are not the protocol.
        """
        while self._lines:
            line = self._lines.popleft()
            head = _decode_line(line, _Head)
            if head.method is not UNSET:
                return Notification(head.method, line)
        return None


def _decode_line(line: bytes, message_type: type[R]) -> R:
    try:
        return codec.decode(line, message_type)
    except ValueError as error:
        raise BrokenConnectionError("not the protocol") from error
