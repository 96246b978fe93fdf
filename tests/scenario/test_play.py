"""Scenarios played on real daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from neurontools import scenario
from neurontools.errors import DaemonError, NoMachineError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE
from neurontools.scenario.offline import ScenarioSnapshots
from neurontools.scenario.timeline import ScenarioTimeline

NAMES = [name for name in scenario.scenario_names() if name != "thousand-processes"]


def played(name, *, speed, duration_s=None):
    """Play on the default machine and return what the machine shows at the last moment."""
    shown = []

    def look():
        with Client.connect() as client:
            shown.append(client.snapshot())

    found = scenario.load(name)
    scenario.play(found, speed=speed, duration_s=duration_s, before_end=look)
    return found, shown[0]


def counted(snapshot):
    """Return what must not depend on the speed of a play."""
    return {
        process.tag: (
            [(use.core, use.executions, use.failures, use.memory, use.model_loads) for use in process.cores],
            process.latency_counts,
            process.status_counts,
            process.host_memory,
            [(model.name, model.model_id, model.core, model.memory) for model in process.models],
        )
        for process in snapshot.processes
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_shows_what_the_scenario_says(name):
    # The storm's uncorrected errors, which begin at 4 min, hit synthetic processes on top of what the file says.
    until_s = 235.0 if name == "ecc-storm" else 299.5
    found, shown = played(name, speed=400, duration_s=until_s)
    expected = ScenarioSnapshots(ScenarioTimeline(found), "default").at(until_s)
    assert counted(shown) == counted(expected)
    assert all(process.origin == "synthetic" for process in shown.processes)
    assert all(process.pid > SYNTHETIC_PIDS_ABOVE for process in shown.processes)
    used = [device.memory_used_bytes for device in shown.devices]
    assert used == [device.memory_used_bytes for device in expected.devices]
    assert launch.list_machines() == ()


def test_two_speeds_give_the_same_numbers(steady):
    one, other = (played(steady, speed=speed, duration_s=20)[1] for speed in (20, 80))
    assert counted(one) == counted(other)
    busy = [snapshot.processes[0].cores[0].busy_ns / 1e9 for snapshot in (one, other)]
    assert busy[0] == pytest.approx(0.6 * 20 / 20, abs=0.15)  # times are shares of this computer's time
    assert busy[1] == pytest.approx(0.6 * 20 / 80, abs=0.15)


def test_tools_show_synthetic_processes(steady, player, tool, wait_until):
    playing = player(steady)
    playing.wait_for("started", 4)
    listing = tool("neuron-ls").stdout
    assert "python steady.py --rank 3" in listing
    assert str(SYNTHETIC_PIDS_ABOVE + 1) in listing

    def is_busy():
        screen = tool("neuron-top", "--once", "--interval", "0.5").stdout
        return "steady-0.neff" in screen and "NC0" in screen

    wait_until(is_busy)
    assert playing.end(signal.SIGTERM)[0] == 143


def test_a_dashboard_sees_steady_utilization(steady, player):
    from neurontools.machine.snapshot import busy_share

    player(steady).wait_for("started", 4)
    with Client.connect() as client:
        snapshots = client.watch(0.5)
        next(snapshots)
        before, after = next(snapshots), next(snapshots)
        snapshots.close()
    shares = busy_share(before, after)
    assert shares[0] == pytest.approx(0.6, abs=0.25)
    assert shares[8] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_play_that_is_ended_leaves_the_machine_as_it_was(steady, player, snapshot, number, code):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    playing = player(steady)
    playing.wait_for("started", 4)
    assert len(snapshot().processes) == 4
    assert playing.end(number) == (code, "")
    after = snapshot()
    assert after.processes == ()
    assert [device.memory_used_bytes for device in after.devices] == [0] * 16


def test_processes_of_a_killed_player_are_gone(steady, player, snapshot, wait_until):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    playing = player(steady)
    playing.wait_for("started", 4)
    playing.end(signal.SIGKILL)
    wait_until(lambda: snapshot().processes == ())
    assert sum(totals.executions for totals in snapshot().core_totals) >= 0


def test_a_machine_of_its_own_ends_with_a_killed_player(steady, player, wait_until):
    playing = player(steady)
    playing.wait_for("started", 4)
    playing.end(signal.SIGKILL)
    wait_until(lambda: launch.list_machines() == ())


@pytest.mark.parametrize("own", [True, False], ids=["own machine", "machine of somebody else"])
def test_a_play_goes_on_when_the_daemon_is_killed(
    steady, player, snapshot, kill_daemon, wait_until, own, monkeypatch
):
    if not own:
        launch.start(StartOptions("default", "trn1.32xlarge"))
    playing = player(steady)
    playing.wait_for("started", 4)
    before = {process.pid for process in snapshot().processes}
    executions = sum(process.cores[0].executions for process in snapshot().processes)
    kill_daemon()
    wait_until(lambda: launch.list_machines() != ())
    wait_until(lambda: {process.pid for process in snapshot().processes} == before)
    wait_until(lambda: sum(process.cores[0].executions for process in snapshot().processes) > executions)
    playing.end(signal.SIGTERM)
    assert [info.machine for info in launch.list_machines()] == ([] if own else ["default"])


def test_a_stopped_machine_ends_the_play(steady, player):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    playing = player(steady)
    playing.wait_for("started", 4)
    launch.stop("default", force=True)
    errors = playing.process.communicate(timeout=600)[1]
    assert playing.process.returncode == 3
    assert errors == "error: machine 'default' was stopped\nhint: play again to start it\n"
    assert launch.list_machines() == ()


def test_a_crashed_machine_is_resumed_and_stays(steady, kill_daemon):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    kill_daemon()
    scenario.play(scenario.load(steady), speed=50, duration_s=10)
    assert launch.find("default").parent_pid is None
    with Client.connect() as client:
        assert sum(totals.executions for totals in client.snapshot().core_totals) > 0


def test_a_machine_of_another_type_is_refused(steady):
    launch.start(StartOptions("default", "trn1.2xlarge"))
    with pytest.raises(DaemonError, match=r"machine 'default' is trn1\.2xlarge, not trn1\.32xlarge"):
        scenario.play(scenario.load(steady))


def test_real_processes_and_synthetic_ones_compete_for_cores(steady, player, snapshot):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            (
                "import sys; from neurontools.machine.client import Client\n"
                "Client.connect().register(cores=(2,)); print(flush=True); sys.stdin.read()"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline()
        playing = player(steady)
        waiting = playing.wait_for("waiting")
        assert waiting["process"] == "worker 1"
        assert f"process {holder.pid} holds core 2" in waiting["detail"]
        assert {process.tag for process in snapshot().processes} == {"", "steady-0", "steady-2", "steady-3"}
    finally:
        holder.communicate()
    assert playing.wait_for("started", 3)["process"] == "worker 1"
    with Client.connect() as client, pytest.raises(DaemonError, match=r"requested NeuronCores 2, none free"):
        client.register(cores=(2,))


def test_memory_that_somebody_else_holds_is_not_there(home, player, snapshot, wait_until):
    (home / "big.yaml").write_text(
        "description: d\ninstance: trn1.2xlarge\nduration: 10m\nprocesses:\n"
        "  big: {cores: [1], memory: {tensors: 20 GiB}}\n"
    )
    launch.start(StartOptions("default", "trn1.2xlarge"))
    with Client.connect() as client:
        registration = client.register(cores=(0,))
        client.reserve(0, 15 << 30)
        playing = player("./big.yaml")
        assert "memory of device 0 is full" in playing.wait_for("no_memory")["detail"]
        assert client.snapshot().devices[0].memory_used_bytes == 15 << 30
        os.close(registration.page_fd)
        client.unregister()
    assert dict(snapshot().lifetime)["allocations_refused"] >= 1


def test_a_thousand_processes_start_at_once(tool):
    seen = []

    def look():
        with Client.connect() as client:
            seen.append(client.snapshot())

    done = scenario.play(scenario.load("thousand-processes"), duration_s=2, before_end=look)
    assert done.started == 1000
    assert len(seen[0].processes) == 1000
    assert len({process.pid for process in seen[0].processes}) == 1000
    assert sum(len(process.cores) for process in seen[0].processes) == 128
    assert done.cpu_s < 4


def test_a_loop_starts_again_with_new_processes():
    events = []
    text = (
        "description: d\ninstance: trn1.2xlarge\nduration: 4s\nprocesses: {g: {cores: 2, utilization: 5}}\n"
    )
    done = scenario.play(scenario.parse(text), speed=40, duration_s=10, loop=True, on_event=events.append)
    assert done.rounds == 3
    assert done.scenario_s == 10
    pids = [event.pid for event in events if event.kind == "started"]
    assert len(set(pids)) == 3
    assert [event.kind for event in events].count("looped") == 2


def test_lives_shorter_than_a_tick_are_counted_all_the_same():
    text = (
        "description: d\ninstance: trn1.2xlarge\nduration: 30s\nprocesses:\n"
        "  g: {cores: 1, executions: 100, lifetime: 50ms, restart: {after: 50ms}}\n"
    )
    totals = []

    def look():
        with Client.connect() as client:
            totals.append(client.snapshot())

    found = scenario.parse(text)
    scenario.play(found, speed=20, before_end=look)
    expected = ScenarioSnapshots(ScenarioTimeline(found), "default").at(30 - 1e-9)
    assert [total.executions for total in totals[0].core_totals] == [
        total.executions for total in expected.core_totals
    ]


def test_a_lost_device_is_waited_for():
    text = (
        "description: d\ninstance: trn1.32xlarge\nduration: 40s\nprocesses:\n"
        "  g: {cores: [0, 1], executions: 20, utilization: 5, lifetime: 4s, restart: {after: 1s},\n"
        "      memory: {tensors: {curve: ramp, from: 1 GiB, to: 9 GiB, over: 4s}}}\n"
        "faults: [{at: 6s, kind: device-lost, device: 0, duration: 12s}]\n"
    )
    events = []
    done = scenario.play(scenario.parse(text), speed=5, on_event=events.append)
    assert done.scenario_s == 40
    assert events[-1].kind == "finished"
    assert any(event.kind == "started" and event.scenario_s > 25 for event in events)
    assert any(event.kind in {"waiting", "no_memory"} for event in events)


def test_faults_of_a_play_end_with_it():
    text = (
        "description: d\ninstance: trn1.32xlarge\nduration: 20s\nprocesses: {g: {cores: all, utilization: 5}}\n"
        "faults:\n  - {at: 5s, kind: ecc, ecc: mem-corrected, device: 5, count: 3, every: 1s}\n"
        "  - {at: 6s, kind: link-down, device: 0, to: 1}\n"
    )
    launch.start(StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as client:
        seen = []
        scenario.play(scenario.parse(text), speed=40, before_end=lambda: seen.append(client.snapshot()))
        assert seen[0].devices[0].links_down == (1,)
        assert seen[0].devices[5].hardware.mem_ecc_corrected == 3
        after = client.snapshot()
        assert after.devices[0].links_down == ()
        assert client.faults() == ()


LOADED = """
description: d
instance: trn1.32xlarge
duration: 60s
processes:
  rank:
    count: 8
    cores: 1
    tag: "rank{rank}"
    collectives: true
    utilization: 40
    executions: 20
    latency: {p50: 20ms, p99: 21ms}
    mfu: 10%
    memory: {tensors: {curve: ramp, from: 1 GiB, to: 2 GiB, over: 60s}}
