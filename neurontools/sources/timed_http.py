"""HTTP answers that must be complete at a given time: a server that sends a byte now and then is not waited for."""

from __future__ import annotations

import time
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any
from urllib.request import AbstractHTTPHandler, HTTPHandler, HTTPSHandler

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from ssl import SSLContext
    from urllib.request import Request


def http_handler(end_s: float) -> HTTPHandler:
    """Return what opens HTTP addresses; reading an answer after `end_s` (monotonic) is a TimeoutError."""

    class TimedHandler(HTTPHandler):
        """Opens HTTP addresses."""

        def do_open(self, http_class: Any, req: Request, **arguments: Any) -> HTTPResponse:
            """Send a request and return its answer."""
            return super().do_open(_timed(http_class, end_s), req, **arguments)

    return TimedHandler()


def https_handler(end_s: float, make_context: Callable[[], SSLContext]) -> HTTPSHandler:
    """Return what opens HTTPS addresses, as `http_handler` does HTTP; the context is made when the first one is opened."""

    class TimedHandler(HTTPSHandler):
        """Opens HTTPS addresses."""

        def __init__(self) -> None:
            AbstractHTTPHandler.__init__(self)  # that of HTTPSHandler reads the system's certificates at once

        def https_open(self, req: Request) -> HTTPResponse:
            """Send a request and return its answer."""
            return self.do_open(_timed(HTTPSConnection, end_s), req, context=make_context())

    return TimedHandler()


def _timed(http_class: Callable[..., HTTPConnection], end_s: float) -> Any:
    class TimedResponse(HTTPResponse):
        """An answer whose bytes, the headers too, come before `end_s`."""

        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
            super().__init__(sock, *arguments, **options)
            self.fp = BufferedReader(_TimedReader(sock, self.fp, end_s))

    def connect(*arguments: Any, **options: Any) -> HTTPConnection:
        connection = http_class(*arguments, **options)
        connection.response_class = TimedResponse
        return connection

    return connect


class _TimedReader(RawIOBase):
    """Reads a socket until a time.

    Args:
        sock: the socket.
        file: the buffered file of the socket, of which nothing was read; its raw file is used and closed.
        end_s: the time (monotonic) after which reading is a TimeoutError.
    """

    def __init__(self, sock: socket.socket, file: BufferedReader, end_s: float) -> None:
        self._sock = sock
        self._file = file
        self._end_s = end_s

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read the available bytes, at least one unless the peer has closed."""
        remaining_s = self._end_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining_s)
        return self._file.raw.readinto(buffer)

    def close(self) -> None:
        """Close the socket's file."""
        self._file.close()
        super().close()
