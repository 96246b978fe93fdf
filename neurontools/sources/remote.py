"""A machine elsewhere as a source: the metrics that its neuron-monitor-prometheus serves, scraped over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.snapshot import Snapshot
from neurontools.monitor.exposition import samples
from neurontools.sources.recording import known_instance, reported_devices
from neurontools.sources.reported import ReportedMachine, unknown_process
from neurontools.sources.scraped import Scrapes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse

_REMOTE = "remote"
_TIMEOUT_S = 5.0
_LONGEST_BYTES = 64 << 20
_FIRST_PERIOD_S = 1.0


class ScrapeError(NeuronToolsError):
    """A machine elsewhere could not be asked, or did not tell of Neuron devices."""


class RemoteSource:
    """What an exporter tells, scraped anew for each snapshot. Nothing is remembered of what happened in between.

    Args:
        url: where the exporter is; `http://host:8000` means its `/metrics`.

    Raises:
        UsageError: the URL is none of HTTP.
    """

    live = True

    def __init__(self, url: str) -> None:
        self._url = scrape_url(url)
        self.name = f"{_REMOTE}:{host_of(self._url)}"
        self.notices: tuple[str, ...] = ()
        self._told = ReportedMachine(lambda pid, tag: unknown_process(pid, tag, _REMOTE))
        self._scrapes = Scrapes()
        self._last_s: float | None = None
        self._started_unix_s = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open."""

    def snapshot(self) -> Snapshot:
        """Return what the exporter tells now.

        Raises:
            ScrapeError: it does not answer, or tells nothing of Neuron devices.
        """
        text = _fetched(self._url)
        now_s = time.monotonic()
        period_s = _FIRST_PERIOD_S if self._last_s is None else max(1e-3, now_s - self._last_s)
        self._last_s = now_s
        self._told.take(self._scrapes.report(samples(text), period_s))
        told, hardware = self._told, self._told.hardware
        if not hardware.neuron_device_count:
            raise ScrapeError(f"{self._url} tells of no Neuron device", "is a neuron-monitor running there?")
        processes = told.processes()
        known = known_instance(told.instance.instance_type)
        lnc = max(1, hardware.logical_neuroncore_config)
        return Snapshot(
            machine=self.name.removeprefix(f"{_REMOTE}:"),
            source=_REMOTE,
            instance_type=told.instance.instance_type,
            instance_id=told.instance.instance_id,
            lnc=lnc,
            lnc_applies=known.lnc_applies if known else lnc > 1,
            neuroncore_version=hardware.neuroncore_version,
            taken_ns=round(told.clock_s * 1e9),
            taken_unix_s=time.time(),
            started_unix_s=self._started_unix_s,
            devices=reported_devices(told, processes),
            processes=processes,
        )

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now and then every `period_s` seconds.

        Raises:
            ScrapeError: the exporter does not answer, or tells nothing of Neuron devices.
        """
        next_s = time.monotonic()
        while True:
            yield self.snapshot()
            next_s = max(next_s + period_s, time.monotonic())
            time.sleep(next_s - time.monotonic())


def host_of(url: str) -> str:
    """Return host and port of an address, without what it says of a user."""
    return urlsplit(url).netloc.rpartition("@")[2]


def is_url(text: str) -> bool:
    """Return whether a text means an exporter's address and no file."""
    return text.startswith(("http://", "https://"))


def scrape_url(text: str) -> str:
    """Return the address that is scraped.

    Raises:
        UsageError: it is none of HTTP.
    """
    try:
        parts = urlsplit(text)
        usable = (
            parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{text!r} is no address of an exporter", "give one like http://host:8000/metrics")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in {"", "/"} else "/metrics"))


def _fetched(url: str) -> str:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(url, headers={"Accept": "text/plain", "User-Agent": "neurontools"})  # noqa: S310  HTTP, checked
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return _text(answer, url)
    except HTTPError as error:
        error.close()
        raise ScrapeError(f"{url} answers {error.code} {error.reason}") from error
    except URLError as error:
        raise ScrapeError(f"cannot reach {url}: {_why(error.reason)}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ScrapeError(f"cannot read {url}: {_why(error)}") from error


def _text(answer: HTTPResponse, url: str) -> str:
    data = answer.read(_LONGEST_BYTES + 1)
    if len(data) > _LONGEST_BYTES:
        raise ScrapeError(f"{url} sends more than {_LONGEST_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)
