"""A remote machine as a source: the metrics of its neuron-monitor-prometheus, scraped over HTTP or HTTPS."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.sources.prometheus_text import ScrapeReader, parse_samples
from neurontools.sources.reported_machine import ReportedMachine, unknown_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse
    from ssl import SSLContext
    from urllib.request import HTTPRedirectHandler, OpenerDirector, Request

    from neurontools.machine.snapshot import Snapshot

UNCHECKED = "https+insecure"
"""The scheme of HTTPS with whatever certificate the other side has."""

_SCHEMES = ("http", "https", UNCHECKED)
_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0
_LONGEST_BYTES = 64 << 20

_REMOTE = "remote"
_FIRST_PERIOD_S = 1.0


class ScrapeError(NeuronToolsError):
    """A remote machine did not answer, or reports no Neuron devices."""


def is_url(text: str) -> bool:
    """Return whether a text is the address of an exporter, not a file."""
    return text.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


def host_of(url: str) -> str:
    """Return host and port of an address, without what it says of a user."""
    return urlsplit(url).netloc.rpartition("@")[2]


def scrape_url(text: str) -> str:
    """Return the address that is scraped: `/metrics` where none is given.

    Raises:
        UsageError: it is none of HTTP.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in _SCHEMES and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{_without_user(text)!r} is not the address of an exporter", "use e.g. http://host:8000/metrics"
        )
    return urlunsplit(parts._replace(path=parts.path if parts.path not in {"", "/"} else "/metrics"))


class Scraper:
    """Fetches one exporter's text, each time anew.

    Args:
        url: as `scrape_url` returns it; a user and password in it are sent as HTTP's basic authentication.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.address = _without_user(url)
        """The address as it may be shown."""

    def text(self) -> str:
        """Fetch it.

        Raises:
            ScrapeError: it is not there, does not answer in time, sends too much, is not trusted or redirects in a way
                that is not followed.
        """
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError

        try:
            with self._opener().open(self._request(), timeout=_TIMEOUT_S) as answer:
                return self._read(answer)
        except HTTPError as error:
            error.close()
            raise ScrapeError(f"{self.address} answers {_answered(error.code, error.msg)}") from error
        except URLError as error:
            raise self._unreachable(error.reason) from error
        except (OSError, HTTPException, ValueError) as error:
            raise ScrapeError(f"cannot read {self.address}: {_failure_text(error)}") from error

    def _opener(self) -> OpenerDirector:
        from urllib.request import build_opener

        from neurontools.sources.timed_http import http_handler, https_handler

        end_s = time.monotonic() + _ANSWER_TIMEOUT_S
        handlers = [_redirect_handler(), http_handler(end_s), https_handler(end_s, lambda: self._context)]
        return build_opener(*handlers)

    @cached_property
    def _context(self) -> SSLContext:
        import ssl

        context = ssl.create_default_context()
        if urlsplit(self._url).scheme == UNCHECKED:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _request(self) -> Request:
        from base64 import b64encode
        from urllib.parse import unquote
        from urllib.request import Request

        parts = urlsplit(self.address)
        url = urlunsplit(parts._replace(scheme="https" if parts.scheme == UNCHECKED else parts.scheme))
        headers = {"Accept": "text/plain", "User-Agent": "neurontools"}
        request = Request(url, headers=headers)  # noqa: S310  HTTP, checked
        user, at, _ = urlsplit(self._url).netloc.rpartition("@")
        if at:
            # Not sent on when another address is redirected to.
            request.add_unredirected_header(
                "Authorization", f"Basic {b64encode(unquote(user).encode()).decode()}"
            )
        return request

    def _read(self, answer: HTTPResponse) -> str:
        data = answer.read(_LONGEST_BYTES + 1)
        if len(data) > _LONGEST_BYTES:
            raise ScrapeError(f"{self.address} sends more than {_LONGEST_BYTES >> 20} MiB")
        return data.decode("utf-8", "replace")

    def _unreachable(self, reason: object) -> ScrapeError:
        import ssl

        if isinstance(reason, ssl.SSLCertVerificationError):
            return ScrapeError(
                f"the certificate of {host_of(self.address)} is not trusted ({reason.verify_message}); "
                f"SSL_CERT_FILE or {UNCHECKED}://",
                f"SSL_CERT_FILE=cert.pem names certificates to trust, {UNCHECKED}://... takes any",
            )
        if isinstance(reason, ssl.SSLError):
            return ScrapeError(
                f"{host_of(self.address)} does not speak HTTPS",
                "check whether the address is http://, or a proxy or an old TLS version is in between",
            )
        return ScrapeError(f"cannot reach {self.address}: {_failure_text(reason)}")


def _redirect_handler() -> HTTPRedirectHandler:
    """Return what follows at most five redirects: to HTTP and HTTPS alone, never from an encrypted address to plain HTTP."""
    from urllib.error import URLError
    from urllib.request import HTTPRedirectHandler

    class SafeRedirects(HTTPRedirectHandler):
        """Follows at most five redirects."""

        max_redirections = 5
        max_repeats = 2
        inf_msg = "a redirect loop, or too many redirects; "

        def redirect_request(
            self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> Request | None:
            """Return the request that follows, unless it is less safe than the one before."""
            before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
            if after not in {"http", "https"} or (before, after) == ("https", "http"):
                fp.close()
                what = (
                    "not encrypted; use that address directly to accept it" if after == "http" else "not HTTP"
                )
                raise URLError(f"it redirects to {newurl}, which is {what}")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return SafeRedirects()


def _without_user(url: str) -> str:
    start, scheme, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{start}{scheme}{host.rpartition('@')[2]}{slash}{path}"


def _answered(code: int, reason: str) -> str:
    return f"{code} {reason.splitlines()[0]}" if reason else str(code)


def _failure_text(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "timed out"
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)


class RemoteSource:
    """The metrics of an exporter, scraped for each snapshot.

    Args:
        url: where the exporter is; `http://host:8000` means its `/metrics`, `https+insecure://` any certificate.

    Raises:
        UsageError: the URL is not HTTP.
    """

    live = True

    def __init__(self, url: str) -> None:
        address = scrape_url(url)
        self._scraper = Scraper(address)
        self.name = f"{_REMOTE}:{host_of(address)}"
        self.notices: tuple[str, ...] = ()
        self._reported = ReportedMachine(lambda pid, tag: unknown_process(pid, tag, _REMOTE))
        self._scrapes = ScrapeReader()
        self._last_s: float | None = None
        self._started_unix_s = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open."""

    def snapshot(self) -> Snapshot:
        """Scrape the exporter.

        Raises:
            ScrapeError: it does not answer, or reports no Neuron devices.
        """
        text = self._scraper.text()
        now_s = time.monotonic()
        period_s = _FIRST_PERIOD_S if self._last_s is None else max(1e-3, now_s - self._last_s)
        self._last_s = now_s
        self._reported.take(self._scrapes.report(parse_samples(text), period_s))
        if not self._reported.hardware.neuron_device_count:
            raise ScrapeError(
                f"{self._scraper.address} reports no Neuron device", "check that neuron-monitor runs there"
            )
        return self._reported.snapshot(
            self.name.removeprefix(f"{_REMOTE}:"),
            _REMOTE,
            taken_unix_s=time.time(),
            started_unix_s=self._started_unix_s,
        )

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds.

        Raises:
            ScrapeError: the exporter does not answer, or reports no Neuron devices.
        """
        next_s = time.monotonic()
        while True:
            yield self.snapshot()
            next_s = max(next_s + period_s, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))
