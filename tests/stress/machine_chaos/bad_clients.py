"""Clients that do not keep to the protocol: noise, half a line, too much of one, requests without reading the answers."""

from __future__ import annotations

import json
import os
import random
import socket
import time

from neurontools import paths
from neurontools.machine.protocol import MAX_LINE_BYTES

HELLO = b'{"jsonrpc":"2.0","id":0,"method":"hello","params":{"protocol":1,"client":"nuisance"}}\n'
METHODS = (
    "hello",
    "describe",
    "snapshot",
    "watch",
    "register",
    "unregister",
    "reserve",
    "",
    "\ud800",
)
VALUES = (
    None,
    True,
    -1,
    0,
    1 << 62,
    1 << 80,
    1e308,
    "",
    "\ud800",
    "x" * 5000,
    [],
    [[]] * 9,
    [0, 0],
    {"": {}},
)
NAMES = (
    "protocol",
    "client",
    "period_s",
    "cores",
    "count",
    "tag",
    "command",
    "core",
    "total_bytes",
    "owner",
)
MACHINE = "chaos"


def misbehave(seconds: float) -> None:
    """Misbehave in one way for a number of seconds."""
    end = time.monotonic() + seconds
    behaviour = random.choice((_send_noise, _invalid_requests, _send_endless_line, _never_read, _disconnect))
    while time.monotonic() < end:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(1.0)
                sock.connect(paths.socket_path(MACHINE))
                behaviour(sock)
        except OSError:
            time.sleep(0.05)  # it was dropped, or the daemon was killed


def _send_noise(sock: socket.socket) -> None:
    for _ in range(20):
        sock.sendall(
            random.randbytes(random.randrange(1 << random.randrange(14))) + random.choice((b"", b"\n"))
        )
        time.sleep(0.01)


def _invalid_requests(sock: socket.socket) -> None:
    sock.sendall(HELLO)
    for number in range(50):
        params = {random.choice(NAMES): random.choice(VALUES) for _ in range(random.randrange(4))}
        request = {"jsonrpc": "2.0", "id": number, "method": random.choice(METHODS), "params": params}
        if random.random() < 0.2:
            request[random.choice(tuple(request))] = random.choice(VALUES)
        line = json.dumps(request).encode()
        if random.random() < 0.2:
            cut = random.randrange(len(line))
            line = line[:cut] + random.randbytes(3) + line[cut + random.randrange(5) :]
        sock.sendall(line + b"\n")
        sock.recv(1 << 16)
        if b'"register"' in line:
            sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"unregister","params":{}}\n')
            sock.recv(1 << 16)


def _send_endless_line(sock: socket.socket) -> None:
    for _ in range(40):
        sock.sendall(b"[" * (MAX_LINE_BYTES // 16))
        time.sleep(0.005)
    sock.sendall(b"\n")
    sock.recv(1 << 16)


def _never_read(sock: socket.socket) -> None:
    sock.sendall(HELLO)
    sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"watch","params":{"period_s":0.05}}\n')
    for number in range(500):
        sock.sendall(b'{"jsonrpc":"2.0","id":%d,"method":"snapshot","params":{}}\n' % number)
        time.sleep(0.005)


def _disconnect(sock: socket.socket) -> None:
    time.sleep(random.random())
    sock.sendall(HELLO[: random.randrange(len(HELLO))])
    if random.random() < 0.5:
        os._exit(0)
