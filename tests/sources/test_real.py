"""A real host as a source: the driver's tree as a mirror shows it, a made-up /proc, and a neuron-monitor of the test's."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from neurontools.machine.codec import decode, encode
from neurontools.machine.snapshot import Snapshot, busy_share
from neurontools.sources import open_source
from neurontools.sources.real import NoDriverError, find_monitor
from neurontools.sources.retrying import RetryingSource, SourceProblem
from neurontools.sysfs.mirror import SysfsMirror
from tests.sources.lines import INSTANCE, MEMORY_INFO, TRN2, line, runtime
from tests.sysfs.machines import busy, machine, tree_of

SCRIPT = """#!{python} -IS
import sys, time
open({log!r}, "a").write(" ".join(sys.argv[1:2]) + "\\n")
for line in open({lines!r}):
    print(line, end="", flush=True)
    time.sleep({pause})
time.sleep({linger})
"""
PCI = "sys/bus/pci/devices"


class Host:
    """A host's files below a directory."""

    def __init__(self, root):
        self.root = root

    def show(self, snapshot):
        with SysfsMirror(str(self.root), "default") as mirror:
            mirror.update(snapshot)

    def process(self, pid, *devices, command="python train.py", name="python", start_ticks=12345):
        directory = self.root / "proc" / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "comm").write_text(f"{name}\n")
        (directory / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (directory / "stat").write_text(
            f"{pid} (a ) b) S {' '.join(['0'] * 18)} {start_ticks} {' '.join(['0'] * 30)}\n"
        )
        (directory / "fd" / "0").symlink_to("/dev/null")
        for number, device in enumerate(devices, start=3):
            (directory / "fd" / str(number)).symlink_to(f"/dev/neuron{device}")

    def monitor(self, *lines, pause=0.05, linger=60):
        path = self.root / "opt/aws/neuron/bin/neuron-monitor"
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.root / "lines").write_text("".join(lines))
        text = SCRIPT.format(
            python=sys.executable,
            lines=str(self.root / "lines"),
            log=str(self.root / "starts"),
            pause=pause,
            linger=linger,
        )
        path.write_text(text)
        path.chmod(0o755)

    def pci(self, bdf, pci_id, cpus, numa):
        directory = self.root / PCI / bdf
        directory.mkdir(parents=True)
        vendor, device = pci_id.split(":")
        (directory / "vendor").write_text(f"0x{vendor}\n")
        (directory / "device").write_text(f"0x{device}\n")
        (directory / "local_cpulist").write_text(f"{cpus}\n")
        (directory / "numa_node").write_text(f"{numa}\n")


