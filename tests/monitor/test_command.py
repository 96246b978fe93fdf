"""neuron-monitor as its readers see it: real daemons, real processes, faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions
from tests.monitor.conftest import EVERYTHING

FAST = {"period": "100ms", **EVERYTHING}
HEAVY = {"torch", "numpy", "rich", "textual", "yaml", "asyncio", "prometheus_client"}


@pytest.fixture
def machine():
    """A trn1.32xlarge under the default name."""
    return launch.start(StartOptions("default", "trn1.32xlarge"))


def entry_of(report, pid):
    entries = [entry for entry in report["neuron_runtime_data"] if entry["pid"] == pid]
    assert len(entries) <= 1
    return entries[0] if entries else None


def report_with(program, wanted):
    """Read lines until one is as wanted, and return it."""
    for _ in range(300):
        report = program.report()
        if wanted(report):
            return report
    raise AssertionError("no such line")


@pytest.mark.usefixtures("machine")
def test_the_first_line_says_what_a_process_does(program, worker):
    job = worker(NEURON_RT_VISIBLE_CORES="4-5", NEURON_PROCESS_TAG="bert")
    job.run()
    report = program("neuron-monitor").report()
    entry = entry_of(report, job.pid)
    assert (entry["neuron_runtime_tag"], entry["address"], entry["error"]) == ("bert", "", "")
    groups = entry["report"]
    assert list(groups) == [
        "execution_stats",
        "memory_used",
        "neuron_runtime_vcpu_usage",
        "neuroncore_counters",
    ]
    assert len(groups["neuroncore_counters"]["neuroncores_in_use"]) == 32
    used = groups["memory_used"]
    device = used["neuron_runtime_used_bytes"]
    assert list(device["usage_breakdown"]["neuroncore_memory_usage"]) == ["4", "5"]
    assert device["neuron_device"] >= 3 << 20
    (model,) = used["loaded_models"]
    assert (model["name"], model["uuid"], model["model_id"]) == ("bert.neff", bytes(range(16)).hex(), 10001)
    (part,) = model["subgraphs"].values()
    assert (part["neuron_device_index"], part["neuroncore_index"]) == (2, 0)
    assert groups["neuron_runtime_vcpu_usage"]["error"] == ""
    assert report["instance_info"]["instance_type"] == "trn1.32xlarge"
    assert list(report["system_data"]) == ["memory_info"]


@pytest.mark.usefixtures("machine")
def test_executions_and_errors_are_counted_each_once(program, worker, config):
    job = worker(NEURON_RT_NUM_CORES="1")
    monitor = program("neuron-monitor", "-c", config(**FAST))
    monitor.report()
    for status in (0, 0, 0, 5, 1003, 1201):
        assert job.run(status=status) == status
    totals: dict[str, int] = {}
    latencies = []

    def all_seen(report):
        stats = entry_of(report, job.pid)["report"]["execution_stats"]
        for summary in ("error_summary", "execution_summary"):
            for key, count in stats[summary].items():
                totals[key] = totals.get(key, 0) + count
        latencies.append(stats["latency_stats"]["total_latency"])
        return totals["completed"] == 3 and totals["hardware"] == 1

    report_with(monitor, all_seen)
    for _ in range(2):
        all_seen(monitor.report())
    assert {key: count for key, count in totals.items() if count} == {
        "completed": 3,
        "timed_out": 1,
        "completed_with_num_err": 1,
        "completed_with_err": 1,
        "runtime": 1,
        "numerical": 1,
        "hardware": 1,
    }
    assert latencies[-1] is None
    assert any(latencies)


@pytest.mark.usefixtures("machine")
def test_a_core_that_executes_all_the_time_is_busy(program, worker, config):
    job = worker(NEURON_RT_VISIBLE_CORES="7")
    monitor = program("neuron-monitor", "-c", config(**FAST))
    assert job.process.stdin is not None
    job.process.stdin.write(json.dumps({"seconds": 3600}) + "\n")
    job.process.stdin.flush()

    def utilization(report):
        return entry_of(report, job.pid)["report"]["neuroncore_counters"]["neuroncores_in_use"]["7"][
            "neuroncore_utilization"
        ]

    busy = report_with(monitor, lambda report: utilization(report) == 100)
    cores = entry_of(busy, job.pid)["report"]["neuroncore_counters"]["neuroncores_in_use"]
    assert {core for core, counters in cores.items() if counters["neuroncore_utilization"]} == {"7"}


@pytest.mark.usefixtures("machine")
def test_processes_come_and_go(program, worker, config):
    monitor = program("neuron-monitor", "-c", config(**FAST))
    assert monitor.report()["neuron_runtime_data"] == []
    first = worker(NEURON_RT_NUM_CORES="1", NEURON_PROCESS_TAG="same")
    second = worker(NEURON_RT_NUM_CORES="2", NEURON_PROCESS_TAG="same")
    both = report_with(monitor, lambda report: len(report["neuron_runtime_data"]) == 2)
    assert {entry["pid"] for entry in both["neuron_runtime_data"]} == {first.pid, second.pid}
    first.end()
    report_with(
        monitor, lambda report: [entry["pid"] for entry in report["neuron_runtime_data"]] == [second.pid]
    )
    second.end()
    report_with(monitor, lambda report: report["neuron_runtime_data"] == [])


@pytest.mark.usefixtures("machine")
def test_a_process_that_lives_between_two_lines_leaves_no_trace(program, worker, config):
    monitor = program("neuron-monitor", "-c", config(**{**FAST, "period": "2s"}))
    monitor.report()
    short = worker(NEURON_RT_NUM_CORES="1")
    short.run()
    short.end()
    assert monitor.report()["neuron_runtime_data"] == []


@pytest.mark.usefixtures("machine")
def test_it_shows_among_those_that_only_look(program, tool):
    monitor = program("neuron-monitor")
    monitor.report()
    listed = tool("neuron-ls", "-a", "--wide")
    assert str(monitor.process.pid) in listed.stdout
    assert "neuron-monitor" in listed.stdout


@pytest.mark.parametrize(("lnc", "cores"), [(1, 128), (2, 64)])
def test_trn2_at_both_lncs(tool, lnc, cores):
    launch.start(StartOptions("default", "trn2.48xlarge", lnc=lnc))
    report = json.loads(tool("neuron-monitor", "--limit", "1").stdout)
    hardware = report["neuron_hardware_info"]
    assert hardware["neuron_device_count"] * hardware["neuroncore_per_device_count"] == cores
    assert hardware["logical_neuroncore_config"] == lnc


@pytest.mark.usefixtures("machine")
def test_a_daemon_that_is_killed_is_replaced_and_the_lines_go_on(
    program, worker, config, machine, monkeypatch
):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    job = worker(NEURON_RT_NUM_CORES="1")
    monitor = program("neuron-monitor", "-c", config(**FAST))
    assert entry_of(monitor.report(), job.pid)
    os.kill(machine.pid, signal.SIGKILL)
    for _ in range(5):
        assert entry_of(monitor.report(), job.pid)
    assert launch.find("default").pid != machine.pid


def test_a_machine_that_was_stopped_is_waited_for_and_reported_once(program, config, machine):
    monitor = program("neuron-monitor", "-c", config(**FAST))
    monitor.report()
    launch.stop("default")
    assert b"waiting for it" in monitor.stderr.readline()
    launch.start(StartOptions("default", "trn1.32xlarge"))
    assert b"data is back" in monitor.stderr.readline()
    for _ in range(3):
        assert monitor.report()["neuron_hardware_info"]["neuron_device_count"] == 16
    monitor.process.kill()
    assert monitor.stderr.read() == b""


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_it_plainly(program, number, code):
    monitor = program("neuron-monitor")
    monitor.report()
    monitor.process.send_signal(number)
    assert monitor.process.wait(20) == code
    assert monitor.stdout.read() == b""
    assert monitor.stderr.read() == b""


@pytest.mark.usefixtures("machine")
def test_a_reader_that_goes_away_ends_it_plainly(program, config):
    monitor = program("neuron-monitor", "-c", config(**FAST))
    monitor.report()
    monitor.stdout.close()
    assert monitor.process.wait(20) == 0
    assert monitor.stderr.read() == b""


def test_a_reader_that_goes_away_while_the_machine_is_stopped_ends_it(program, config, machine):
    monitor = program("neuron-monitor", "-c", config(**FAST))
    monitor.report()
    launch.stop("default")
    assert b"waiting for it" in monitor.stderr.readline()
    monitor.stdout.close()
    assert monitor.process.wait(20) == 0
    assert monitor.stderr.read() == b""


@pytest.mark.usefixtures("machine")
def test_a_reader_that_goes_away_ends_it_before_the_next_line_is_due(program, config):
    monitor = program("neuron-monitor", "-c", config(**{**FAST, "period": "1h"}))
    monitor.report()
    monitor.stdout.close()
    assert monitor.process.wait(20) == 0


@pytest.mark.usefixtures("machine")
def test_a_disk_that_is_full_is_an_error(program):
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [str(Path(sys.executable).parent / "neuron-monitor")],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=600,
        )
    assert run.returncode == 1
    assert run.stderr.startswith(b"error: cannot write the output: No space left")
    assert b"Traceback" not in run.stderr


@pytest.mark.usefixtures("machine")
def test_a_bad_entry_is_named_and_the_rest_is_collected(tool, home):
    (home / "m.conf").write_text(
        '{"period": "100ms",\n "system_metrics": [{"type": "memory_info"},\n {"type": "gpus"}]}'
    )
    run = tool("neuron-monitor", "-c", "m.conf", "--limit", "2")
    assert run.returncode == 0
    assert run.stderr == (
        "warning: m.conf:3: system_metrics[1].type: unknown metric group 'gpus' "
        "(known: vcpu_usage, memory_info, neuron_hw_counters); the entry is left out\n"
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [list(line["system_data"]) for line in lines] == [["memory_info"], ["memory_info"]]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-c", "broken.conf"], 1, "error: broken.conf:1:2: not JSON"),
        (["-c", "nowhere.conf"], 1, "error: cannot read nowhere.conf: No such file"),
        (["--verbose", "5"], 2, "argument --verbose: invalid choice: 5"),
        (["--limit", "0"], 2, "error: argument -n/--limit: '0' is not a number above 0"),
        (["--nonsense"], 2, "unrecognized arguments: --nonsense"),
        (["--machine", "no/name"], 2, "error: invalid machine name"),
        (["--machine", "other"], 3, "error: "),
        (["--prometheus", "here"], 2, "error: bad address 'here'"),
        (["--cert-file", "x"], 2, "error: --cert-file and --key-file need --prometheus"),
        (["--prometheus", ":0", "--cert-file", "x"], 2, "error: HTTPS needs --key-file too"),
    ],
)
def test_invalid_input_on_the_command_line(tool, home, arguments, code, message):
    (home / "broken.conf").write_text("{oops")
    run = tool("neuron-monitor", *arguments)
    assert run.returncode == code
    assert message in run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr


@pytest.mark.usefixtures("machine")
def test_verbose_says_the_source(tool):
    assert "source: sim" in tool("neuron-monitor", "--verbose", "1", "--limit", "1").stderr
    assert tool("neuron-monitor", "--limit", "1").stderr == ""


@pytest.mark.usefixtures("machine")
def test_a_recording_is_replayed_until_it_is_cut_off(program, tool, worker, config, home):
    job = worker(NEURON_RT_NUM_CORES="1", NEURON_PROCESS_TAG="bert")
    path = config(**FAST)
    monitor = program("neuron-monitor", "-c", path)
    lines = []
    for _ in range(5):
        lines.append(monitor.line())
        job.run(status=1201)
    (home / "rec.jsonl").write_text("".join(lines) + lines[0][:200])
    run = tool("neuron-monitor", "-c", path, "--source", "rec.jsonl", "--verbose", "1")
    assert run.returncode == 0
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(reports) == 5
    errors = [
        entry_of(report, job.pid)["report"]["execution_stats"]["error_summary"]["hardware"]
        for report in reports[1:]
    ]
    assert sum(errors) == sum(
        entry_of(json.loads(line), job.pid)["report"]["execution_stats"]["error_summary"]["hardware"]
        for line in lines[1:]
    )
    assert sum(errors) > 0
    assert {report["instance_info"]["instance_type"] for report in reports} == {"trn1.32xlarge"}
    assert run.stderr.splitlines()[0] == "neuron-monitor: source: file:rec.jsonl"
    assert re.search(r"rec.jsonl.*line 6.*cut off", run.stderr)


@pytest.mark.usefixtures("machine")
def test_a_host_with_the_neuron_driver_is_recognized_by_its_sysfs_tree(tool, home, monkeypatch, config):
    assert tool("neurontools", "fault", "inject", "ecc", "--device", "3").returncode == 0
    assert tool("neurontools", "sysfs", "export", str(home / "host")).returncode == 0
    monkeypatch.setenv("NEURONTOOLS_SYSFS_ROOT", str(home / "host"))
    run = tool("neuron-monitor", "-c", config(**FAST), "--source", "real", "--limit", "2", "--verbose", "1")
    assert run.returncode == 0
    assert run.stderr.splitlines()[0] == "neuron-monitor: source: real"
    first, second = map(json.loads, run.stdout.splitlines())
    assert first["neuron_hardware_info"]["neuron_device_count"] == 16
    errors = second["system_data"]["neuron_hw_counters"]["neuron_devices"]
    assert [device["mem_ecc_uncorrected"] for device in errors].index(1) == 3
    assert second["system_data"]["vcpu_usage"]["error"] == ""


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "arguments", [["--source", "nowhere.jsonl"], ["--source", "m.conf", "--machine", "x"]]
)
def test_a_source_that_is_none(tool, home, arguments):
    (home / "m.conf").write_text("{}")
    run = tool("neuron-monitor", *arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert run.stdout == ""


@pytest.mark.parametrize("module", ["monitor", "monitor_prometheus"])
def test_help_loads_nothing_heavy(module):
    code = (
        f"import sys, json\nfrom neurontools.commands import {module} as command\n"
        "try:\n    command.main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "sys.stderr.write(json.dumps([*sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(run.stderr)}
    assert "examples:" in run.stdout
    assert not loaded & {*HEAVY, "psutil"}


def test_nothing_heavy_is_loaded(home, monkeypatch):
    # Tests of another version that run at the same time would replace the catalogue in the shared cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    launch.start(StartOptions("default"))
    code = (
        "import sys, json\nfrom neurontools.commands import monitor\n"
        "assert monitor.main(['--limit', '1']) == 0\nsys.stderr.write(json.dumps([*sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(run.stderr)}
    plain = subprocess.run(
        [sys.executable, "-c", "import sys, json; print(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    before = {name.partition(".")[0] for name in json.loads(plain.stdout)}
    assert sorted((loaded - before) & HEAVY) == []


def test_nothing_is_left_open(home):
    launch.start(StartOptions("default", "trn1.2xlarge"))
    code = "from neurontools.commands.monitor import main; raise SystemExit(main(['--limit', '1']))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0
    assert "ResourceWarning" not in run.stderr
