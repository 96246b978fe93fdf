"""Starts an exporter and its server, or says what is missing for that. Loads prometheus_client only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.monitor.address import ScrapeAddress
    from neurontools.monitor.exporter import Exporter
    from neurontools.monitor.scrape import ScrapeServer


def start_exporter(
    address: ScrapeAddress, on_problem: Callable[[str], None]
) -> tuple[Exporter, ScrapeServer]:
    """Return an exporter without reports and the running server that shows it.

    Args:
        address: where to listen.
        on_problem: told in a line why a group of a report was skipped.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        NeuronToolsError: the server cannot listen there.
    """
    try:
        from neurontools.monitor.exporter import Exporter
        from neurontools.monitor.scrape import ScrapeServer
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"Prometheus metrics need {error.name}, which is not installed",
            "pip install 'neurontools[prometheus]'",
        ) from error
    exporter = Exporter(on_problem)
    return exporter, ScrapeServer(exporter, address)
