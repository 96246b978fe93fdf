"""A remote machine as a source: the metrics of its neuron-monitor-prometheus, scraped over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from neurontools.machine.snapshot import Snapshot
from neurontools.sources.prometheus_text import ScrapeReader, parse_samples
from neurontools.sources.recording import known_instance, reported_devices
from neurontools.sources.reported_machine import ReportedMachine, unknown_process
from neurontools.sources.scraping import ScrapeError, Scraper, host_of, scrape_url

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMOTE = "remote"
_FIRST_PERIOD_S = 1.0


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
        reported, hardware = self._reported, self._reported.hardware
        if not hardware.neuron_device_count:
            raise ScrapeError(
                f"{self._scraper.address} reports no Neuron device", "check that neuron-monitor runs there"
            )
        processes = reported.processes()
        known = known_instance(reported.instance.instance_type)
        lnc = max(1, hardware.logical_neuroncore_config)
        return Snapshot(
            machine=self.name.removeprefix(f"{_REMOTE}:"),
            source=_REMOTE,
            instance_type=reported.instance.instance_type,
            instance_id=reported.instance.instance_id,
            lnc=lnc,
            lnc_applies=known.lnc_applies if known else lnc > 1,
            neuroncore_version=hardware.neuroncore_version,
            taken_ns=round(reported.clock_s * 1e9),
            taken_unix_s=time.time(),
            started_unix_s=self._started_unix_s,
            devices=reported_devices(reported, processes),
            processes=processes,
        )

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now and then every `period_s` seconds.

        Raises:
            ScrapeError: the exporter does not answer, or reports no Neuron devices.
        """
        next_s = time.monotonic()
        while True:
            yield self.snapshot()
            next_s = max(next_s + period_s, time.monotonic())
            time.sleep(next_s - time.monotonic())