@pytest.fixture
def host(home, monkeypatch):
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="nt-", dir=memory if os.access(memory, os.W_OK) else home))
    monkeypatch.setenv("NEURONTOOLS_SYSFS_ROOT", str(place / "root"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    yield Host(place / "root")
    shutil.rmtree(place)


def test_without_a_driver_it_says_so(host):
    with pytest.raises(NoDriverError, match="no Neuron driver"):
        open_source("real")


def test_neuron_ls_says_what_the_real_one_says(host, tool):
    run = tool("neuron-ls", "--source", "real")
    assert (run.returncode, run.stdout) == (1, "")
    assert 'level=fatal msg="Failed to load MLA system information"' in run.stderr
    assert run.stderr.endswith('error="failed to discover Neuron devices"\n')


@pytest.mark.parametrize(("name", "lnc"), [("trn1.2xlarge", 1), ("inf2.24xlarge", 1), ("trn2.48xlarge", 2)])
def test_what_a_mirror_shows_is_read_back(host, name, lnc):
    shown = busy(name)
    host.show(shown)
    with open_source("real") as source:
        read = source.snapshot()
    assert (source.name, source.live, read.source) == ("real", True, "real")
    assert (read.instance_type, read.lnc, read.lnc_applies) == (name, lnc, shown.lnc_applies)
    assert read.neuroncore_version == shown.neuroncore_version
    for before, after in zip(shown.devices, read.devices, strict=True):
        used = sum(
            use.memory.total_bytes - use.memory.dma_buffers
            for process in shown.processes
            for use in process.cores
            if use.core in before.core_ids
        )
        assert after == replace(before, memory_used_bytes=used)
    by_core = {totals.core: totals for totals in read.core_totals}
    assert by_core[0].executions == 15
    assert by_core[0].flops == 1_000_501
    assert by_core[0].model_loads == 3
    assert by_core[0].failures == ((5, 1), (1003, 2), (1201, 1))
    assert by_core[1].executions == 10


def test_the_tree_of_what_was_read_is_the_tree_that_was_read(host):
    shown = replace(busy("trn2.48xlarge"), processes=())
    host.show(shown)
    with open_source("real") as source:
        read = source.snapshot()
    before, after = tree_of(shown), tree_of(replace(read, instance_id=shown.instance_id))
    modelled = ("pe_cntrs", "nc_time_in_use", "/power/", "heartbeat")  # times, which are not read
    assert {p: e for p, e in after.items() if not any(word in p for word in modelled)} == {
        p: e for p, e in before.items() if not any(word in p for word in modelled)
    }


def test_without_a_monitor_who_holds_a_device_is_shown_with_all_its_cores(host):
    host.show(machine("trn1.32xlarge"))
    host.process(100, 3, 4, command="python train.py --steps 10")
    host.process(200, 0, 3, name="neuron-top", command="neuron-top")
    host.process(300)
    with open_source("real") as source:
        job, looker = source.snapshot().processes
    assert "no neuron-monitor on this host" in source.notices[0]
    assert (job.pid, job.command, job.start_ticks, job.uid) == (
        100,
        "python train.py --steps 10",
        12345,
        os.getuid(),
    )
    assert [use.core for use in job.cores] == [6, 7, 8, 9]
    assert (job.uses_device, job.origin) == (True, "live")
    assert (looker.pid, looker.uses_device, looker.cores) == (200, False, ())


def test_the_monitor_says_who_does_what(host):
    host.show(machine("trn2.48xlarge"))
    host.process(100, 0)
    instance = {**INSTANCE, "instance_type": "trn2.48xlarge", "instance_id": "i-0dcf246b9a7d5f066"}
    first = line(system={"memory_info": MEMORY_INFO}, instance=instance, hardware=TRN2)
    second = line(runtime(100, {1: 50.0, 2: 0.0}, tag="trainer", memory=5), instance=instance, hardware=TRN2)
    host.monitor(first, second)
    with open_source("real") as source:
        snapshot = source.snapshot()
        assert source.notices == ()
    assert snapshot.instance_id == "i-0dcf246b9a7d5f066"
    (process,) = snapshot.processes
    assert (process.pid, process.tag, process.command) == (100, "trainer", "python train.py")
    assert [(use.core, use.memory.tensors) for use in process.cores] == [(1, 5), (2, 5)]


def test_watching_gives_the_rates_of_the_stream(host):
    host.show(machine("trn1.2xlarge"))
    host.monitor(*[line(runtime(100, {0: 80.0}, period=0.2))] * 20, pause=0.2)
    with open_source("real") as source:
        snapshots = [snapshot for snapshot, _ in zip(source.watch(0.2), range(4), strict=False)]
    assert [len(snapshot.processes) for snapshot in snapshots] == [1] * 4
    shares = [busy_share(before, after)[0] for before, after in itertools.pairwise(snapshots)]
    assert all(0 < share <= 1 for share in shares)
    config = Path((host.root / "starts").read_text().split()[-1])
    assert not config.exists(), "the configuration is temporary"


def test_the_monitor_ends_with_the_source(host):
    host.show(machine("trn1.2xlarge"))
    host.monitor(line())
    with open_source("real") as source:
        source.snapshot()
        process = source._monitor._process
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM


def test_a_monitor_that_says_nothing_is_done_without(host, monkeypatch):
    monkeypatch.setattr("neurontools.sources.real._FIRST_REPORT_S", 0.2)
    host.show(machine("trn1.2xlarge"))
    host.monitor()
    with open_source("real") as source:
        assert len(source.snapshot().devices) == 1
        assert source.notices == (f"{host.root}/opt/aws/neuron/bin/neuron-monitor sends no report",)


def test_a_monitor_that_ends_is_started_again(host):
    host.show(machine("trn1.2xlarge"))
    host.monitor(line(), linger=0)
    with RetryingSource("real", 0.05) as follower:
        updates = follower.updates()
        assert not isinstance(next(updates), SourceProblem)
        trouble = next(update for update in updates if isinstance(update, SourceProblem))
        assert "neuron-monitor ended" in trouble.text
        assert not isinstance(next(updates), SourceProblem)


def test_closing_from_another_thread_ends_the_monitor_at_once(host):
    host.show(machine("trn1.2xlarge"))
    host.monitor(line())
    follower = RetryingSource("real", 3600.0)
    updates = follower.updates()
    next(updates)
    process = follower._source._monitor._process
    threading.Timer(0.1, follower.close).start()
    assert list(updates) == []
    assert process.poll() == -signal.SIGTERM


def test_a_driver_that_is_unloaded_is_waited_for(host):
    host.show(machine("trn1.2xlarge"))
    with RetryingSource("real", 0.05) as follower:
        updates = follower.updates()
        next(updates)
        shutil.move(host.root / "sys", host.root / "gone")
        trouble = next(update for update in updates if isinstance(update, SourceProblem))
        assert trouble.text.startswith("no Neuron driver")
        shutil.move(host.root / "gone", host.root / "sys")
        back = next(update for update in updates if not isinstance(update, SourceProblem))
        assert len(back.devices) == 1


def test_our_own_monitor_is_not_the_hosts(host, home, monkeypatch):
    own = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{own}:/usr/bin")
    assert (own / "neuron-monitor").exists()
    assert find_monitor() is None
    (home / "bin").mkdir()
    (home / "bin" / "neuron-monitor").symlink_to(own / "neuron-monitor")
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin")
    assert find_monitor() is None
    (home / "bin" / "neuron-monitor").unlink()
    shutil.copy("/bin/true", home / "bin" / "neuron-monitor")
    assert find_monitor() == f"{home}/bin/neuron-monitor"


def test_a_container_that_sees_one_device_numbers_it_anew(host):
    host.show(machine("trn1.32xlarge"))
    for node in (host.root / "dev").iterdir():
        if node.name != "neuron13":
            node.unlink()
    host.process(100, 13)
    with open_source("real") as source:
        snapshot = source.snapshot()
    (device,) = snapshot.devices
    assert (device.index, device.core_ids, device.bdf) == (0, (0, 1), "0000:10:1b.0")
    assert device.connected_to == (9, 12, 1, 14)
    assert [use.core for use in snapshot.processes[0].cores] == [0, 1]


def test_files_that_only_root_may_read_come_from_the_catalogue(host):
    host.show(machine("trn1.32xlarge"))
    for path in host.root.glob("sys/devices/virtual/neuron_device/neuron*/connected_devices"):
        path.unlink()
    for path in host.root.glob("sys/devices/virtual/neuron_device/neuron*/core_count"):
        path.unlink()
    with open_source("real") as source:
        assert source.snapshot().devices[0].connected_to == (12, 3, 4, 1)
        assert len(source.snapshot().devices[0].core_ids) == 2


def test_the_bus_says_where_a_device_is(host):
    host.show(machine("trn1.2xlarge"))
    host.pci("0000:00:05.0", "1d0f:ec20", "0-3", "0")
    host.pci("0000:00:1d.0", "1d0f:7164", "0-3", "0")
    with open_source("real") as source:
        (device,) = source.snapshot().devices
    assert (device.bdf, device.cpu_affinity, device.numa_node) == ("0000:00:1d.0", "0-3", "0")


def test_addresses_that_the_catalogue_knows_keep_its_order(host):
    shown = machine("inf2.24xlarge")
    host.show(shown)
    for device in shown.devices:
        host.pci(device.bdf, "1d0f:7264", f"{device.index}", "7")
    with open_source("real") as source:
        devices = source.snapshot().devices
    assert [device.bdf for device in devices] == [device.bdf for device in shown.devices]
    assert [device.cpu_affinity for device in devices] == ["0", "1", "2", "3", "4", "5"]
    assert not any("PCI" in notice for notice in source.notices)


def test_other_addresses_are_listed_in_their_order_with_a_notice(host):
    host.show(machine("inf2.24xlarge"))
    for slot in range(6):
        host.pci(f"0000:0{slot}:00.0", "1d0f:7264", "0-7", "-1")
    with open_source("real") as source:
        devices = source.snapshot().devices
        assert any("it is not known which device has which address" in notice for notice in source.notices)
    assert devices[5].bdf == "0000:05:00.0"


def test_an_unknown_instance_type_has_devices_without_places(host):
    host.show(machine("trn1.2xlarge"))
    name = host.root / "sys/devices/virtual/dmi/id/product_name"
    name.unlink()
    name.write_text("trn9.huge\n")
    with open_source("real") as source:
        snapshot = source.snapshot()
    assert snapshot.instance_type == "trn9.huge"
    assert [(device.bdf, device.core_ids) for device in snapshot.devices] == [("", (0, 1))]


@pytest.mark.parametrize(("tool_name", "words"), [("neuron-ls", ("-j",)), ("neuron-top", ("--once",))])
def test_the_tools_show_it(host, tool, tool_name, words):
    host.show(machine("trn1.2xlarge"))
    told = line(runtime(100, {0: 50.0}, period=1.0))
    host.monitor(told, told, pause=1.0)
    run = tool(tool_name, "--source", "real", *words)
    assert run.returncode == 0
    assert "trn1.2xlarge" in run.stdout
    assert "i-0bea223b1afb7e159" in run.stdout


def test_a_container_s_device_has_the_place_that_its_links_tell(host):
    whole = machine("trn2.48xlarge")
    alone = replace(whole.devices[13], index=0, core_ids=(0, 1, 2, 3))
    host.show(replace(whole, devices=(alone,)))
    with open_source("real") as source:
        (read,) = source.snapshot().devices
    assert read == alone
    assert read.bdf == "0000:e1:00.0"


@pytest.mark.parametrize(
    ("line", "power"),
    [
        ("POWER_STATUS_VALID,1789180860,0.00,100.00,41.50\n", (0.0, 1.0, 0.415)),
        ("POWER_STATUS_NO_DATA,1789180860,0.00,0.00,0.00\n", None),
        ("POWER_STATUS_VALID,1789180860,x,0.00,0.00\n", None),
        ("POWER_STATUS_VALID,1\n", None),
        ("", None),
    ],
)
def test_power_is_what_the_driver_tells(host, line, power):
    host.show(machine("trn1.2xlarge"))
    (host.root / "sys/devices/virtual/neuron_device/neuron0/stats/power/utilization").write_text(line)
    with open_source("real") as source:
        snapshot = source.snapshot()
    assert snapshot.devices[0].power == pytest.approx(power)
    assert decode(encode(snapshot), Snapshot) == snapshot
