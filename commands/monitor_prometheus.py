"""neuron-monitor-prometheus: lines of neuron-monitor in, metrics for Prometheus out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from neurontools.monitor.exporter import Exporter

EXAMPLES = """examples:
  neuron-monitor | neuron-monitor-prometheus
  neuron-monitor -c monitor.conf | neuron-monitor-prometheus --port 9100
  neuron-monitor | neuron-monitor-prometheus --cert-file cert.pem --key-file key.pem
  curl -s localhost:8000/metrics
  neuron-monitor-prometheus --print-rules > neuron.rules.yaml
  neuron-monitor-prometheus --print-dashboard > neuron.json

exit codes: 0 end of input, 1 no valid line in the input, or the port or certificate cannot be used, 2 usage error,
130 interrupted, 143 terminated
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-monitor-prometheus",
        description="Read the output of neuron-monitor on stdin and serve it as Prometheus metrics.",
        epilog=EXAMPLES,
    )
    parser.add_argument("-p", "--port", type=int, default=8000, help="port to listen on (default: 8000)")
    parser.add_argument(
        "--host",
        default="",
        help="address to listen on (default: localhost; 0.0.0.0 for all addresses, where the real tool listens)",
    )
    parser.add_argument("--cert-file", metavar="FILE", help="certificate, for HTTPS")
    parser.add_argument("--key-file", metavar="FILE", help="private key, for HTTPS")
    parser.add_argument(
        "--enable-k8s-info",
        action="store_true",
        help="copy stdin to stdout, for neuron-monitor-k8s-info",
    )
    shipped = parser.add_mutually_exclusive_group()
    shipped.add_argument(
        "--print-rules", action="store_true", help="print the alert rules for Prometheus and exit"
    )
    shipped.add_argument(
        "--print-dashboard", action="store_true", help="print the dashboard for Grafana and exit"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.print_rules:
        return _print_file("prometheus/neuron.rules.yaml")
    if arguments.print_dashboard:
        return _print_file("grafana/neuron.json")
    if not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port {arguments.port} is out of range", "use 1 to 65535, or 0 for any free port")
    from neurontools.monitor.scrape_server import ScrapeAddress, start_exporter

    address = ScrapeAddress(arguments.host, arguments.port, arguments.cert_file, arguments.key_file)
    exporter, server = start_exporter(address, console.warn)
    running = f"Running {address.scheme} prometheus server at port {server.port}"
    if arguments.enable_k8s_info:
        console.err(running)
    else:
        console.out_now(running)
    if sys.stdin.isatty():
        console.notice("waiting for lines on stdin: neuron-monitor | neuron-monitor-prometheus")
    try:
        return _export(exporter, echo=arguments.enable_k8s_info)
    finally:
        server.close()


def _print_file(name: str) -> int:
    from pathlib import Path

    from neurontools import paths

    console.out((Path(paths.fixtures_dir()) / name).read_text(encoding="utf-8").removesuffix("\n"))
    return 0


def _export(exporter: Exporter, *, echo: bool) -> int:
    from neurontools.monitor.codec import DamagedLineError, parse_line, read_lines

    good = 0
    for line in read_lines(sys.stdin.buffer):
        if echo:
            console.out_now(line.decode("utf-8", "backslashreplace"))
        try:
            exporter.update(parse_line(line))
            good += 1
        except DamagedLineError as error:
            console.warn(f"skipped a {error.message}")
    if not good:
        raise NeuronToolsError(
            "stdin ended before the first valid line",
            "pipe a monitor into it: neuron-monitor | neuron-monitor-prometheus",
        )
    return 0


main = console.command(build_parser, _run)
