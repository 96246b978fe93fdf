"""neuron-monitor-prometheus at the end of a pipe, and the same without one."""

from __future__ import annotations

import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions
from neurontools.monitor.codec import format_line, read_lines
from tests.monitor.conftest import EVERYTHING
from tests.monitor.test_exporter import FAMILIES, entry, report

LINE = format_line(report(entry())).encode() + b"\n"


@pytest.fixture
def companion(program):
    """Start the companion with a pipe to write lines into, on a free port; `.port` is that."""

    def start(*arguments, name="neuron-monitor-prometheus"):
        running = program(name, "--port", "0", "--host", "127.0.0.1", *arguments, stdin=subprocess.PIPE)
        said = running.stderr if "--enable-k8s-info" in arguments else running.stdout
        words = said.readline().decode().split()
        assert words[:2] == ["Running", "HTTPS" if "--key-file" in arguments else "HTTP"]
        assert words[2:-1] == ["prometheus", "server", "at", "port"]
        running.port = int(words[-1])
        return running

    return start


def write(running, data):
    running.process.stdin.write(data)
    running.process.stdin.flush()


def scrape(port, context=None):
    scheme = "http" if context is None else "https"
    url = f"{scheme}://localhost:{port}/metrics"
    with urllib.request.urlopen(url, timeout=20, context=context) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {family.name: family for family in families if not family.name.startswith(("python_", "process_"))}


def scraped(port, wanted, context=None):
    """Scrape until the metrics are as wanted: a line takes its way through the pipe."""
    for _ in range(500):
        found = scrape(port, context)
        if wanted(found):
            return found
    raise AssertionError("the metrics never came")


@pytest.mark.parametrize("name", ["neuron-monitor-prometheus", "neuron-monitor-prometheus.py"])
def test_lines_in_metrics_out(companion, name):
    running = companion(name=name)
    write(running, LINE)
    assert set(scraped(running.port, bool)) == set(FAMILIES)


def test_https(companion, certificate):
    cert, key = certificate
    running = companion("--cert-file", cert, "--key-file", key)
    write(running, LINE)
    context = ssl.create_default_context(cafile=cert)
    assert "neuroncore_utilization_ratio" in scraped(running.port, bool, context)


def test_the_end_of_the_lines_ends_it(companion):
    running = companion()
    write(running, LINE)
    running.process.stdin.close()
    assert running.process.wait(20) == 0
    assert running.stderr.read() == b""


def test_no_line_at_all_is_an_error(companion):
    running = companion()
    running.process.stdin.close()
    assert running.process.wait(20) == 1
    assert running.stderr.readline().startswith(b"error: stdin ended before the first valid line")


def test_a_damaged_line_is_skipped_with_a_warning(companion):
    running = companion()
    write(running, LINE[:100] + b"\n\n\xff\xfe\n" + LINE)
    assert "neuroncore_utilization_ratio" in scraped(running.port, bool)
    assert running.stderr.readline().startswith(b"warning: skipped a damaged line: not JSON")
    assert running.stderr.readline().startswith(b"warning: skipped a damaged line: not JSON")


def test_for_the_k8s_companion_the_lines_are_echoed(companion):
    running = companion("--enable-k8s-info")
    write(running, LINE)
    assert running.stdout.readline() == LINE


def test_a_port_in_use_is_one_line(tool):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        run = tool("neuron-monitor-prometheus", "--port", port, "--host", "127.0.0.1")
        direct = tool("neuron-monitor", "--prometheus", f"127.0.0.1:{port}")
    assert run.returncode == 1
    first, second = run.stderr.splitlines()
    assert first == f"error: cannot listen on port {port} of 127.0.0.1: Address already in use"
    assert second.startswith("hint: ")
    assert direct.returncode in {1, 3}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--port", "eighty"], 2, "invalid int value: 'eighty'"),
        (["--port", "70000"], 2, "error: --port 70000 is out of range"),
        (["--key-file", "k.pem"], 2, "error: HTTPS needs --cert-file too"),
        (["--cert-file", "c.pem", "--key-file", "k.pem"], 1, "error: cannot read c.pem: No such file"),
    ],
)
def test_invalid_input_on_the_command_line(tool, arguments, code, message):
    run = tool("neuron-monitor-prometheus", *arguments)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_without_prometheus_client_it_says_how_to_get_it(tool, home, monkeypatch):
    (home / "hidden").mkdir()
    (home / "hidden" / "prometheus_client.py").write_text(
        'raise ModuleNotFoundError("No module", name="prometheus_client")\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(home / "hidden"))
    run = tool("neuron-monitor-prometheus")
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "error: Prometheus metrics need prometheus_client, which is not installed",
        "hint: pip install 'neurontools[prometheus]'",
    ]


@pytest.mark.parametrize("secure", [False, True])
def test_the_direct_mode_serves_a_busy_machine(program, worker, config, certificate, secure):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    job = worker(NEURON_RT_NUM_CORES="1", NEURON_PROCESS_TAG="bert")
    files = ["--cert-file", certificate[0], "--key-file", certificate[1]] if secure else []
    path = config(period="100ms", **EVERYTHING)
    monitor = program("neuron-monitor", "-c", path, "--prometheus", "127.0.0.1:0", *files)
    port = int(monitor.line().split()[-1])
    context = ssl.create_default_context(cafile=certificate[0]) if secure else None
    scraped(port, lambda found: "execution_status" in found, context)
    for status in (0, 0, 1201):
        job.run(status=status)

    def wanted(found):
        statuses = found.get("execution_status")
        return statuses is not None and sum(sample.value for sample in statuses.samples) == 3

    found = scraped(port, wanted, context)
    assert {sample.labels["runtime_tag"] for sample in found["execution_status"].samples} == {"bert"}
    assert len(found["neuroncore_utilization_ratio"].samples) == 32
    job.end()
    scraped(port, lambda found: "execution_status" not in found, context)


def test_the_pipe(config, home):
    launch.start(StartOptions("default"))
    path = config(period="50ms", **EVERYTHING)
    scripts = Path(sys.executable).parent
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    pipe = (
        f"{scripts}/neuron-monitor -c {path} | {scripts}/neuron-monitor-prometheus -p {port} --host 127.0.0.1"
    )
    with subprocess.Popen(["bash", "-c", pipe], stdout=subprocess.PIPE, start_new_session=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == f"Running HTTP prometheus server at port {port}\n".encode()
            found = scraped(port, lambda found: "system_vcpu_count" in found)
            assert found["neuron_hardware_info"].samples[0].labels["neuron_device_count"] == "1"
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def test_lines_have_a_limit():
    stream = io.BytesIO(b"short\n" + b"x" * 50 + b"\n\nlast")
    assert list(read_lines(stream, longest_bytes=20)) == [b"short", b"x" * 20, b"last"]
