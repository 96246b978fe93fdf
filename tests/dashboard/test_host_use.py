"""What processes take of the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.base.procfs import read_start_ticks
from neurontools.dashboard.process_rows import host_uses, presence, presences
from neurontools.machine import host
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.snapshot import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.snapshot import ProcessState, Snapshot

    MonitoredMachine = Callable[..., Snapshot]
    Process = Callable[..., ProcessState]

SECOND_NS = 10**9


def test_this_process_is_present_with_its_parent_and_memory_and_only_by_its_own_start() -> None:
    ticks = read_start_ticks(os.getpid())
    found = presence(os.getpid(), ticks)
    assert found is not None
    assert found.parent_pid == os.getppid()
    assert found.resident_bytes > 1 << 20
    assert presence(os.getpid(), (ticks or 0) + 1) is None
    assert presence(2**22 + 1) is None


def test_live_processes_are_measured_and_others_tell_their_own(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    live = replace(process_at(os.getpid()), start_ticks=read_start_ticks(os.getpid()))
    made_up = replace(
        process_at(5000000, cores=(1,)),
        origin="synthetic",
        host_memory=MemoryUse(tensors=7),
        cpu_user_ns=SECOND_NS,
    )
    later = replace(made_up, cpu_user_ns=3 * SECOND_NS, cpu_system_ns=SECOND_NS)
    before, after = machine_at(1, live, made_up), machine_at(3, live, later)
    key = (live.pid, live.start_ticks)
    cpu = tuple(HostSample(8.0, CpuTimes(0, 0), ((key, CpuTimes(used, 0.0)),)) for used in (1.0, 2.0))
    uses = host_uses(before, after, cpu, presences(after))  # type: ignore[arg-type]
    assert uses[key].cpu_share == pytest.approx(0.5)
    assert uses[key].resident_bytes > 1 << 20
    assert uses[5000000, 1].cpu_share == pytest.approx(1.5)
    assert uses[5000000, 1].resident_bytes == 7
    assert key not in host_uses(None, after, None, {})


def test_recorded_cpu_time_is_a_share_of_the_instances_vcpus(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    first = replace(process_at(5000000), origin="synthetic")
    second = replace(first, cpu_user_ns=64 * SECOND_NS, cpu_system_ns=32 * SECOND_NS)
    before, after = machine_at(0, first), machine_at(1, second)
    share = host.recorded_share(before, after)
    assert (share.user, share.system) == (0.5, 0.25)
    assert host.recorded_share(before, after, (5000000, 1)) == share
    assert host.recorded_share(before, after, (1, 1)) == host.IDLE
    assert host.recorded_share(None, after) == host.recorded_share(after, before) == host.IDLE
    assert host.add_shares(share, share) == host.CpuShare(1.0, 0.0)
