"""The server: addresses, HTTP, HTTPS, and clients that misbehave."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from contextlib import ExitStack, closing

import pytest

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.monitor.scrape_server import ScrapeAddress, _most_connections, scrape_address, start_exporter
from tests.monitor.test_exporter import entry, report


@pytest.fixture
def serve():
    """Serve one report: `serve(cert_file=..., key_file=...)` returns the running server."""
    servers = []

    def start(host="127.0.0.1", port=0, **files):
        exporter, server = start_exporter(ScrapeAddress(host, port, **files), lambda text: None)
        exporter.update(report(entry()))
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def get(url, context=None, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":8000", ("", 8000)),
        ("8000", ("", 8000)),
        ("localhost:9100", ("localhost", 9100)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:8000", ("::1", 8000)),
    ],
)
def test_addresses(text, expected):
    assert scrape_address(text) == expected


@pytest.mark.parametrize("text", ["", ":", ":http", "host", "::1:8000", ":70000", ":-1", ":8000/metrics"])
def test_what_is_not_an_address(text):
    with pytest.raises(UsageError, match="bad address"):
        scrape_address(text)


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost"])
def test_http(serve, host):
    server = serve(host)
    kind, text = get(f"http://127.0.0.1:{server.port}/metrics")
    assert kind.startswith("text/plain; version=")
    assert "neuroncore_utilization_ratio{" in text


def test_the_default_collectors_of_prometheus_client_come_first(serve):
    server = serve()
    _, text = get(f"http://127.0.0.1:{server.port}/metrics")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert names[:10] == [
        "python_gc_objects_collected_total",
        "python_gc_objects_uncollectable_total",
        "python_gc_collections_total",
        "python_info",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
    ]
    assert not any(name.startswith(("python_", "process_")) for name in names[10:])


def test_openmetrics_is_given_to_those_who_ask(serve):
    kind, text = get(
        f"http://127.0.0.1:{serve().port}/metrics", Accept="application/openmetrics-text; version=1.0.0"
    )
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_https(serve, certificate):
    cert, key = certificate
    server = serve(cert_file=cert, key_file=key)
    _, text = get(f"https://localhost:{server.port}/metrics", ssl.create_default_context(cafile=cert))
    assert "execution_status_total{" in text


def test_a_client_that_says_nothing_does_not_delay_others(serve, certificate):
    cert, key = certificate
    server = serve(cert_file=cert, key_file=key)
    with closing(socket.create_connection(("127.0.0.1", server.port))):
        get(f"https://localhost:{server.port}/metrics", ssl.create_default_context(cafile=cert))


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_other_addresses_are_not_listened_on_by_default(serve, host):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", serve(host).port))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_listened_on_when_it_is_asked_for(serve, host):
    assert get(f"http://127.0.0.2:{serve(host).port}/metrics")


@pytest.fixture
def slow_client():
    """Connect and send one byte of a request, which is never completed: `slow_client(server)` returns the socket."""
    with ExitStack() as opened:

        def connect(server):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            client.sendall(b"G")
            return client

        yield connect


def test_a_full_server_closes_what_has_been_open_longest(serve, slow_client, monkeypatch):
    monkeypatch.setattr("neurontools.monitor.scrape_server._MOST_CONNECTIONS", 3)
    server = serve()
    clients = [slow_client(server) for _ in range(20)]
    get(f"http://127.0.0.1:{server.port}/metrics")
    assert [client.recv(1) for client in clients[:-2]] == [b""] * 18
    clients[-1].sendall(b"ET /metrics HTTP/1.0\r\n\r\n")
    assert clients[-1].recv(4) == b"HTTP"


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_request_that_does_not_end_is_ended(serve, slow_client, certificate, monkeypatch, encrypted):
    monkeypatch.setattr("neurontools.monitor.scrape_server._REQUEST_S", 0.0)
    server = serve(**dict(zip(("cert_file", "key_file"), certificate, strict=True)) if encrypted else {})
    assert slow_client(server).recv(1) == b""


def test_slow_clients_leave_descriptors_for_the_monitor(monkeypatch):
    monkeypatch.setattr("neurontools.monitor.scrape_server.getrlimit", lambda _: (64, 64))
    assert _most_connections() == 16
    monkeypatch.setattr("neurontools.monitor.scrape_server.getrlimit", lambda _: (-1, -1))
    assert _most_connections() == 64


def test_plain_http_to_the_https_port_fails_quietly(serve, certificate, capfd):
    cert, key = certificate
    server = serve(cert_file=cert, key_file=key)
    with pytest.raises(OSError):
        get(f"http://localhost:{server.port}/metrics")
    get(f"https://localhost:{server.port}/metrics", ssl.create_default_context(cafile=cert))
    assert capfd.readouterr().err == ""


def test_a_port_in_use(serve):
    server = serve()
    with pytest.raises(
        NeuronToolsError, match=f"cannot listen on port {server.port} of 127.0.0.1: Address already"
    ):
        serve(port=server.port)


def test_a_host_that_is_none():
    with pytest.raises(NeuronToolsError, match="cannot listen on 'no such host'"):
        start_exporter(ScrapeAddress("no such host", 0), lambda text: None)


def test_https_needs_both_files(certificate):
    cert, key = certificate
    with pytest.raises(UsageError, match="HTTPS needs --key-file too"):
        start_exporter(ScrapeAddress("", 0, cert_file=cert), lambda text: None)
    with pytest.raises(UsageError, match="HTTPS needs --cert-file too"):
        start_exporter(ScrapeAddress("", 0, key_file=key), lambda text: None)


def test_files_that_are_no_certificate(home, certificate):
    cert, key = certificate
    with pytest.raises(NeuronToolsError, match="cannot read /nowhere: No such file"):
        start_exporter(ScrapeAddress("", 0, "/nowhere", key), lambda text: None)
    (home / "nonsense").write_text("hello")
    with pytest.raises(NeuronToolsError, match="cannot use certificate"):
        start_exporter(ScrapeAddress("", 0, str(home / "nonsense"), key), lambda text: None)
    with pytest.raises(NeuronToolsError, match="cannot use certificate"):
        start_exporter(ScrapeAddress("", 0, key, cert), lambda text: None)
