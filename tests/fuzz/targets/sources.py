"""Where snapshots come from: recordings, exporters, the driver's files; and the requests to our exporter."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

_ONCE = ("--once", "--interval", "0.1")
_FORMS = (("--page", "processes"), ("--page", "devices", "--json"), ())


def _lines() -> list[bytes]:
    from tests.sources.lines import TRN2, hardware_errors, line, runtime

    busy = runtime(4711, {0: 55.5, 1: 0.0}, tag="job", completed=12, failed=2, latency=0.004)
    model = {"name": "mlp", "uuid": "00ff", "model_id": 10001, "is_running": True, "subgraphs": {}}
    memory = {
        "memory_used_bytes": {"host": 1, "neuron_device": 2},
        "neuroncore_index": 0,
        "neuron_device_index": 0,
    }
    model["subgraphs"] = {"sg_0": memory}
    busy["report"]["memory_used"]["loaded_models"] = [model]
    host: Any = {
        **hardware_errors(1.0, mem_ecc_corrected=3),
        "memory_info": {"period": 1.0, "memory_total_bytes": 100, "memory_used_bytes": 10, "error": ""},
        "vcpu_usage": {
            "period": 1.0,
            "average_usage": {"user": 1.0, "nice": 0.0, "system": 1.0, "idle": 98.0},
            "usage_data": {"0": {"user": 1.0, "nice": 0.0, "system": 1.0, "idle": 98.0}},
            "context_switch_count": 5,
            "error": "",
        },
    }
    first = line(busy, system=host)
    return [(first + line(busy, system=host)).encode(), line(runtime(5, {3: 1.0}), hardware=TRN2).encode()]


def _check_recording(data: bytes) -> None:
    from neurontools.commands import ls, monitor, top

    Path("run.jsonl").write_bytes(data)
    run(ls.main, "--source", "run.jsonl")
    run(ls.main, "--source", "run.jsonl", "-j", is_json=True)
    for form in _FORMS:
        run(top.main, *_ONCE, "--source", "run.jsonl", *form, is_json="--json" in form)
    run(monitor.main, "--source", "run.jsonl", "--limit", "3", is_json=True)


def _check_replay(data: bytes) -> None:
    from neurontools.commands import scenario

    Path("run.jsonl").write_bytes(data)
    run(scenario.main, "replay", "run.jsonl", "--no-wait")
    run(scenario.main, "record", "-", "--output", "new.jsonl", "--force", stdin=data)


def _check_playback(data: bytes) -> None:
    from neurontools.sources import open_source

    Path("run.jsonl").write_bytes(data)
    with open_source("run.jsonl") as source:
        for snapshot in source.snapshots():  # type: ignore[attr-defined]
            json.dumps(snapshot.to_json(), allow_nan=False)


def _check_exporter(data: bytes) -> None:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    from neurontools.monitor.codec import DamagedLineError, format_line, parse_line
    from neurontools.monitor.exporter import Exporter

    exporter = Exporter(lambda _: None)
    registry = CollectorRegistry()
    registry.register(exporter)  # type: ignore[arg-type]
    for line in data.splitlines():
        try:
            report = parse_line(line)
        except DamagedLineError:
            continue
        json.loads(format_line(report))
        exporter.update(report)
        generate_latest(registry)


@cache
def _exposition() -> bytes:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    from neurontools.monitor.codec import parse_line
    from neurontools.monitor.exporter import Exporter

    exporter = Exporter(lambda _: None)
    registry = CollectorRegistry()
    registry.register(exporter)  # type: ignore[arg-type]
    for line in _lines()[0].splitlines():
        exporter.update(parse_line(line))
    text: bytes = generate_latest(registry)
    return b"\n".join(line for line in text.split(b"\n") if not line.startswith(b"# HELP"))


def _check_scrape(data: bytes) -> None:
    from neurontools.commands import top
    from neurontools.sources.remote import Scraper

    text = data.decode("utf-8", "replace")
    original = Scraper.text
    Scraper.text = lambda _: text  # type: ignore[method-assign]
    try:
        for form in _FORMS:
            run(top.main, *_ONCE, "--source", "http://localhost:1", *form, is_json="--json" in form)
    finally:
        Scraper.text = original  # type: ignore[method-assign]


def _answers() -> list[bytes]:
    body = _exposition()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(body),
        body,
    )
    # No redirect: a damaged one may lead to any address.
    refused = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    return [head + body, chunked, b"HTTP/1.0 200 OK\r\n\r\n" + body, refused]


def _check_answer(data: bytes) -> None:
    from neurontools.commands import top

    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_answer_all, args=(server, data))
        sender.start()
        try:
            run(top.main, *_ONCE, "--source", f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            server.shutdown(socket.SHUT_RDWR)
            sender.join()


def _answer_all(server: socket.socket, data: bytes) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client, contextlib.suppress(OSError):
            client.recv(1 << 16)
            client.sendall(data)


def _check_http_request(data: bytes) -> None:
    exporter_port = _exporter_port()
    with socket.create_connection(("127.0.0.1", exporter_port), timeout=20) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            continue


@cache
def _exporter_port() -> int:
    from neurontools.monitor.exporter import Exporter
    from neurontools.monitor.scrape_server import ScrapeAddress, ScrapeServer

    return ScrapeServer(Exporter(lambda _: None), ScrapeAddress("127.0.0.1", 0)).port


def _http_requests() -> list[bytes]:
    plain = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
    typed = (
        b"GET /metrics?name%5B%5D=a HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    )
    return [plain, typed, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", b"OPTIONS * HTTP/1.0\r\n\r\n"]


def _monitor_config() -> list[bytes]:
    metrics = [
        {"type": "neuroncore_counters", "period": "2s"},
        {"type": "memory_used"},
        {"type": "execution_stats"},
    ]
    config = {
        "period": "1m30.5s",
        "neuron_runtimes": [{"tag_filter": "a.*", "metrics": metrics, "period": "500ms"}],
        "system_metrics": [{"type": "vcpu_usage", "period": "1h"}, {"type": "memory_info"}],
    }
    return [json.dumps(config, indent=1).encode()]


def _check_monitor_config(data: bytes) -> None:
    from neurontools.commands import monitor

    Path("monitor.json").write_bytes(data)
    Path("run.jsonl").write_bytes(_lines()[0])
    run(monitor.main, "-c", "monitor.json", "--source", "run.jsonl", "--limit", "1", is_json=True)


def _check_go_duration(data: bytes) -> None:
    from neurontools.monitor.config import parse_go_duration

    parse_go_duration(data.decode("utf-8", "surrogateescape"))


_HOST = Path("host").absolute()


@cache
def _driver_files() -> dict[str, str]:
    """Export a machine with two jobs; return the files of its driver that the source `real` reads, of one device."""
    from neurontools.sysfs.mirror import SysfsMirror
    from tests.sysfs.machines import job, machine

    with SysfsMirror(str(_HOST), "fuzz") as mirror:
        mirror.update(machine("trn1.2xlarge", processes=(job(), job((1,), pid=5))))
    files = [path for path in sorted(_HOST.rglob("*")) if path.is_file() and not path.is_symlink()]
    texts = {str(path.relative_to(_HOST)): path.read_text(errors="replace") for path in files}
    return {name: text for name, text in texts.items() if not name.startswith(".")}


def _host_seeds() -> list[bytes]:
    return [json.dumps(_driver_files()).encode()]


def _check_host(data: bytes) -> None:
    from neurontools.commands import ls, top

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    known = _driver_files()
    given = given if isinstance(given, dict) else {}
    for name in known:
        path = _HOST / name
        changed = given.get(name)
        if isinstance(changed, str):
            path.write_bytes(changed.encode("utf-8", "surrogatepass"))
        elif changed is None:
            path.unlink(missing_ok=True)
    os.environ["NEURONTOOLS_SYSFS_ROOT"] = str(_HOST)
    try:
        run(ls.main, "--source", "real")
        run(ls.main, "--source", "real", "-j", is_json=True)
        run(top.main, *_ONCE, "--source", "real")
    finally:
        del os.environ["NEURONTOOLS_SYSFS_ROOT"]
        for name, text in known.items():
            (_HOST / name).write_text(text)


TARGETS = (
    Target("sources/recording", Format.JSON_LINES, _lines, _check_recording),
    Target("sources/replay", Format.JSON_LINES, _lines, _check_replay),
    Target("sources/playback", Format.JSON_LINES, _lines, _check_playback),
    Target("sources/exporter", Format.JSON_LINES, _lines, _check_exporter),
    Target(
        "sources/scrape",
        Format.TEXT,
        lambda: [_exposition()],
        _check_scrape,
        words=("{", "}", ",", '="', " ", "\n"),
    ),
    Target("sources/http-answer", Format.BINARY, _answers, _check_answer, share=0.3),
    Target("sources/http-request", Format.BINARY, _http_requests, _check_http_request, share=0.3),
    Target("sources/host", Format.JSON, _host_seeds, _check_host, share=0.5),
    Target("sources/monitor-config", Format.JSON, _monitor_config, _check_monitor_config),
    Target(
        "sources/go-duration",
        Format.TEXT,
        lambda: [b"1s", b"500ms", b"1m30s", b"-1.5h", b".5us"],
        _check_go_duration,
        words=("ns", "us", "ms", "s", "m", "h", ".", "-", "+"),
    ),
)
