"""Recordings as a source: rates become totals, processes come and go, damage ends it with a notice.

What our own neuron-monitor writes about a simulated machine is read back as that machine.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from neurontools.errors import NeuronToolsError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.machine_view import machine_view
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import MemoryCategory
from neurontools.scenario.recording import open_recording
from neurontools.sources import open_source
from neurontools.sources.recording import RecordingError
from tests.sources.lines import HARDWARE, MEMORY_INFO, TRN2, hardware_errors, line, runtime

IDLE = line(system={"memory_info": MEMORY_INFO})


@pytest.fixture
def recording(home):
    def write(*lines):
        path = home / "run.jsonl"
        path.write_text("".join(lines))
        return open_source(str(path))

    return write


def test_the_captured_idle_line_is_an_idle_machine(recording):
    source = recording(IDLE)
    snapshot = source.snapshot()
    assert (source.name, source.live, source.notices) == ("file:run.jsonl", False, ())
    assert (snapshot.source, snapshot.instance_type, snapshot.lnc) == ("recording", "trn1.2xlarge", 1)
    (device,) = snapshot.devices
    assert (device.bdf, device.core_ids, device.memory_bytes) == ("0000:00:1e.0", (0, 1), 34359738368)
    assert snapshot.processes == ()


def test_rates_over_a_period_are_those_of_the_line(recording):
    source = recording(
        IDLE,
        line(runtime(7, {0: 50.0, 1: 0.0})),
        line(runtime(7, {0: 21.01, 1: 63.01})),
        line(runtime(7, {0: 100.0, 1: 0.0}, period=5.0)),
    )
    snapshots = list(source.snapshots())
    rates = [
        [core.utilization for core in machine_view(before, after).devices[0].cores]
        for before, after in itertools.pairwise(snapshots)
    ]
    assert rates[1] == pytest.approx([0.2101, 0.6301], abs=1e-6)
    assert rates[2] == pytest.approx([1.0, 0.0], abs=1e-6)
    flops = machine_view(snapshots[-2], snapshots[-1]).total_flops_s
    assert flops == pytest.approx(100e9, rel=1e-6)
    assert snapshots[-1].taken_ns - snapshots[0].taken_ns == pytest.approx(7e9, rel=1e-3)


def test_a_process_has_its_totals(recording):
    lines = [line(runtime(7, {0: 50.0, 1: 50.0}, tag="trainer", completed=9, failed=1, latency=0.002))] * 3
    (process,) = recording(*lines).snapshot().processes
    assert (process.pid, process.tag, process.origin, process.uses_device) == (7, "trainer", "recorded", True)
    assert process.status_counts == ((0, 27), (6, 3))
    assert sum(use.executions for use in process.cores) == 30
    assert sum(count for use in process.cores for _, count in use.failures) == 3
    assert sum(process.latency_counts) == 30
    assert max(range(64), key=process.latency_counts.__getitem__) == 21  # 2 ms
    assert [use.memory.tensors for use in process.cores] == [1 << 20, 1 << 20]
    assert process.host_memory.application_memory == 4096


def test_a_process_that_is_reported_no_more_is_gone(recording):
    first, second = runtime(7, {0: 50.0}), runtime(8, {1: 50.0})
    source = recording(line(first), line(first, second), line(second), line())
    assert [[each.pid for each in snapshot.processes] for snapshot in source.snapshots()] == [
        [7],
        [7, 8],
        [8],
        [],
    ]


def test_a_line_of_another_group_does_not_end_a_process(recording):
    slow = line(runtime(7, {0: 50.0}, period=5.0))
    errors = [line(system=hardware_errors(1.0, mem_ecc_corrected=count)) for count in range(1, 5)]
    gone = line(system=hardware_errors(1.0, mem_ecc_corrected=5))
    snapshots = list(recording(slow, *errors, gone, gone).snapshots())
    assert [len(snapshot.processes) for snapshot in snapshots] == [1, 1, 1, 1, 1, 0, 0]
    assert [snapshot.devices[0].hardware.mem_ecc_corrected for snapshot in snapshots[:4]] == [1, 1, 2, 3]


def test_errors_before_the_first_counters_are_those_of_the_first_counters(recording):
    errors = [line(system=hardware_errors(1.0, mem_ecc_uncorrected=count)) for count in (40, 41)]
    snapshots = list(recording(IDLE, IDLE, *errors).snapshots())
    assert [snapshot.devices[0].hardware.mem_ecc_uncorrected for snapshot in snapshots] == [40, 40, 40, 41]


def test_counters_after_a_damaged_line_do_not_count(recording):
    damaged = '{"system_data": {"neuron_hw_counters": 1\n'
    source = recording(IDLE, damaged, line(system=hardware_errors(1.0, mem_ecc_uncorrected=40)))
    assert [snapshot.devices[0].hardware.mem_ecc_uncorrected for snapshot in source.snapshots()] == [0]


def test_groups_with_periods_of_their_own_share_one_clock(recording):
    def pair(period):
        return line(runtime(7, {0: 50.0}), system=hardware_errors(period))

    alone = line(runtime(7, {0: 50.0}))
    snapshots = list(recording(alone, pair(1.0), alone, pair(2.0), alone, pair(2.0)).snapshots())
    assert [snapshot.taken_ns / 1e9 for snapshot in snapshots] == pytest.approx([1, 2, 3, 4, 5, 6])


def test_idle_cores_that_a_line_lists_are_not_the_processes(recording):
    trn2 = line(
        runtime(7, {core: 40.0 if core in {8, 9} else 0.0 for core in range(64)}, memory=0),
        instance={"instance_type": "trn2.48xlarge"},
        hardware=TRN2,
    )
    snapshot = recording(trn2).snapshot()
    assert [use.core for use in snapshot.processes[0].cores] == [8, 9]
    assert (snapshot.lnc, snapshot.lnc_applies, snapshot.neuroncore_version) == (2, True, "v3d")
    assert snapshot.devices[0].connected_to == (12, 1, 3, 4)


def test_a_group_with_an_error_changes_nothing(recording):
    good = line(runtime(7, {0: 50.0}))
    bad = line(runtime(7, {0: 50.0}, error="cannot read"))
    before, after = recording(good, bad).snapshots()
    assert before.processes[0].cores[0].busy_ns == after.processes[0].cores[0].busy_ns


def test_an_unknown_instance_type_still_has_devices(recording):
    snapshot = recording(line(instance={"instance_type": "trn9.huge"})).snapshot()
    assert [(device.bdf, device.core_ids) for device in snapshot.devices] == [("", (0, 1))]


def without(*names):
    return {name: value for name, value in HARDWARE.items() if name not in names}


@pytest.mark.parametrize(
    "hardware",
    [
        {},
        without("neuron_device_memory_size"),
        without("neuron_device_count"),
        without("neuroncore_per_device_count", "neuroncore_version"),
        without("logical_neuroncore_config", "neuron_device_type"),
    ],
)
def test_facts_that_an_old_report_lacks_are_the_catalogues(recording, hardware):
    snapshot = recording(line(runtime(7, {0: 50.0}), hardware=hardware)).snapshot()
    (device,) = snapshot.devices
    assert (device.core_ids, device.memory_bytes) == ((0, 1), 32 << 30)
    assert (snapshot.neuroncore_version, snapshot.lnc) == ("v2", 1)


def test_cores_of_an_old_report_follow_the_default_configuration_of_their_type(recording):
    snapshot = recording(line(hardware={}, instance={"instance_type": "trn2.48xlarge"})).snapshot()
    assert (len(snapshot.devices), snapshot.lnc, snapshot.neuroncore_version) == (16, 2, "v3d")
    assert snapshot.devices[1].core_ids == (4, 5, 6, 7)


def test_an_old_report_of_an_unknown_type_has_the_devices_of_its_cores(recording):
    unknown = {"instance_type": "trn9.huge"}
    source = recording(line(runtime(7, {0: 50.0, 5: 1.0}), hardware={}, instance=unknown))
    assert [device.core_ids for device in source.snapshot().devices] == [(0, 1, 2, 3, 4, 5)]


def test_a_report_that_says_why_it_has_no_devices_has_none(recording):
    with pytest.raises(RecordingError, match="no line of neuron-monitor with devices"):
        recording(line(hardware={"error": "neuron-ls failed"})).snapshot()


@pytest.mark.parametrize(("cores", "used"), [({0: 0.0, 1: 50.0}, [0, 96]), ({0: 9.0, 1: 9.0}, [48, 48])])
def test_device_memory_without_its_cores_is_that_of_the_busy_ones(recording, cores, used):
    process = runtime(7, cores)
    process["report"]["memory_used"]["neuron_runtime_used_bytes"] = {"host": 0, "neuron_device": 96}
    snapshot = recording(line(process)).snapshot()
    by_core = {use.core: use.memory.total_bytes for use in snapshot.processes[0].cores}
    assert [by_core.get(core, 0) for core in (0, 1)] == used
    assert snapshot.devices[0].memory_used_bytes == 96


def test_the_use_of_the_vcpus_is_the_reported_average(recording):
    average = {
        "user": 20.0,
        "nice": 6.32,
        "system": 1.0,
        "idle": 60.0,
        "io_wait": 2.0,
        "irq": 0.5,
        "soft_irq": 0.5,
    }
    usage = {
        "period": 1.0,
        "average_usage": average,
        "usage_data": {},
        "context_switch_count": 1,
        "error": "",
    }
    snapshot = recording(line(system={"vcpu_usage": usage})).snapshot()
    assert snapshot.vcpu_usage == pytest.approx((0.2632, 0.04))
    failed = {**usage, "average_usage": {}, "error": "no /proc"}
    lines = [line(system={"vcpu_usage": usage}), line(system={"vcpu_usage": failed}), IDLE]
    assert recording(*lines).snapshot().vcpu_usage == pytest.approx((0.2632, 0.04))


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_cut_line_ends_it_with_a_notice(recording, home, cut):
    whole = line(runtime(7, {0: 50.0}))
    source = recording(IDLE, whole, whole[:-cut])
    shown = len(list(source.snapshots()))
    if cut == 1:  # only the line end is missing
        assert (shown, source.notices) == (3, ())
    else:
        assert (shown, source.notices) == (2, (f"{home}/run.jsonl: stopped at line 3, which is cut off",))


def test_a_damaged_line_in_the_middle_ends_it(recording):
    source = recording(IDLE, "{}}\n", IDLE)
    assert len(list(source.snapshots())) == 1
    assert "stopped at line 2, which is not a report" in source.notices[0]


@pytest.mark.parametrize("content", ["", "\n\n", "hello\n", "[]\n", '{"a": 1}\n', "\x00\x01"])
def test_what_is_not_a_recording_is_refused(recording, content):
    with pytest.raises(RecordingError):
        recording(content).snapshot()
    with pytest.raises(RecordingError):
        next(recording(content).watch(0.0))


def _zip(data):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("run.jsonl", data)
    return archive.getvalue()


_PACKED = [
    (gzip.compress, "packed with gzip", "gunzip"),
    (bz2.compress, "packed with bzip2", "bunzip2"),
    (lzma.compress, "packed with xz", "unxz"),
    (lambda data: b"\x28\xb5\x2f\xfd" + data, "packed with zstd", "unzstd"),
    (_zip, "packed with zip", "unzip"),
]
_SPREAD = [
    (lambda data: json.dumps(json.loads(data), indent=2).encode(), "several lines each", "jq -c . "),
    (lambda data: json.dumps([json.loads(data)], indent=1).encode(), "several lines each", "jq -c .[] "),
]


@pytest.mark.parametrize(("change", "reason", "remedy"), _PACKED + _SPREAD)
@pytest.mark.parametrize("read", [open_source, open_recording], ids=["source", "replay"])
def test_a_packed_or_pretty_printed_recording_is_refused_with_the_program_that_helps(
    home, read, change, reason, remedy
):
    path = home / "run.jsonl"
    path.write_bytes(change(IDLE.encode()))
    with pytest.raises(NeuronToolsError, match=reason) as refusal:
        read(str(path))
    assert remedy in refusal.value.remedy


def test_a_directory_is_refused(home):
    with pytest.raises(RecordingError, match="Is a directory"):
        open_source(str(home)).snapshot()


def test_watching_yields_every_line(recording):
    source = recording(IDLE, line(runtime(7, {0: 50.0})), line())
    assert [len(snapshot.processes) for snapshot in source.watch(0.0)] == [0, 1, 0]


@pytest.mark.parametrize(
    "damaged",
    [
        line(hardware={**TRN2, "neuron_device_count": 2147483648}),
        line(hardware={**TRN2, "neuron_device_count": 10**30}),
        line(hardware={**TRN2, "neuroncore_per_device_count": 10**30}),
        line(runtime(7, {0: 50.0}, period=1e308)),
    ],
)
def test_a_line_that_would_take_all_memory_ends_it_with_a_notice(recording, damaged):
    source = recording(IDLE, damaged, IDLE)
    assert len(list(source.snapshots())) == 1
    (notice,) = source.notices
    assert "stopped at line 2, which is not a report (damaged line: " in notice
    with pytest.raises(RecordingError, match="stopped at line 1"):
        recording(damaged).snapshot()


MONITOR = str(Path(sys.executable).parent / "neuron-monitor")


@pytest.fixture
def worker():
    """This process as a job on two cores of device 1 of a Trn2 machine."""
    launch.start(StartOptions("default", "trn2.48xlarge"))
    with Client.connect() as client:
        place = client.register("trainer", "python train.py", cores=(4, 5), runtime_version="2.34.10")
        page = PageWriter(place.page_fd)
        yield page
        page.close()
        client.unregister()


@pytest.fixture
def recorded(home, worker):
    """Lines of neuron-monitor while the job works, and what the machine was at their end."""
    worker.set_memory(0, MemoryCategory.TENSORS, 3 << 30)
    worker.set_memory(1, MemoryCategory.MODEL_CODE, 5 << 20)
    worker.set_host_memory(MemoryCategory.APPLICATION_MEMORY, 7 << 20)
    (home / "config").write_text(
        json.dumps(
            {
                "period": "300ms",
                "neuron_runtimes": [
                    {
                        "tag_filter": ".*",
                        "metrics": [
                            {"type": "neuroncore_counters"},
                            {"type": "memory_used"},
                            {"type": "execution_stats"},
                        ],
                    }
                ],
            }
        )
    )
    with subprocess.Popen([MONITOR, "-c", "config"], stdout=subprocess.PIPE) as monitor:
        lines = []
        assert monitor.stdout is not None
        for line in itertools.islice(monitor.stdout, 4):
            lines.append(line)
            worker.begin(0)
            worker.end(0, 0, 100_000_000, 10**9)
            worker.begin(1)
            worker.end(1, 1003, 20_000_000, 0)
        monitor.terminate()
    (home / "run.jsonl").write_bytes(b"".join(lines))
    with Client.connect() as client:
        return open_source("run.jsonl"), client.snapshot()


def test_a_recording_of_a_machine_is_that_machine(recorded):
    source, machine = recorded
    snapshots = list(source.snapshots())
    last = snapshots[-1]
    for name in ("instance_type", "instance_id", "lnc", "lnc_applies", "neuroncore_version"):
        assert getattr(last, name) == getattr(machine, name)
    assert [(d.index, d.bdf, d.connected_to, d.core_ids) for d in last.devices] == [
        (d.index, d.bdf, d.connected_to, d.core_ids) for d in machine.devices
    ]
    (process,) = last.processes
    (real,) = (each for each in machine.processes if each.uses_device)
    assert (process.pid, process.tag) == (real.pid, "trainer")
    assert [(use.core, use.memory) for use in process.cores] == [(use.core, use.memory) for use in real.cores]
    assert process.host_memory == real.host_memory
    assert dict(process.status_counts) == {0: 3, 1003: 3}
    view = machine_view(snapshots[0], last)
    rates = {core.core: core.utilization for device in view.devices for core in device.cores}
    assert {core for core, rate in rates.items() if rate} == {4, 5}
    wall_s = (last.taken_ns - snapshots[0].taken_ns) / 1e9
    assert rates[4] == pytest.approx(0.3 / wall_s, rel=0.02)
    assert view.total_flops_s == pytest.approx(3e9 / wall_s, rel=0.02)
