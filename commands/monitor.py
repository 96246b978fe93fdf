"""neuron-monitor: the machine's metrics as JSON lines, or for Prometheus."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.monitor.address import ScrapeAddress
    from neurontools.monitor.config import MonitorConfig
    from neurontools.monitor.report import MonitorReport
    from neurontools.sources.source import Source

EXAMPLES = """examples:
  neuron-monitor                              every metric group of every process, every 5 seconds
  neuron-monitor -c monitor.conf              what the file asks for
  neuron-monitor --count 1 | jq .             one line
  neuron-monitor | neuron-monitor-prometheus  metrics for Prometheus on port 8000
  neuron-monitor --prometheus :8000           the same without a pipe
  neuron-monitor --source recording.jsonl     what a recording says

It runs until it is ended: by ctrl+c, SIGTERM, or the end of whoever reads its output.

exit codes: 0 fine, 1 bad configuration file or port, 2 wrong command line, 3 no machine, 4 daemon trouble,
130 interrupted, 143 ended by SIGTERM
"""

_SOURCES = {"sim", "real"}
_ERRORS, _INFORMATION, _EVERYTHING = 1, 3, 4


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-monitor",
        description="Write metrics of the machine and of the processes on it, one JSON object a line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-c", "--config-file", metavar="FILE", help="what to collect, and how often")
    parser.add_argument(
        "--verbose",
        metavar="0..4",
        type=int,
        choices=range(5),
        default=0,
        help="how much to tell on stderr (default: 0)",
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="machine to look at (default: NEURONTOOLS_MACHINE or 'default')"
    )
    parser.add_argument(
        "--source", metavar="sim|real|FILE", default="sim", help="simulated machine, real host or a recording"
    )
    parser.add_argument("--count", metavar="N", type=int, help="end after N reports")
    parser.add_argument(
        "--prometheus",
        metavar="[HOST]:PORT",
        help="serve metrics for Prometheus there instead of writing lines",
    )
    parser.add_argument("--cert-file", metavar="FILE", help="certificate, for HTTPS with --prometheus")
    parser.add_argument("--key-file", metavar="FILE", help="private key, for HTTPS with --prometheus")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if arguments.count is not None and arguments.count < 1:
        raise UsageError(f"--count {arguments.count} is less than 1", "give how many reports you want")
    address = _address(arguments)
    log = _Log(arguments.verbose)
    config = _config(arguments.config_file, log)
    found = _reports(arguments, config, log)
    if address is not None:
        return _serve(found, address)
    from neurontools.monitor.line import report_line

    for report in found:
        line = report_line(report)
        console.out_now(line)
        log.tell(_EVERYTHING, f"wrote {len(line)} characters, {len(report.runtimes)} processes")
    return 0


class _Log:
    """Tells on stderr what `--verbose` asks for."""

    def __init__(self, level: int) -> None:
        self._level = level

    def tell(self, level: int, text: str) -> None:
        """Write a line if it is wanted at this level."""
        if level <= self._level:
            sys.stderr.write(f"neuron-monitor: {text}\n")
            sys.stderr.flush()


def _config(path: str | None, log: _Log) -> MonitorConfig:
    from neurontools.monitor.config import default_config

    if path is None:
        return default_config()
    from neurontools.monitor.config_file import load_config

    config, problems = load_config(path)
    for problem in problems:
        console.warn(problem.located(path))
    log.tell(_INFORMATION, f"{path}: {len(config.periods())} metric groups")
    return config


def _reports(arguments: argparse.Namespace, config: MonitorConfig, log: _Log) -> Iterator[MonitorReport]:
    from itertools import islice

    from neurontools.monitor.stream import recorded_reports, reports
    from neurontools.sources import open_source

    sources: list[Source] = []

    def opened(start: bool) -> Source:
        source = open_source(
            arguments.source,
            machine=arguments.machine,
            looker="neuron-monitor",
            start=start,
            on_notice=console.notice,
        )
        log.tell(_ERRORS, f"source: {source.name}")
        sources[:] = [source]
        return source

    found: Iterator[MonitorReport]
    if arguments.source in _SOURCES:
        from neurontools.monitor.patience import PatientSource

        found = reports(config, PatientSource(opened, console.warn))
    else:
        found = recorded_reports(config, opened(True).watch(config.period_s))
    return islice(_with_notices(found, sources), arguments.count)


def _with_notices(found: Iterator[MonitorReport], sources: list[Source]) -> Iterator[MonitorReport]:
    told: set[str] = set()

    def tell() -> None:
        for notice in (notice for source in sources for notice in source.notices if notice not in told):
            told.add(notice)
            console.warn(notice)

    for report in found:
        tell()
        yield report
    tell()


def _address(arguments: argparse.Namespace) -> ScrapeAddress | None:
    if arguments.prometheus is None:
        if arguments.cert_file or arguments.key_file:
            raise UsageError("--cert-file and --key-file need --prometheus", "add --prometheus :8000")
        return None
    from neurontools.monitor.address import ScrapeAddress, scrape_address

    host, port = scrape_address(arguments.prometheus)
    return ScrapeAddress(host, port, arguments.cert_file, arguments.key_file)


def _serve(found: Iterator[MonitorReport], address: ScrapeAddress) -> int:
    from neurontools.monitor.serving import start_exporter

    exporter, server = start_exporter(address, console.warn)
    console.out_now(f"Running {address.scheme} prometheus server at port {server.port}")
    try:
        for report in found:
            exporter.update(report)
    finally:
        server.close()
    return 0
