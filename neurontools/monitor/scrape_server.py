"""The HTTP or HTTPS server that Prometheus scrapes."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from resource import RLIMIT_NOFILE, getrlimit
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from neurontools.errors import MissingDependencyError, NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.monitor.exporter import Exporter

LOCALHOST = "127.0.0.1"
_REQUEST_S = 10.0
_RETRY_S = 0.1
_MOST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class ScrapeAddress:
    """Where to listen, and the certificate and key for HTTPS.

    An empty host means localhost; `0.0.0.0` and `::` mean every address of this computer.
    """

    host: str
    port: int
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def scheme(self) -> str:
        """HTTP or HTTPS."""
        return "HTTPS" if self.cert_file else "HTTP"


def scrape_address(text: str) -> tuple[str, int]:
    """Return host and port of `[HOST]:PORT` or `PORT`; an IPv6 address stands in brackets, no host is "".

    Raises:
        UsageError: it is not an address.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host, port = "", ""
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise UsageError(f"bad address {text!r}", "use [HOST]:PORT, e.g. :8000, localhost:9100, [::1]:8000")
    return host, int(port)


def start_exporter(
    address: ScrapeAddress, on_problem: Callable[[str], None]
) -> tuple[Exporter, ScrapeServer]:
    """Return an exporter without reports and the running server that shows it.

    Args:
        address: where to listen.
        on_problem: gets a line for each reason why a group was skipped.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        NeuronToolsError: the server cannot listen there.
    """
    try:
        from neurontools.monitor.exporter import Exporter
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"Prometheus metrics need {error.name}, which is not installed",
            "pip install 'neurontools[prometheus]'",
        ) from error
    exporter = Exporter(on_problem)
    return exporter, ScrapeServer(exporter, address)


class ScrapeServer:
    """Serves an exporter's metrics in a thread of its own until closed.

    Args:
        exporter: whose metrics.
        address: where.

    Raises:
        NeuronToolsError: the port is in use, the address is none of this computer's, or the certificate or key
            cannot be used.
    """

    def __init__(self, exporter: Exporter, address: ScrapeAddress) -> None:
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            PlatformCollector,
            ProcessCollector,
            make_wsgi_app,
        )

        registry = CollectorRegistry()
        # The real companion serves prometheus_client's default registry, which has these three.
        GCCollector(registry)
        PlatformCollector(registry)
        ProcessCollector(registry=registry)
        registry.register(exporter)
        context = _tls(address)
        self._server = _bound(address, context)
        self._server.set_app(make_wsgi_app(registry))
        self.port: int = self._server.server_address[1]
        """The port, also when 0 requested any free one."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, so that a slow client does not delay others.

    A request has `_REQUEST_S` seconds in all, however it is sent. A full server closes the connection that has been
    open longest: a scrape takes milliseconds, so that is a slow client.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    context: ssl.SSLContext | None = None

    def __init__(self, address: tuple[Any, ...], handler: type[WSGIRequestHandler]) -> None:
        self._until_s: dict[socket.socket, float] = {}  # oldest first
        self._changed = threading.Condition()
        self._most = _most_connections()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without asking the name service for this computer's name, as WSGIServer would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the handshake of TLS happens in the request's thread."""
        try:
            connection, address = self.socket.accept()
        except OSError:
            # Without descriptors the connection stays in the queue, and would be tried again without a pause.
            time.sleep(_RETRY_S)
            raise
        if self.context is not None:
            connection = self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], address: Any) -> None:
        """Answer a request in a thread, once there is room for it."""
        assert isinstance(request, socket.socket)
        with self._changed:
            while len(self._until_s) >= self._most:
                _interrupt(next(iter(self._until_s)))
                self._changed.wait(_RETRY_S)
            self._until_s[request] = time.monotonic() + _REQUEST_S
        super().process_request(request, address)

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], address: object) -> None:
        """Answer a request."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, address)

    def close_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection."""
        assert isinstance(request, socket.socket)
        with self._changed:
            self._until_s.pop(request, None)
            super().close_request(request)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """End requests that take too long; called several times a second."""
        now_s = time.monotonic()
        with self._changed:
            for request, until_s in self._until_s.items():
                if until_s < now_s:
                    _interrupt(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away."""


def _most_connections() -> int:
    """Return how many connections are open at once: few enough that the monitor keeps descriptors for its own files."""
    files = getrlimit(RLIMIT_NOFILE)[0]
    return _MOST_CONNECTIONS if files < 0 else max(1, min(_MOST_CONNECTIONS, files // 4))


def _interrupt(request: socket.socket) -> None:
    """Let the thread of a request find its connection closed."""
    with suppress(OSError):
        socket.socket.shutdown(
            request, socket.SHUT_RDWR
        )  # not that of TLS, which is not made for other threads


class _Handler(WSGIRequestHandler):
    """Writes no log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        """Keep stderr for problems."""

    def address_string(self) -> str:
        """Return the client's number; its name is not looked up."""
        return str(self.client_address[0])


def _bound(address: ScrapeAddress, context: ssl.SSLContext | None) -> _Server:
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address.host or LOCALHOST, address.port, type=socket.SOCK_STREAM
        )[0]
    except socket.gaierror as error:
        raise NeuronToolsError(
            f"cannot listen on {address.host!r}: {error.strerror}", "use another host"
        ) from None
    kind = type("_Server", (_Server,), {"address_family": family, "context": context})
    try:
        server: _Server = kind(target[:2], _Handler)
    except OSError as error:
        where = f"port {address.port}" + (f" of {address.host}" if address.host else "")
        raise NeuronToolsError(
            f"cannot listen on {where}: {os.strerror(error.errno or 0)}", "choose another with --port"
        ) from None
    return server


def _tls(address: ScrapeAddress) -> ssl.SSLContext | None:
    if address.cert_file is None and address.key_file is None:
        return None
    if address.cert_file is None or address.key_file is None:
        missing = "--cert-file" if address.cert_file is None else "--key-file"
        raise UsageError(f"HTTPS needs {missing} too", "give both --cert-file and --key-file")
    for path in (address.cert_file, address.key_file):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise NeuronToolsError(f"cannot read {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(address.cert_file, address.key_file, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise NeuronToolsError(
            f"cannot use certificate {address.cert_file} with key {address.key_file}: {error}",
            "both must be PEM files that belong together, the key without a password",
        ) from None
    return context