"""


def test_faults_change_the_load_that_they_hit():
    """Of eight ranks on four devices, two lose their device, two their link, one is slow, one gets no memory."""
    shown = []
    launch.start(StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as client:
        client.inject("device-lost", device=0, after_s=0.5)
        client.inject("link-down", device=1, to=2)
        client.inject("slow-core", tag="rank6", factor=8)
        client.inject("oom", tag="rank7", after_executions=3)
        scenario.play(scenario.parse(LOADED), speed=20, before_end=lambda: shown.append(client.snapshot()))
    by_tag = {process.tag: process for process in shown[0].processes}
    failed = {tag: dict(process.status_counts) for tag, process in by_tag.items()}
    lost, broken = failed["rank0"], failed["rank2"]
    assert by_tag["rank0"].cores[0].busy_ns < by_tag["rank7"].cores[0].busy_ns / 2
    assert lost[101] > lost.get(0, 0)
    assert broken[1200] > 1000
    assert failed["rank4"][1200] > 1000
    slow, usual = by_tag["rank6"], by_tag["rank7"]
    assert set(failed["rank6"]) == set(failed["rank7"]) == {0}
    assert slow.cores[0].busy_ns > 1.5 * usual.cores[0].busy_ns
    assert slow.cores[0].executions < 0.6 * usual.cores[0].executions
    median = [process.latency_counts.index(max(process.latency_counts)) for process in (slow, usual)]
    assert median[0] - median[1] == 6
    assert usual.cores[0].memory.total_bytes < slow.cores[0].memory.total_bytes


@pytest.mark.parametrize("speed", [0, -1, 1e9])
def test_a_speed_out_of_range_is_refused(steady, speed):
    with pytest.raises(UsageError, match="is out of range"):
        scenario.play(scenario.load(steady), speed=speed)


def test_nothing_is_started_for_a_scenario_with_mistakes(home, tool):
    (home / "bad.yaml").write_text("description: d\ninstance: trn1.2xlarge\nduration: x\n")
    run = tool("neurontools", "scenario", "play", "./bad.yaml")
    assert run.returncode == 1
    assert run.stderr.startswith("error: ./bad.yaml:3: duration: expected a duration")
    assert launch.list_machines() == ()
    with pytest.raises(NoMachineError):
        launch.find("default")


def test_faults_of_the_machine_hit_synthetic_processes(steady, player, snapshot, wait_until):
    player(steady).wait_for("started", 4)
    with Client.connect() as client:
        client.inject("numerical", tag="steady-2", count=5)
        hang = client.inject("hang", core=1, count=1)

    def failures():
        return {process.tag: dict(process.status_counts) for process in snapshot().processes}

    wait_until(lambda: failures()["steady-2"].get(1003) == 5)

    def executions():
        (process,) = (process for process in snapshot().processes if process.tag == "steady-0")
        return [use.executions for use in process.cores]

    with Client.connect() as client:
        wait_until(lambda: client.faults() and client.faults()[0].held)
    began = executions()
    wait_until(lambda: executions()[0] > began[0] + 5)
    stopped = executions()
    wait_until(lambda: executions()[0] > stopped[0] + 20)
    assert executions()[1] == stopped[1]
    assert all(1003 not in failures()[tag] for tag in ("steady-0", "steady-1", "steady-3"))
    with Client.connect() as client:
        client.clear_faults(hang.id)
        assert client.faults() == ()
    wait_until(lambda: executions()[1] > stopped[1] + 20)
    for process in snapshot().processes:
        assert sum(process.latency_counts) == sum(count for _, count in process.status_counts)


def test_nothing_is_taken_back_even_after_a_late_tick(player):
    playing = player("ecc-storm", "--speed", "2")
    playing.wait_for("started", 32)
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    moved = 0
    with Client.connect() as client:
        for step, snapshot in zip(range(40), client.watch(0.05), strict=False):
            if step in {10, 25}:
                os.kill(playing.pid, signal.SIGSTOP if step == 10 else signal.SIGCONT)
            for process in snapshot.processes:
                for use in process.cores:
                    before = seen.get((process.pid, use.core), (0, 0, 0, 0))
                    now = (use.busy_ns, use.executions, use.flops, process.cpu_user_ns)
                    assert all(one <= other for one, other in zip(before, now, strict=True))
                    moved += now != before
                    seen[process.pid, use.core] = now
    assert moved > 200
