"""CPU use of the host and of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.procfs import read_cpu_ticks
from neurontools.machine import host
from neurontools.machine.host import CpuTimes, HostSample

seconds = st.floats(0, 1e6)
times = st.builds(CpuTimes, seconds, seconds)
samples = st.builds(
    HostSample,
    seconds,
    times,
    st.lists(st.tuples(st.tuples(st.integers(1, 3), st.just(1)), times)).map(tuple),
)


@given(samples, samples)
def test_shares_never_leave_the_range_from_0_to_1(before: HostSample, after: HostSample) -> None:
    for share in (host.host_share(before, after), host.process_share(before, after)):
        assert 0 <= share.user <= 1
        assert 0 <= share.system <= 1
        assert share.user + share.system <= 1 + 1e-9


def test_shares_are_of_all_cpu_time() -> None:
    before = HostSample(100.0, CpuTimes(10, 5), (((1, 1), CpuTimes(3, 1)), ((2, 9), CpuTimes(0, 0))))
    after = HostSample(108.0, CpuTimes(12, 6), (((1, 1), CpuTimes(4, 1)), ((2, 9), CpuTimes(1, 2))))
    assert host.host_share(before, after) == host.CpuShare(0.25, 0.125)
    assert host.process_share(before, after) == host.CpuShare(0.25, 0.25)
    assert host.process_share(before, after, (1, 1)) == host.CpuShare(0.125, 0.0)
    assert host.process_share(before, after, (7, 7)) == host.IDLE
    assert host.host_share(None, after) == host.process_share(None, after) == host.IDLE


def test_a_sample_finds_this_process_only_by_its_own_start_time() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    pid, start_ticks = os.getpid(), int(fields[19])
    found = host.sample([(pid, start_ticks), (pid, start_ticks + 1), (2**22 + 5, 1)])
    assert [key for key, _ in found.processes] == [(pid, start_ticks)]
    used = found.processes[0][1]
    assert used.user_s + used.system_s == pytest.approx(sum(os.times()[:2]), abs=1.0)
    assert found.capacity_s > found.host.user_s + found.host.system_s


def test_time_in_interrupts_is_system_time_and_time_waiting_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    second = os.sysconf("SC_CLK_TCK")
    ticks = {
        "user": 8,
        "nice": 4,
        "system": 2,
        "idle": 80,
        "iowait": 3,
        "irq": 1,
        "softirq": 0.5,
        "steal": 1.5,
    }
    monkeypatch.setattr(host, "read_cpu_ticks", lambda: [int(one * second) for one in ticks.values()])
    assert host.sample() == HostSample(100.0, CpuTimes(12.0, 3.5), ())


def test_a_host_without_proc_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read_cpu_ticks", list)
    assert host.sample() == HostSample(0.0, CpuTimes(0.0, 0.0), ())


def test_ticks_are_those_of_the_first_line_of_proc_stat() -> None:
    before = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    after = read_cpu_ticks()
    assert len(after) == len(before) == 8
    assert all(later >= earlier for earlier, later in zip(before[:4], after[:4], strict=True))
