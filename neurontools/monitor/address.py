"""Where an exporter listens."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.errors import UsageError


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
        UsageError: it is none.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host, port = "", ""
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"bad address {text!r}", "give [HOST]:PORT, e.g. :8000, localhost:9100, [::1]:8000")
    return host, int(port)
