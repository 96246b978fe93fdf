"""Synthetic processes as the daemon sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from neurontools.errors import DaemonError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.daemon.rpc import check_rights
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.pages.page import PageReader, PageWriter
from neurontools.machine.pages.writer import CoreCounters
from neurontools.machine.processes import Peer
from neurontools.machine.protocol import (
    MAX_DESCRIPTORS,
    SYNTHETIC_PIDS_ABOVE,
    CoresBusyError,
    OutOfDeviceMemoryError,
    RefusedError,
)
from neurontools.machine.requests import Reservation, SyntheticSpec
from neurontools.scenario.synthetic_process import (
    SyntheticPlace,
    register_synthetic,
    reserve_synthetic,
    unregister_synthetic,
)

PLAYER = """
import sys
from neurontools.machine.client import Client
from neurontools.scenario.synthetic_process import (register_synthetic, reserve_synthetic)
from neurontools.machine.requests import SyntheticSpec, Reservation
client = Client.connect()
places = register_synthetic(client, [SyntheticSpec(tag=f"t{core}", cores=(core,)) for core in range(3)])
reserve_synthetic(client, [Reservation(place.pid, place.cores[0], 1 << 30) for place in places])
print(*[place.pid for place in places], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def client(home):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as connected:
        yield connected


@pytest.fixture
def other(client):
    """Another player, with three processes on cores 0 to 2."""
    process = subprocess.Popen([sys.executable, "-c", PLAYER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.pids = [int(word) for word in process.stdout.readline().split()]
    yield process
    process.kill()
    process.communicate()


def close(places):
    for place in places:
        if isinstance(place, SyntheticPlace):
            os.close(place.page_fd)


def test_many_processes_get_pids_of_their_own(client):
    count = MAX_DESCRIPTORS + 50
    places = register_synthetic(
        client, [SyntheticSpec(tag=str(number), uses_device=False) for number in range(count)]
    )
    try:
        assert len({place.pid for place in places}) == count
        assert min(place.pid for place in places) > SYNTHETIC_PIDS_ABOVE
        for place in places:
            identity = PageReader(place.page_fd).identity
            assert (identity.pid, identity.start_ticks) == (place.pid, place.start_ticks)
        assert {process.origin for process in client.snapshot().processes} == {"synthetic"}
    finally:
        close(places)
    unregister_synthetic(client, [place.pid for place in places])
    assert client.snapshot().processes == ()


def test_each_process_has_its_own_answer(client, other):
    wishes = [
        SyntheticSpec(cores=(1,)),
        SyntheticSpec(cores=(9,), uid=1234),
        SyntheticSpec(cores=(99,)),
    ]
    busy, place, wrong = places = register_synthetic(client, wishes)
    close(places)
    assert isinstance(busy, CoresBusyError)
    assert busy.owners == (other.pids[1],)
    assert place.cores == (9,)
    assert isinstance(wrong, DaemonError)
    assert (wrong.message, wrong.remedy) == ("no core 99", "this machine has cores 0-31")
    assert [process.uid for process in client.snapshot().processes if process.pid == place.pid] == [1234]


def test_memory_is_reserved_to_a_size(client, other):
    (place,) = register_synthetic(client, [SyntheticSpec(cores=(8,))])
    close([place])
    for gib in (4, 20, 1, 1, 0):
        assert reserve_synthetic(client, [Reservation(place.pid, 8, gib << 30)]) == [None]
        assert client.snapshot().devices[4].memory_used_bytes == gib << 30
    full, strange, foreign = reserve_synthetic(
        client,
        [
            Reservation(place.pid, 8, 33 << 30),
            Reservation(place.pid, 9, 1),
            Reservation(other.pids[0], 0, 5),
        ],
    )
    assert isinstance(full, OutOfDeviceMemoryError)
    assert "does not hold core 9" in strange.message
    assert "is not a synthetic process of this player" in foreign.message


def test_a_player_ends_only_its_own(client, other):
    unregister_synthetic(client, other.pids)
    assert [process.pid for process in client.snapshot().processes] == other.pids


def test_a_dead_players_processes_are_gone(client, other, wait_until):
    other.send_signal(signal.SIGKILL)
    wait_until(lambda: client.snapshot().processes == ())
    assert client.snapshot().devices[0].memory_used_bytes == 0


def test_a_new_daemon_adopts_them_while_their_player_lives(client, other, kill_daemon, wait_until):
    before = client.snapshot()
    kill_daemon()
    launch.start(StartOptions("default", "trn1.32xlarge"))
    after = client.snapshot()
    assert after.processes == before.processes
    assert after.devices[1].memory_used_bytes == 1 << 30
    places = register_synthetic(client, [SyntheticSpec(cores=(20,))])
    close(places)
    assert places[0].pid > max(other.pids)
    other.send_signal(signal.SIGKILL)
    wait_until(lambda: [process.pid for process in client.snapshot().processes] == [places[0].pid])


def test_a_new_daemon_drops_them_when_their_player_is_gone(client, other, kill_daemon):
    kill_daemon()
    other.kill()
    other.wait()
    launch.start(StartOptions("default", "trn1.32xlarge"))
    assert client.snapshot().processes == ()


def test_a_repeated_call_leaves_no_second_set(client):
    (kept,) = register_synthetic(client, [SyntheticSpec(cores=(0,))])
    (lost,) = register_synthetic(client, [SyntheticSpec(cores=(1,))], [kept.pid])
    close([kept, lost])
    # What a client sends that never heard of the answer.
    client.call("register_synthetic", processes=[{"cores": [1]}], known=[kept.pid])
    cores = {process.cores[0].core: process.pid for process in client.snapshot().processes}
    assert cores[0] == kept.pid
    assert cores[1] > lost.pid


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("register_synthetic", {}),
        ("register_synthetic", {"processes": {}}),
        ("register_synthetic", {"processes": [3]}),
        ("register_synthetic", {"processes": [{"colour": "red"}]}),
        ("register_synthetic", {"processes": [{}] * (MAX_DESCRIPTORS + 1)}),
        ("register_synthetic", {"processes": [{"cores": "all"}]}),
        ("register_synthetic", {"processes": [{"uid": -1}]}),
        ("reserve_synthetic", {"changes": [{"pid": 1}]}),
        ("reserve_synthetic", {"changes": [{"pid": 1, "core": 0, "nbytes": -1}]}),
        ("unregister_synthetic", {"pids": ["all"]}),
    ],
)
def test_invalid_input_is_refused_and_registers_nothing(client, method, params):
    with pytest.raises(DaemonError):
        client.call(method, **params)
    assert client.snapshot().processes == ()


def test_a_core_is_written_in_one_go(client):
    (place,) = register_synthetic(client, [SyntheticSpec(cores=(4, 5))])
    writer, reader = PageWriter(place.page_fd), PageReader(place.page_fd)
    latency = (0,) * 10 + (7,) + (0,) * 53
    counters = CoreCounters(1 << 62, -1, 500, 7, 9000, 3, ((5, 2), (1004, 1)), latency)
    writer.write_core(1, counters)
    value = reader.read(1000)
    assert value is not None
    use = value.cores[1]
    assert (use.busy_ns, use.executions, use.flops, use.gpsimd_ns) == (500, 7, 9000, 3)
    assert use.executing
    assert use.failures == ((5, 2), (1004, 1))
    assert value.status_counts == ((0, 4), (5, 2), (1004, 1))
    assert value.latency_counts == latency
    assert value.cores[0].executions == 0
    writer.begin(1)
    writer.end(1, 0, 100)
    again = reader.read(2000)
    assert again is not None
    assert (again.cores[1].executions, again.cores[1].busy_ns) == (8, 600)
    writer.close()
    close([place])


def test_a_write_never_takes_back_the_busy_time_that_was_shown(client):
    (place,) = register_synthetic(client, [SyntheticSpec(cores=(4,))])
    writer, reader = PageWriter(place.page_fd), PageReader(place.page_fd)

    def counters(since_ns: int, busy_ns: int) -> CoreCounters:
        return CoreCounters(since_ns, -1, busy_ns, 0, 0, 0, (), (0,) * 64)

    begun_ns = time.monotonic_ns()
    writer.write_core(0, counters(begun_ns - 10**9, 500))
    shown = reader.read(time.monotonic_ns())
    writer.write_core(0, counters(begun_ns, 600))  # computed when the tick began, written later
    after = reader.read(time.monotonic_ns())
    writer.write_core(0, counters(0, 700))
    idle = reader.read(time.monotonic_ns())
    assert shown is not None
    assert after is not None
    assert idle is not None
    assert 10**9 < shown.cores[0].busy_ns <= after.cores[0].busy_ns <= idle.cores[0].busy_ns
    writer.write_core(0, counters(0, idle.cores[0].busy_ns + 5))
    later = reader.read(time.monotonic_ns())
    assert later is not None
    assert later.cores[0].busy_ns == idle.cores[0].busy_ns + 5
    writer.close()
    close([place])


@pytest.mark.parametrize("method", ["register_synthetic", "unregister_synthetic", "reserve_synthetic"])
def test_only_the_owner_and_root_may_play(method):
    check_rights(Peer(1, os.getuid()), method, "ci")
    check_rights(Peer(1, 0), method, "ci")
    with pytest.raises(RefusedError, match="may not run scenarios on machine 'ci'"):
        check_rights(Peer(1, os.getuid() + 1), method, "ci")
