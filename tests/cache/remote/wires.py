"""Bad networks and servers: a proxy that cuts or stalls, a server that denies."""

from __future__ import annotations

import contextlib
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_EMPTY = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'


class Proxy:
    """Passes connections on to a server.

    `cuts` connections are broken after so many bytes of what the server says; with `stall_after` bytes of all
    together nothing is passed on any more, and `stalled` is set.
    """

    def __init__(self, endpoint: str, *, cuts: int = 0, cut_after: int = 0, stall_after: int = 0) -> None:
        parts = urlsplit(endpoint)
        self._server = (str(parts.hostname), int(parts.port or 0))
        self._cuts, self._cut_after, self._stall_after = cuts, cut_after, stall_after
        self.stalled = threading.Event()
        self.broken = 0
        self._passed = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for side in self._open:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for side in self._open:
            side.close()

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            self._start(self._pass, client, server, 0)
            self._start(self._pass, server, client, self._cut_after)

    def _pass(self, source: socket.socket, target: socket.socket, cut_after: int) -> None:
        here = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                here += len(data)
                self._passed += len(data)
                if self._stall_after and self._passed > self._stall_after:
                    self.stalled.set()
                    continue
                if cut_after and here > cut_after and self.broken < self._cuts:
                    self.broken += 1
                    break
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(endpoint: str, **faults: int) -> Iterator[Proxy]:
    made = Proxy(endpoint, **faults)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def refusing(code: str, *, status: int = 403, only_writes: bool = False) -> Iterator[str]:
    """Give the address of a server that refuses with a code; with `only_writes` it lists empty buckets."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, _EMPTY) if only_writes else self._refuse()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._refuse()

        do_HEAD = do_POST = do_PUT  # noqa: N815  http.server calls them so

        def _refuse(self) -> None:
            body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'
            self._answer(status, body.encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
