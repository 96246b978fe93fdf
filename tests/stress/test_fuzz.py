"""Requests that nearly make sense, made by hypothesis: each gets an answer, and the machine is right afterwards."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.machine import render_client
from neurontools.machine.client import Client
from neurontools.machine.codec import convert
from neurontools.machine.faults.kinds import FaultKind
from neurontools.machine.protocol import MAX_LINE_BYTES, request_line
from neurontools.machine.snapshot import HardwareCounter, Snapshot

if TYPE_CHECKING:
    from neurontools.machine.machine_config import DaemonInfo

METHODS = (
    *("hello", "describe", "snapshot", "watch", "register", "unregister", "reserve"),
    *("register_synthetic", "unregister_synthetic", "reserve_synthetic", "count_hardware", "reset_hardware"),
    *(
        "inject_fault",
        "list_faults",
        "clear_faults",
        "take_fault",
        "holds_fault",
        "release_fault",
        "reset_device",
    ),
    *("profile", "end_profile", "profile_directory"),
)
NUMBERS = (-1, 0, 1, 2, 31, 32, 63, 1 << 31, 1 << 40, 1 << 62, 1 << 63, 1 << 80)

whole = st.sampled_from(NUMBERS)
words = st.sampled_from(
    ["", "x", "\ud800", "\0", "é" * 300, "[/bold]", "\x1b[2J", "a\nb", *FaultKind, *HardwareCounter]
)
cores = st.lists(st.integers(-1, 33), max_size=4)
wish = st.fixed_dictionaries(
    {}, optional={"tag": words, "command": words, "cores": cores, "count": whole, "uid": whole, "odd": whole}
)
change = st.fixed_dictionaries({}, optional={"pid": whole, "core": whole, "nbytes": whole})
numbers = (
    "core",
    "count",
    "nbytes",
    "total_bytes",
    "device",
    "amount",
    "pid",
    "to",
    "fault",
    "after_executions",
)
texts = ("tag", "command", "runtime_version", "kind", "counter", "action", "ecc", "client")
seconds = ("period_s", "after_s", "duration_s", "every_s", "factor")
params = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(numbers, whole),
        **dict.fromkeys(texts, words),
        **dict.fromkeys(seconds, st.floats() | whole),
        **dict.fromkeys(("cores", "ids", "pids", "known"), cores),
        **dict.fromkeys(("uses_device", "reset_cores", "collective", "force", "owner"), st.booleans()),
        "protocol": st.just(1),
        "processes": st.lists(wish, max_size=3),
        "changes": st.lists(change, max_size=3),
    },
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A method with some of the parameters that methods have."""
    drawn = draw(params)
    names = draw(st.lists(st.sampled_from(sorted(drawn)), max_size=5, unique=True)) if drawn else []
    return draw(st.sampled_from(METHODS)), {name: drawn[name] for name in names}


def answered(sock: socket.socket, *numbers: int | None) -> dict[str, Any]:
    with sock.makefile("rb") as lines:
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") in numbers:
                return message
    raise AssertionError("the daemon closed the connection")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(calls(), min_size=1, max_size=8))
def test_every_request_gets_an_answer_and_the_machine_stays_right(
    daemon: DaemonInfo, requests: list[tuple[str, dict[str, Any]]]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(daemon.socket)
        sock.sendall(request_line(0, "hello", {"protocol": 1, "client": "fuzz"}))
        assert "result" in answered(sock, 0)
        for number, (method, values) in enumerate(requests, 1):
            sock.sendall(request_line(number, method, values))
            answer = answered(sock, number, None)  # without an id where a number is too large for the reader
            assert ("result" in answer) != ("error" in answer), answer
            assert answer.get("error", {}).get("code") != -32603, (method, values, answer)
    with Client.connect() as client:
        snapshot = client.snapshot()
        assert convert(snapshot.to_json(), Snapshot) == snapshot
        owned = [use.core for process in snapshot.processes for use in process.cores]
        assert len(owned) == len(set(owned))
        for flags in ([], ["-j"], ["-a"], ["-t"]):
            reply = render_client.request(flags, "default")
            assert reply is not None
            assert (reply[0], bool(reply[1])) == (0, True)
        client.clear_faults()
        client.unregister()
        client.call("register_synthetic", processes=[], known=[])
    assert "Traceback" not in Path(daemon.log).read_text(encoding="utf-8")


def test_oversized_lines_cost_their_sender_an_error_and_nothing_else(daemon: DaemonInfo) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(daemon.socket)
        sock.sendall(request_line(0, "hello", {"protocol": 1, "client": "fuzz"}))
        answered(sock, 0)
        for content in (
            b"[" * MAX_LINE_BYTES,
            b"9" * MAX_LINE_BYTES,
            b'"' + b"\\u0000" * (MAX_LINE_BYTES // 5),
        ):
            sock.sendall(content + b"\n")
        sock.sendall(request_line(1, "register", {"cores": list(range(100_000))}))
        assert answered(sock, 1)["error"]["code"] == -32602
