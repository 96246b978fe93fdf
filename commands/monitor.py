"""neuron-monitor: metrics of the machine as JSON lines, or for Prometheus."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.parsing import add_limit, add_machine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.monitor.config import MonitorConfig
    from neurontools.monitor.report import MonitorReport
    from neurontools.monitor.scrape_server import ScrapeAddress
    from neurontools.sources import Source
    from neurontools.sources.retrying import RetryingSource

    Log = Callable[[int, str], None]

EXAMPLES = """examples:
  neuron-monitor                              every metric group of every process, every 5 seconds
  neuron-monitor -c monitor.conf              the groups and periods of a configuration file
  neuron-monitor --limit 1 | jq .             one line
  neuron-monitor | neuron-monitor-prometheus  metrics for Prometheus on port 8000
  neuron-monitor --prometheus :8000           the same without a pipe
  neuron-monitor --source recording.jsonl     metrics of a recording

It runs until Ctrl-C, SIGTERM, or until the reader of its output exits.

exit codes: 0 success, 1 bad configuration file or port, 2 usage error, 3 no machine, 4 daemon error,
130 interrupted, 143 terminated
"""

_SAMPLED_SOURCES = frozenset({"sim", "real"})
_ERRORS, _INFORMATION, _EVERYTHING = 1, 3, 4


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-monitor",
        description="Write metrics of the machine and its processes, one JSON object per line.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("-c", "--config-file", metavar="FILE", help="metric groups to collect, and their periods")
    add(
        "--verbose",
        metavar="0..4",
        type=int,
        choices=range(5),
        default=0,
        help="verbosity of the log on stderr (default: 0)",
    )
    add_machine(parser)
    add(
        "--source",
        metavar="sim|real|URL|FILE",
        default="sim",
        help="data source: the simulated machine (default), this host, an exporter or a recording",
    )
    add_limit(parser, "exit after N reports")
    add(
        "--prometheus",
        metavar="[HOST]:PORT",
        help="serve Prometheus metrics there instead of writing lines; HOST is localhost by default, 0.0.0.0 means "
        "every address",
    )
    add("--cert-file", metavar="FILE", help="certificate, for HTTPS with --prometheus")
    add("--key-file", metavar="FILE", help="private key, for HTTPS with --prometheus")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    address = _address(arguments)
    log = partial(_log, arguments.verbose)
    config = _config(arguments.config_file, log)
    source, found = _open_reports(arguments, config, log)
    with source:
        if address is not None:
            return _serve(found, address)
        _print(found, log)
    return 0


def _print(found: Iterator[MonitorReport], log: Log) -> None:
    from neurontools.monitor.codec import format_line

    for report in found:
        line = format_line(report)
        console.out_now(line)
        log(_EVERYTHING, f"wrote {len(line)} characters, {len(report.runtimes)} processes")


def _log(verbosity: int, level: int, text: str) -> None:
    if level <= verbosity:
        console.err(f"neuron-monitor: {printable(text)}")


def _config(path: str | None, log: Log) -> MonitorConfig:
    from neurontools.monitor.config import default_config, load_config

    if path is None:
        return default_config()
    config, problems = load_config(path)
    for problem in problems:
        console.warn(problem.located(path))
    log(_INFORMATION, f"{path}: {len(config.periods())} metric groups")
    return config


def _open_reports(
    arguments: argparse.Namespace, config: MonitorConfig, log: Log
) -> tuple[RetryingSource | Source, Iterator[MonitorReport]]:
    from itertools import islice

    from neurontools.monitor.collector import recorded_reports, reports

    if arguments.source in _SAMPLED_SOURCES:
        # Lines have a reader: the command ends with it, also while nothing is due or the machine is stopped.
        wait = console.pause if arguments.prometheus is None else time.sleep
        sampled = _sampled_source(arguments, config, log, wait)
        found = reports(config, lambda: sampled.snapshot(console.warn), sleep=wait)
        return sampled, islice(_with_notices(found, sampled), arguments.limit)
    from neurontools.sources import open_source

    recorded = open_source(arguments.source, machine=arguments.machine)
    log(_ERRORS, f"source: {recorded.name}")
    found = recorded_reports(config, recorded.watch(config.period_s))
    return recorded, islice(_with_notices(found, recorded), arguments.limit)


def _sampled_source(
    arguments: argparse.Namespace, config: MonitorConfig, log: Log, wait: Callable[[float], None]
) -> RetryingSource:
    from neurontools.sources.retrying import RetryingSource

    return RetryingSource(
        arguments.source,
        config.period_s,
        machine=arguments.machine,
        looker="neuron-monitor",
        on_notice=console.notice,
        on_open=lambda name: log(_ERRORS, f"source: {name}"),
        wait=wait,
    )


def _with_notices(found: Iterator[MonitorReport], source: RetryingSource | Source) -> Iterator[MonitorReport]:
    shown: set[str] = set()

    def show() -> None:
        for notice in source.notices:
            if notice not in shown:
                shown.add(notice)
                console.warn(notice)

    for report in found:
        show()
        yield report
    show()


def _address(arguments: argparse.Namespace) -> ScrapeAddress | None:
    if arguments.prometheus is None:
        if arguments.cert_file or arguments.key_file:
            raise UsageError("--cert-file and --key-file need --prometheus", "add --prometheus :8000")
        return None
    from neurontools.monitor.scrape_server import ScrapeAddress, scrape_address

    host, port = scrape_address(arguments.prometheus)
    return ScrapeAddress(host, port, arguments.cert_file, arguments.key_file)


def _serve(found: Iterator[MonitorReport], address: ScrapeAddress) -> int:
    from neurontools.monitor.scrape_server import start_exporter

    exporter, server = start_exporter(address, console.warn)
    console.out_now(f"Running {address.scheme} prometheus server at port {server.port}")
    try:
        for report in found:
            exporter.update(report)
    finally:
        server.close()
    return 0


main = console.command(build_parser, _run)
