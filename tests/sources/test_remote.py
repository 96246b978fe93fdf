"""A machine elsewhere: what its exporter serves becomes a snapshot, and what goes wrong there is said in a line."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.machine_view import machine_view
from neurontools.monitor.codec import parse_line
from neurontools.monitor.exporter import Exporter
from neurontools.monitor.scrape_server import ScrapeAddress, ScrapeServer
from neurontools.sources import open_source
from neurontools.sources.prometheus_text import ExpositionError, Sample, parse_samples
from neurontools.sources.remote import RemoteSource, ScrapeError, scrape_url
from neurontools.sources.retrying import RetryingSource, SourceProblem
from tests.sources.lines import TRN2, line, runtime


@pytest.fixture
def exporter():
    """An exporter of the companion's own, fed with lines: `exporter(line, ...)` returns its address."""
    made = Exporter(lambda text: None)
    server = ScrapeServer(made, ScrapeAddress("127.0.0.1", 0))

    def feed(*lines):
        for each in lines:
            made.update(parse_line(each.encode()))
        return f"http://127.0.0.1:{server.port}"

    yield feed
    server.close()


@contextmanager
def serving(body, status=200):
    """Serve a text, or what a function returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data = body if isinstance(body, bytes) else body()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with closing(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.close = server.server_close
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


def test_what_an_exporter_tells_is_a_machine(exporter):
    url = exporter(
        line(
            runtime(3141, {0: 50.0, 1: 100.0}, tag="3141", memory=3 << 20, completed=40, latency=0.01),
            runtime(77, {}, tag="serving"),
        )
    )
    with open_source(url) as source:
        first = source.snapshot()
        exporter(line(runtime(3141, {0: 50.0, 1: 100.0}, tag="3141", memory=3 << 20, completed=60, failed=2)))
        second = source.snapshot()
    assert source.name == url.replace("http://", "remote:")
    assert (second.source, second.instance_type, second.instance_id) == (
        "remote",
        "trn1.2xlarge",
        "i-0bea223b1afb7e159",
    )
    assert [(process.pid, process.tag, process.origin) for process in first.processes] == [
        (3141, "", "remote"),
        (4194305, "serving", "remote"),
    ]
    view = machine_view(first, second)
    assert [round(rate.utilization, 6) for rate in view.devices[0].cores] == [0.5, 1.0]
    (worker, *_) = second.processes
    before, now = dict(first.processes[0].status_counts), dict(worker.status_counts)
    assert now[0] - before.get(0, 0) == 60
    assert second.devices[0].memory_used_bytes == 2 * (3 << 20)
    assert second.taken_ns > first.taken_ns
    assert second.neuroncore_version == "v2"


def test_a_trn2_keeps_its_logical_cores(exporter):
    url = exporter(
        line(
            runtime(5, {0: 10.0}),
            hardware=TRN2,
            instance={"instance_type": "trn2.48xlarge"},
        )
    )
    snapshot = RemoteSource(url).snapshot()
    assert (len(snapshot.devices), snapshot.lnc, snapshot.neuroncore_version) == (16, 2, "v3d")
    assert snapshot.devices[1].core_ids == (4, 5, 6, 7)
    assert snapshot.devices[0].connected_to is not None


BASE = 'instance_type="inf1.xlarge",instance_id="i-1"'
OLD = f"""system_vcpu_usage_ratio{{usage_type="user",{BASE}}} 0.2632
system_vcpu_usage_ratio{{usage_type="system",{BASE}}} 0.04
neuroncore_utilization_ratio{{neuroncore="0",runtime_tag="367",{BASE}}} 0.89
neuron_runtime_memory_used_bytes{{memory_location="neuron_device",runtime_tag="367",{BASE}}} 6.02e7
"""


def test_an_exporter_of_the_first_versions_is_completed_from_the_catalogue():
    with serving(OLD.encode()) as url:
        snapshot = RemoteSource(url).snapshot()
    (device,) = snapshot.devices
    assert (device.core_ids, device.memory_bytes) == ((0, 1, 2, 3), 8 << 30)
    assert (device.memory_used_bytes, snapshot.vcpu_usage) == (60_200_000, (0.2632, 0.04))
    assert machine_view(None, snapshot).memory


def test_an_exporter_without_instance_and_devices_has_those_of_its_cores():
    text = 'neuroncore_utilization_ratio{neuroncore="3",runtime_tag="a"} 0.5\n'
    with serving(text.encode()) as url:
        assert [device.core_ids for device in RemoteSource(url).snapshot().devices] == [(0, 1, 2, 3)]


def test_an_exporter_that_says_that_it_has_no_devices_has_none():
    text = f'neuron_hardware_info{{neuron_device_count="0",{BASE}}} 1\n'
    with serving(text.encode()) as url, pytest.raises(ScrapeError, match="reports no Neuron device"):
        RemoteSource(url).snapshot()


def test_neuron_ls_shows_it_too(exporter, tool):
    url = exporter(line(runtime(3141, {0: 50.0}, tag="job")))
    done = tool("neuron-ls", "--source", url)
    assert done.returncode == 0, done.stderr
    assert "instance-type: trn1.2xlarge" in done.stdout


def test_an_exporter_that_goes_away_and_comes_back_is_followed(exporter):
    url = exporter(line(runtime(1, {0: 1.0})))
    port = int(url.rpartition(":")[2])
    with serving(b"", status=503) as broken, RetryingSource(broken, 0.05) as follower:
        update = next(follower.updates())
        assert update == SourceProblem(f"{broken} answers 503 Service Unavailable, retrying")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with RetryingSource(gone, 0.05) as follower:
            assert "Connection refused" in next(follower.updates()).text
    assert port


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "reports no Neuron device"),
        (b"go_goroutines 5\n", "reports no Neuron device"),
        (b"<html><body>hello</body></html>", "is not a Prometheus metric"),
        (b"\xff\xfe\x00", "is not a Prometheus metric"),
    ],
)
def test_what_is_not_an_exporter_is_named(body, text):
    with serving(body) as url, pytest.raises((ScrapeError, ExpositionError), match=text):
        RemoteSource(url).snapshot()


def test_an_exporter_that_is_slower_than_the_period_is_asked_again_at_once(monkeypatch):
    clock, slept = itertools.count(), []
    source = RemoteSource("http://localhost:1")
    monkeypatch.setattr(source, "snapshot", lambda: next(clock))
    monkeypatch.setattr(
        "neurontools.sources.remote.time", SimpleNamespace(monotonic=lambda: next(clock), sleep=slept.append)
    )
    assert len(list(itertools.islice(source.watch(0.5), 4))) == 4
    assert slept == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("count", ["2147483648", "1" + "0" * 30, "9" * 5000])
def test_more_devices_than_any_machine_has_are_refused(count):
    body = f'neuron_hardware_info{{neuron_device_count="{count}",neuroncore_per_device_count="2"}} 1\n'
    with serving(body.encode()) as url, pytest.raises(NeuronToolsError) as refused:
        RemoteSource(url).snapshot()
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("start", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nX-Long: "])
def test_an_answer_that_drips_is_not_waited_for(start, monkeypatch):
    monkeypatch.setattr("neurontools.sources.remote._ANSWER_TIMEOUT_S", 0.3)
    ended = threading.Event()

    def drip(server):
        client, _ = server.accept()
        with client:
            client.sendall(start)
            while not ended.wait(0.01):  # always another byte before any single read would time out
                try:
                    client.sendall(b"#")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip, args=(server,))
        dripping.start()
        with pytest.raises(ScrapeError, match="timed out"):
            RemoteSource(f"http://127.0.0.1:{server.getsockname()[1]}").snapshot()
        ended.set()
        dripping.join()


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "http://host:port/", "https://[::1/", "host:8000"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UsageError):
        scrape_url(url)


def test_an_address_without_a_path_means_metrics():
    assert scrape_url("http://h:1") == scrape_url("http://h:1/") == "http://h:1/metrics"
    assert scrape_url("https://h/neuron") == "https://h/neuron"


label_names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
sample_values = st.builds(
    Sample,
    st.from_regex(r"neuron[a-z0-9_:]{0,12}", fullmatch=True),
    st.dictionaries(label_names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    st.floats(allow_nan=False),
)


@given(st.lists(sample_values, max_size=5))
def test_samples_come_back_as_they_were_written(wanted):
    def written(sample):
        labels = ",".join(
            '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
            for name, value in sample.labels.items()
        )
        return f"{sample.name}{{{labels}}} {sample.value!r}" if labels else f"{sample.name} {sample.value!r}"

    text = "# HELP x y\n" + "\n".join(written(sample) for sample in wanted) + "\n"
    assert list(parse_samples(text)) == wanted


OURS = 'neuroncore_utilization_ratio{neuroncore="0",runtime_tag="a"} 0.5'


@pytest.mark.parametrize(
    "line",
    [
        'foo_total{a="b"} 1.0 1700000000.123',
        'foo{a="b",} 1 # {trace_id="x"} 0.67 1520879607.789',
        '{"my.metric",a="b"} 1',
        "foo{a=b} 1",
        'foo{a="unfinished',
        "foo bar baz",
        "node_boot_time_seconds",
        "# EOF",
        "\t",
    ],
)
def test_lines_of_other_exporters_never_matter(line):
    wanted = [Sample("neuroncore_utilization_ratio", {"neuroncore": "0", "runtime_tag": "a"}, 0.5)]
    assert list(parse_samples(f"{line}\n{OURS}\n")) == wanted
    assert list(parse_samples(f"{OURS}\r\n{line}\r\n")) == wanted


@pytest.mark.parametrize(
    "behind", ["", " 1700000000123", " 1700000000.123", " -1.5e9", ' # {trace_id="x"} 1 2.5']
)
def test_times_and_examples_behind_a_value_are_left_out(behind):
    assert [sample.value for sample in parse_samples(OURS + behind)] == [0.5]


@given(st.text())
def test_any_text_gives_samples_or_an_error(text):
    try:
        list(parse_samples(text))
    except ExpositionError:
        pass
