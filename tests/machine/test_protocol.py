"""Lines, requests and what is wrong with them."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.machine.daemon.rpc import convert_params
from neurontools.machine.faults.params import FaultSpec
from neurontools.machine.protocol import (
    MAX_LINE_BYTES,
    ErrorBody,
    ErrorCode,
    InvalidParamsError,
    LineBuffer,
    RefusedError,
    Request,
    error_line,
    parse_request,
    request_line,
)
from neurontools.machine.requests import (
    RegisterRequest,
    ReserveRequest,
    ReserveSyntheticRequest,
    ResetHardware,
    WatchRequest,
)
from neurontools.machine.snapshot import HardwareCounter


def code_of(line: bytes | None) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        parse_request(line)
    return caught.value.body.code


def test_a_request_is_read_as_it_was_written() -> None:
    request = parse_request(request_line(7, "reserve", {"core": 1, "total_bytes": 2}))
    assert (request.request_id, request.method) == (7, "reserve")
    assert request.params == {"core": 1, "total_bytes": 2}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", ErrorCode.PARSE),
        (b"{", ErrorCode.PARSE),
        (b"\xff\xfe\x00", ErrorCode.PARSE),
        (b"[" * 200_000, ErrorCode.PARSE),
        (b'{"id":' + b"9" * 5000 + b"}", ErrorCode.PARSE),
        (b"[]", ErrorCode.INVALID_REQUEST),
        (b"3", ErrorCode.INVALID_REQUEST),
        (b"{}", ErrorCode.INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","method":"hello"}', ErrorCode.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":3}', ErrorCode.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"x","id":[]}', ErrorCode.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"x","id":true}', ErrorCode.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"x","params":[1]}', ErrorCode.INVALID_PARAMS),
        (None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_a_request_has_its_code(line: bytes | None, code: ErrorCode) -> None:
    assert code_of(line) == code


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        assert parse_request(data).method is not None


def error_of(request_type: type[Request], **params: object) -> ErrorBody:
    with pytest.raises(InvalidParamsError) as caught:
        convert_params(params, request_type)
    return caught.value.body


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, None, [], 2**63])
def test_an_integer_of_another_type_or_range_is_an_error_that_names_it(value: object) -> None:
    assert error_of(ReserveRequest, core=value, total_bytes=1).message.startswith("parameter 'core': ")


@pytest.mark.parametrize("value", [float("nan"), 0.0, "1", True, None, 1e9])
def test_a_period_out_of_range_is_an_error_that_names_it(value: object) -> None:
    assert error_of(WatchRequest, period_s=value).message.startswith("parameter 'period_s': ")


@pytest.mark.parametrize(
    ("request_type", "params", "message", "remedy"),
    [
        (ReserveRequest, {"core": "0", "total_bytes": 1}, "parameter 'core': expected int, got str", ""),
        (ReserveRequest, {"core": -1, "total_bytes": 1}, "parameter 'core': expected int >= 0", ""),
        (ReserveRequest, {"core": 1}, "parameter 'total_bytes' is missing", ""),
        (RegisterRequest, {"corse": 1}, "unknown parameter 'corse'", "did you mean 'cores'?"),
        (RegisterRequest, {"cores": [0, "x"]}, "parameter 'cores': expected int, got str - at $[1]", ""),
        (
            ReserveSyntheticRequest,
            {"changes": [{"pid": 1}]},
            "parameter 'changes': object missing required field core - at $[0]",
            "",
        ),
        (FaultSpec, {"kind": "hangg"}, "unknown kind 'hangg'", "did you mean 'hang'?"),
        (
            ResetHardware,
            {"device": 0, "counter": "xyz"},
            "unknown counter 'xyz'",
            f"known: {', '.join(HardwareCounter)}",
        ),
    ],
)
def test_a_wrong_parameter_is_named(
    request_type: type[Request], params: dict[str, object], message: str, remedy: str
) -> None:
    body = error_of(request_type, **params)
    assert (body.code, body.message, body.data["remedy"]) == (ErrorCode.INVALID_PARAMS, message, remedy)


@given(st.lists(st.binary(max_size=20).filter(lambda piece: b"\n" not in piece), max_size=10), st.data())
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    buffer, out = LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        out += buffer.feed(stream[:size])
        stream = stream[size:]
    assert out == lines


def test_a_line_of_the_greatest_length_passes_and_a_longer_one_is_skipped() -> None:
    buffer = LineBuffer()
    longest = b"x" * MAX_LINE_BYTES
    assert buffer.feed(longest) == []
    assert buffer.feed(b"\nnext\n") == [longest, b"next"]
    assert buffer.feed(longest + b"y") == [None]
    assert buffer.feed(b"still the same line") == []
    assert buffer.feed(b"\nnext\n") == [b"next"]
    assert buffer.feed(longest + b"y\nnext\n") == [None, b"next"]


def test_an_error_has_a_remedy_for_programs() -> None:

    error = RefusedError("no", "do this", held=3)
    error.request_id = 4
    assert json.loads(error_line(error)) == {
        "jsonrpc": "2.0",
        "id": 4,
        "error": {"code": -32002, "message": "no", "data": {"held": 3, "remedy": "do this"}},
    }


def test_error_codes_stay_what_older_clients_know() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        "PARSE": -32700,
        "INVALID_REQUEST": -32600,
        "UNKNOWN_METHOD": -32601,
        "INVALID_PARAMS": -32602,
        "INTERNAL": -32603,
        "OTHER_VERSION": -32000,
        "HELLO_FIRST": -32001,
        "REFUSED": -32002,
        "CORES_BUSY": -32003,
        "OUT_OF_MEMORY": -32004,
        "PEER_REFUSED": -32005,
        "DEVICE_LOST": -32006,
    }
