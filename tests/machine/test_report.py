"""Snapshots: the value and its JSON text agree, and only what changed is read again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.machine.codec import convert
from neurontools.machine.daemon import telemetry as telemetry_module
from neurontools.machine.daemon.telemetry import SnapshotBuilder, Telemetry
from neurontools.machine.devices import Layout
from neurontools.machine.events import Joined, Process, Register
from neurontools.machine.instances import catalogue
from neurontools.machine.journal import Definition
from neurontools.machine.machine_names import core_ranges, instance_id
from neurontools.machine.pages.page import PageIdentity, PageWriter, create_page
from neurontools.machine.processes import ProcessKey
from neurontools.machine.requests import ProcessSpec
from neurontools.machine.snapshot import (
    CoreUse,
    MemoryCategory,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
)
from neurontools.machine.state import MachineState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = (1_000, 5.0)


class Made:
    """A machine with processes that have pages, without a daemon."""

    def __init__(self, directory: Path, instance_type: str = "trn1.32xlarge", lnc: int = 1) -> None:
        self.instance = catalogue.instance_type(instance_type)
        per_device = self.instance.cores_per_device(lnc)
        self.machine = MachineState(
            Layout(self.instance.device_count, per_device, self.instance.device.memory_bytes)
        )
        self.report = SnapshotBuilder(Definition("m", self.instance.name, lnc, 1.0), self.instance)
        self.telemetry: list[Telemetry] = []
        self.fds: list[int] = []
        self._directory = directory

    def add(self, cores: tuple[int, ...]) -> Process:
        key = ProcessKey(1000 + len(self.fds), 7)
        event = Register(
            key,
            0,
            ProcessSpec(
                "tag", "python \N{SNOWMAN}\x00\udc80", bool(cores), cores or None, runtime_version="2.0"
            ),
        )
        (effect,) = self.machine.handle(event, 3)
        assert isinstance(effect, Joined)
        identity = PageIdentity("m", key.pid, 7, "boot", 0, "tag", "python", "2.0", 3)
        fd = create_page(str(self._directory / str(key.pid)), identity, cores)
        self.fds.append(fd)
        self.telemetry.append(Telemetry(effect.process, os.dup(fd)))
        return effect.process

    def close(self) -> None:
        for telemetry in self.telemetry:
            telemetry.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def made(home: Path) -> Iterator[Made]:
    value = Made(home)
    yield value
    value.close()


def test_text_and_value_are_the_same_snapshot(made: Made) -> None:
    made.add((0, 1))
    made.add(())
    writer = PageWriter(made.fds[0])
    model = ModelState(10001, "graph", "u-u", 1, running=False, memory=made.telemetry[0].state.host_memory)
    writer.begin(0, writer.add_model(model))
    writer.end(0, 0, 12_345, 9, 2)
    writer.set_host_memory(MemoryCategory.APPLICATION_MEMORY, 77)
    value = made.report.snapshot(made.machine, made.telemetry, *NOW)
    text = made.report.encoded(made.machine, made.telemetry, *NOW)
    assert json.loads(text) == json.loads(json.dumps(value.to_json()))
    assert convert(json.loads(text), Snapshot) == value
    assert [model.name for model in value.processes[0].models] == ["graph"]
    assert value.processes[0].host_memory.application_memory == 77
    writer.close()


@pytest.mark.parametrize(
    ("name", "lnc"), [("trn1.2xlarge", 1), ("inf2.48xlarge", 1), ("trn2.48xlarge", 2), ("inf1.xlarge", 1)]
)
def test_every_core_of_an_instance_belongs_to_one_device(name: str, lnc: int, home: Path) -> None:
    made = Made(home, name, lnc)
    value = made.report.snapshot(made.machine, (), *NOW)
    cores = [core for device in value.devices for core in device.core_ids]
    assert cores == list(range(made.instance.core_count(lnc)))
    assert (value.instance_type, value.lnc, value.lnc_applies) == (name, lnc, made.instance.lnc_applies)
    assert value.neuroncore_version == made.instance.device.core.monitor_version(lnc)
    assert {device.memory_bytes for device in value.devices} == {made.instance.device.memory_bytes}


def test_a_page_that_did_not_change_keeps_its_state_and_text(made: Made) -> None:
    for core in range(4):
        made.add((core,))
    before = made.report.snapshot(made.machine, made.telemetry, *NOW)
    texts = [telemetry.encoded for telemetry in made.telemetry]
    writer = PageWriter(made.fds[2])
    writer.begin(0, -1)
    writer.end(0, 0, 5, 5, 5)
    made.report.encoded(made.machine, made.telemetry, *NOW)
    after = made.report.snapshot(made.machine, made.telemetry, *NOW)
    same = [new is old for new, old in zip(after.processes, before.processes, strict=True)]
    assert same == [True, True, False, True]
    assert [telemetry.encoded is text for telemetry, text in zip(made.telemetry, texts, strict=True)] == same
    assert after.devices is before.devices
    writer.close()


def test_text_is_made_only_when_asked_for(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.add((0,))
    asked: list[object] = []
    encode = telemetry_module.encode
    monkeypatch.setattr(telemetry_module, "encode", lambda value: (asked.append(value), encode(value))[1])
    made.report.snapshot(made.machine, made.telemetry, *NOW)
    assert asked == []
    for _ in range(2):
        made.report.encoded(made.machine, made.telemetry, *NOW)
    assert [value for value in asked if isinstance(value, ProcessState)] == [made.telemetry[0].state]


def test_an_execution_under_way_counts_up_to_the_snapshot(made: Made) -> None:
    made.add((0, 1))
    made.add((2,))
    writer = PageWriter(made.fds[0])
    model = ModelState(10001, "graph", "u-u", 1, running=False, memory=MemoryUse(tensors=3))
    since_ns = writer.begin(1, writer.add_model(model))
    shown = []
    for later_ns in (100, 250, 200):
        moment = (since_ns + later_ns, 5.0)
        value = made.report.snapshot(made.machine, made.telemetry, *moment)
        text = made.report.encoded(made.machine, made.telemetry, *moment)
        assert convert(json.loads(text), Snapshot).processes == value.processes
        assert [state.running for state in value.processes[0].models] == [True]
        shown.append([use.busy_ns for process in value.processes for use in process.cores])
    assert shown == [[0, 100, 0], [0, 250, 0], [0, 200, 0]]
    writer.end(1, 0, 400, 1, 1)
    (process, _) = made.report.snapshot(made.machine, made.telemetry, *NOW).processes
    assert [(use.busy_ns, use.executing) for use in process.cores] == [(0, False), (400, False)]
    assert [state.running for state in process.models] == [False]
    writer.close()


def test_values_of_a_page_are_frozen_and_equal_to_constructed_ones(made: Made) -> None:
    made.add((0,))
    (process,) = made.report.snapshot(made.machine, made.telemetry, *NOW).processes
    assert process == replace(process)
    assert type(process) is ProcessState
    assert type(process.cores[0]) is CoreUse
    assert hash(process) == hash(replace(process))
    for value, name in ((process, "pid"), (process.cores[0], "core")):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, 1)


def test_a_page_that_reads_again_is_no_longer_stale(made: Made) -> None:
    made.add((0,))
    writer = PageWriter(made.fds[0])
    writer.begin(0, -1)
    writer.end(0, 0, 5, 5, 5)
    states = []
    size = os.fstat(made.fds[0]).st_size
    content = os.pread(made.fds[0], size, 0)
    for content_now in (content, b"", content):
        os.ftruncate(made.fds[0], 0)
        os.pwrite(made.fds[0], content_now, 0)
        states += made.report.snapshot(made.machine, made.telemetry, *NOW).processes
    assert [state.stale for state in states] == [False, True, False]
    assert {state.cores[0].executions for state in states} == {1}
    writer.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=400), st.integers(0, 8192), st.none() | st.integers(0, 5000))
def test_no_page_content_harms_a_snapshot(home: Path, data: bytes, offset: int, length: int | None) -> None:
    (home / "pages").mkdir(exist_ok=True)
    made = Made(home / "pages")
    process = made.add((3,))
    os.pwrite(made.fds[0], data, offset)
    if length is not None:
        os.ftruncate(made.fds[0], length)
    again = Telemetry(process, os.dup(made.fds[0]))
    for telemetry in (*made.telemetry, again):
        (shown,) = made.report.snapshot(made.machine, [telemetry], *NOW).processes
        assert (shown.pid, [use.core for use in shown.cores]) == (1000, [3])
        json.loads(made.report.encoded(made.machine, [telemetry], *NOW))
    again.close()
    made.close()
    (home / "pages" / "1000").unlink()


def test_the_instance_id_is_made_of_machine_and_user() -> None:
    assert instance_id("default", 0) == instance_id("default", 0)
    assert len({instance_id(name, uid) for name in ("default", "ci") for uid in (0, 1)}) == 4
    assert len(instance_id("default", 0)) == len("i-0dcf246b9a7d5f066")
    assert instance_id("default", 0).startswith("i-0")


@pytest.mark.parametrize(
    ("cores", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((7, 0, 1, 3), "0-1,3,7")]
)
def test_core_ids_in_short(cores: tuple[int, ...], text: str) -> None:
    assert core_ranges(cores) == text
