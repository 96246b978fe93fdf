"""What holds for any process on any machine: the table stays rectangular, the JSON says what is there."""

from __future__ import annotations

import csv
import io
import json
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.machine.listing.formats import cut, printable
from neurontools.machine.listing.text import render
from neurontools.machine.machine_config import DOCS, HOST

KEYS = (
    "instance_type", "instance_id", "neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count",
    "logical_neuroncore_config", "memory_size", "neuroncore_ids", "neuron_processes",
)  # fmt: skip
COMMANDS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=120),
    st.sampled_from(
        ["", "\x1b[31mred\x1b[0m", "a\nb\tc\0d", "訓練 " * 30, "e\u0301" * 60, "\udce9\u202e\u2028", '"\\<&>']
    ),
)
FLAGS = st.lists(st.sampled_from(["-w", "-a", "-t", "--wide", "--show-all-procs"]), max_size=3)


@st.composite
def machines(draw, make, job):
    """A machine of any type with processes of any content on any of its cores."""
    name = draw(st.sampled_from(instance_names()))
    instance = instance_type(name)
    lnc = draw(st.sampled_from(instance.device.lnc_choices))
    seen = st.none() | st.sets(st.integers(0, instance.device_count - 1), min_size=1).map(sorted).map(tuple)
    visible = draw(seen)
    last = len(visible or instance.pci_bdf) * instance.cores_per_device(lnc) - 1
    jobs = draw(
        st.lists(
            st.builds(
                job,
                pid=st.integers(1, 2**31),
                command=COMMANDS,
                cores=st.sets(st.integers(0, last), max_size=4).map(lambda cores: tuple(sorted(cores))),
                runtime_version=st.sampled_from(["2.34.10", "2.27.23", "x\n"]),
            ),
            max_size=5,
        )
    )
    return make(name, tuple(jobs), lnc=lnc, visible=visible, neighbours=draw(st.sampled_from([HOST, DOCS])))


def columns(line):
    """The columns of a line on a terminal, counted as a terminal does."""
    return sum(
        0
        if unicodedata.category(letter) in {"Mn", "Me"}
        else 2
        if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in line
    )


@settings(max_examples=60)
@given(data=st.data(), flags=FLAGS)
def test_the_table_is_rectangular(make, job, data, flags):
    snapshot = data.draw(machines(make, job))
    code, out, err = render(snapshot, flags, "2.32")
    lines = out.decode().split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("+"))
    table = [line for line in lines[first:] if line[:1] in {"+", "|"}]
    assert (code, err) == (0, b"")
    assert len({columns(line) for line in table}) == 1
    assert len({line for line in table if line.startswith("+")}) == 1
    assert all(unicodedata.category(letter)[0] != "C" for line in lines for letter in line)
    corners = [at for at, letter in enumerate(table[0]) if letter == "+"]
    for line in table:
        assert line.isascii() is False or all(line[at] in "+|" for at in corners)


@settings(max_examples=60)
@given(data=st.data(), wide=st.booleans())
def test_the_table_cuts_every_command_at_its_width(make, job, data, wide):
    snapshot = data.draw(machines(make, job))
    out = render(snapshot, ["--wide"] if wide else [], "2.32")[1].decode()
    for process in snapshot.processes:
        if process.uses_device and process.command:
            assert f"| {printable(cut(process.command, 80 if wide else 40))} " in out


@settings(max_examples=60)
@given(data=st.data())
def test_csv_has_one_line_for_each_process_of_a_device(make, job, data):
    snapshot = data.draw(machines(make, job))
    out = render(snapshot, ["--csv"], "2.32")[1].decode()
    assert all(unicodedata.category(letter)[0] != "C" for letter in out.replace("\n", ""))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == len(out.splitlines()) - 1
    shown = {printable(process.command) for process in snapshot.processes if process.uses_device}
    assert {row["command"] for row in rows} - {""} <= shown


@settings(max_examples=60)
@given(data=st.data())
def test_every_process_has_a_row_on_each_of_its_devices_and_nowhere_else(make, job, data):
    snapshot = data.draw(machines(make, job))
    devices = json.loads(render(snapshot, ["-j"], "2.32")[1])
    for device, state in zip(devices, snapshot.devices, strict=True):
        there = [
            process.pid
            for process in snapshot.processes
            for use in process.cores
            if use.core in state.core_ids
        ]
        listed = [process["pid"] for process in device["neuron_processes"]]
        assert set(listed) == set(there)
        assert listed == sorted(listed)


@settings(max_examples=60)
@given(data=st.data(), wide=st.booleans())
def test_json_parses_and_equals_the_values(make, job, data, wide):
    snapshot = data.draw(machines(make, job))
    out = render(snapshot, ["-jw" if wide else "-j"], "2.32")[1]
    assert out.startswith(b"[\n    {")
    assert out.endswith(b"\n]")
    assert all(unicodedata.category(letter)[0] != "C" for letter in out.decode().replace("\n", ""))
    by_pid = {}
    for process in snapshot.processes:
        by_pid.setdefault(process.pid, []).append(process)
    for device, state in zip(json.loads(out), snapshot.devices, strict=True):
        assert list(device) == [key for key in KEYS if snapshot.lnc_applies or key != KEYS[8]]
        assert device["instance_type"] == snapshot.instance_type
        assert device["instance_id"] == snapshot.instance_id
        assert device["neuron_device"] == state.index
        assert device["bdf"] == state.bdf
        assert device["connected_to"] == (None if state.connected_to is None else list(state.connected_to))
        assert device["nc_count"] == len(state.core_ids)
        assert device["neuroncore_ids"] == list(state.core_ids)
        assert device["memory_size"] == state.memory_bytes
        assert device.get("logical_neuroncore_config") == (snapshot.lnc if snapshot.lnc_applies else None)
        for row in device["neuron_processes"]:
            commands = [process.command for process in by_pid[row["pid"]]]
            width = 80 if wide else 40
            assert len(row["command"]) <= width
            assert any(
                row["command"] == (text if len(text) <= width else text[: width - 3] + "...")
                for text in commands
            )


@settings(max_examples=60)
@given(text=COMMANDS)
def test_json_lines_hold_one_key_each_whatever_a_command_contains(make, job, text):
    lines = render(make("trn1.2xlarge", (job(7, text, (0,)),)), ["-j"], "2.32")[1].decode().split("\n")
    keys = [line.split('"')[1] for line in lines if '":' in line]
    assert keys[-3:] == ["pid", "command", "neuron_runtime_version"]
    assert len(lines) == 24
