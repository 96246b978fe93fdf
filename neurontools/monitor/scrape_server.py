"""The HTTP or HTTPS server that Prometheus scrapes."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from neurontools.errors import MissingDependencyError, NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.monitor.exporter import Exporter

_CLIENT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ScrapeAddress:
    """Where to listen, and the certificate and key for HTTPS. An empty host means every address of this computer."""

    host: str
    port: int
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def scheme(self) -> str:
        """HTTP or HTTPS."""
        return "HTTPS" if self.cert_file else "HTTP"


def scrape_address(text: str) -> tuple[str, int]:
    """Return host and port of `[HOST]:PORT` or `PORT`; an IPv6 address stands in brackets.

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
    """A thread for each request, so that a slow client does not delay others."""

    daemon_threads = True
    block_on_close = False
    context: ssl.SSLContext | None = None

    def server_bind(self) -> None:
        """Bind without asking the name service for this computer's name, as WSGIServer would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], address: object) -> None:
        """Answer a request; the handshake of TLS happens here, in the request's thread."""
        assert isinstance(request, socket.socket)
        request.settimeout(_CLIENT_TIMEOUT_S)
        if self.context is None:
            super().finish_request(request, address)
            return
        try:
            with self.context.wrap_socket(request, server_side=True) as encrypted:
                super().finish_request(encrypted, address)
        except (ssl.SSLError, OSError):
            return  # not our protocol, or the client went away

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away."""


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
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
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
