"""Filters, owners, formats and colours of neuron-ls: what is left, and what is said of nonsense."""

from __future__ import annotations

import json
import os
import pwd
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.base.filters import FilterError, looks_like_condition
from neurontools.machine.listing.flags import DEVICE_KEYS, PROCESS_KEYS, FlagError, parse, parse_filter
from neurontools.machine.listing.formats import paint, wants_colour
from neurontools.machine.listing.text import render

GIB = 2**30
SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def machine(make, job):
    """An inf2.24xlarge: a trainer on devices 0 and 1, a server on device 4, a monitor that looks on."""
    snapshot = make(
        "inf2.24xlarge",
        (
            job(100, "python train.py", (0, 1, 2)),
            job(200, "./serve", (8,), "2.27.23"),
            job(300, "neuron-monitor"),
        ),
    )
    trainer, server, monitor = snapshot.processes
    running = replace(trainer.cores[0], executing=True)
    trainer = replace(trainer, tag="Train-7", cores=(running, *trainer.cores[1:]))
    devices = list(snapshot.devices)
    devices[0] = replace(devices[0], memory_used_bytes=3 * GIB)
    devices[4] = replace(devices[4], memory_used_bytes=GIB)
    return replace(
        snapshot,
        devices=tuple(devices),
        processes=(trainer, replace(server, uid=7, origin="synthetic"), monitor),
    )


def listed(snapshot, *words):
    """The devices that are listed, each with the pids on it."""
    code, out, err = render(snapshot, [*words, "-j"], "2.32")
    assert (code, err) == (0, b"")
    return {
        device["neuron_device"]: [process["pid"] for process in device["neuron_processes"]]
        for device in json.loads(out)
    }


@pytest.mark.parametrize(
    ("expressions", "devices"),
    [
        (["state=busy"], [0, 1, 4]),
        (["state=idle"], [2, 3, 5]),
        (["state!=busy"], [2, 3, 5]),
        (["state=executing"], [0]),
        (["state=busy,idle"], [0, 1, 2, 3, 4, 5]),
        (["memory-used>1GiB"], [0]),
        (["memory-used>1GB"], [0, 4]),
        (["memory-used>=1GiB"], [0, 4]),
        (["memory-used = 1024MiB"], [4]),
        (["memory-free<31.5GiB"], [0, 4]),
        (["memory>=32GB"], [0, 1, 2, 3, 4, 5]),
        (["memory-used<=0"], [1, 2, 3, 5]),
        (["numa=0"], [2, 3, 4]),
        (["numa!=0,7"], [0, 1, 5]),
        (["device>=3", "device<5"], [3, 4]),
        (["device=0,5"], [0, 5]),
        (["bdf~:1f."], [1, 3]),
        (["bdf!~20:"], [2, 3, 4]),
        (["processes>0"], [0, 1, 4]),
        (["state=busy", "numa=0"], [4]),
    ],
)
def test_filters_of_devices_leave_the_devices_that_they_hold_for(machine, expressions, devices):
    words = [f"--filter={expression}" for expression in expressions]
    assert list(listed(machine, *words)) == devices
    assert listed(machine, "--filter", *expressions) == listed(machine, *words)


@pytest.mark.parametrize(
    ("expressions", "left"),
    [
        (["pid=100"], {0: [100], 1: [100]}),
        (["pid=100,200"], {0: [100], 1: [100], 4: [200]}),
        (["pid>100"], {4: [200]}),
        (["command~PYTHON"], {0: [100], 1: [100]}),
        (["command!~python"], {4: [200]}),
        (["command=./serve"], {4: [200]}),
        (["tag~train"], {0: [100], 1: [100]}),
        (["runtime=2.27.23"], {4: [200]}),
        (["origin=synthetic"], {4: [200]}),
        (["owner=7"], {4: [200]}),
        (["owner!=7"], {0: [100], 1: [100]}),
        (["tag~train", "device=1"], {1: [100]}),
        (["pid=1"], {}),
        (["command="], {}),
        (["command~python train"], {0: [100], 1: [100]}),
        (["command='python train.py'"], {0: [100], 1: [100]}),
        (['command="a, b",./serve'], {4: [200]}),
    ],
)
def test_filters_of_processes_leave_their_devices(machine, expressions, left):
    assert listed(machine, "--filter", *expressions) == left


def test_who_only_looks_on_counts_with_all_procs_alone(machine):
    assert listed(machine, "--filter=command~monitor") == {}
    assert listed(machine, "-a", "--filter=command~monitor") == {device: [300] for device in range(6)}


def test_an_owner_is_a_uid_a_name_or_oneself(machine):
    assert list(listed(machine, "--owner", "7")) == [4]
    assert list(listed(machine, f"--owner={pwd.getpwuid(0).pw_name}")) == []
    mine = replace(machine.processes[0], uid=os.getuid())
    assert listed(replace(machine, processes=(mine,)), "--owner=me") == {0: [100], 1: [100]}


def test_filters_devices_and_formats_combine(machine):
    lines = render(machine, ["--device=0-1", "--filter=state=executing", "--csv"], "2.32")[1].decode()
    assert [line.split(",")[2] for line in lines.splitlines()[1:]] == ["0"]
    assert render(machine, ["-j"], "2.32") == render(machine, ["--json"], "2.32")


def test_where_nothing_is_left_there_is_an_empty_table_list_or_head(machine):
    nothing = "--filter=pid=1"
    table = render(machine, [nothing], "2.32")[1].decode().splitlines()
    assert [line[0] for line in table[2:]] == ["+", "|", "|", "+", "+"]
    assert render(machine, [nothing, "-j"], "2.32") == (0, b"[]", b"")
    assert len(render(machine, [nothing, "--csv"], "2.32")[1].splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("", 0, "the filter is empty"),
        ("busy", 0, "unknown field 'busy'; fields: device, numa"),
        ("=1", 0, "expected the name of a field; fields: device"),
        ("stat=busy", 0, "unknown field 'stat'; did you mean state?"),
        ("state", 5, "expected an operator after state"),
        ("state=on", 6, "unknown state 'on'; choose from idle, busy, executing"),
        ("state>busy", 5, "state does not support '>'; operators of state: = !="),
        ("command>a", 7, "operators of command: = != ~ !~"),
        ("pid~1", 3, "operators of pid: = != < <= > >="),
        ("pid=", 4, "expected a value for pid"),
        ("pid=1,", 6, "expected a value for pid"),
        ("pid=x", 4, "invalid number 'x'"),
        ("pid=" + "9" * 5000, 4, "invalid number"),
        ("pid='1'2", 7, "expected a comma, a blank or the end"),
        ("memory-used>1XB", 12, "invalid size '1XB'"),
        ("memory-used>-1", 12, "invalid size '-1'"),
        ("memory-used>inf", 12, "invalid size 'inf'"),
        ("memory-used>1e99GB", 12, "'1e99GB'"),
        ("owner=no-such-user", 6, "unknown user 'no-such-user'"),
        ("command~'a", 8, "unclosed quote; add ' after the value"),
        ("command~a\nb", 9, "line break in a filter"),
    ],
)
def test_an_invalid_filter_says_where_and_why(make, text, position, why):
    with pytest.raises(FilterError, match=re.escape(why)) as caught:
        parse_filter(text)
    assert caught.value.position == position
    code, out, err = render(make("trn1.2xlarge"), ["--filter", text], "2.32")
    assert (code, err) == (1, b"")
    assert out.decode() == f"flag `--filter': {caught.value.message}\nhint: {caught.value.remedy}\n"


@given(
    key=st.sampled_from([*DEVICE_KEYS, *PROCESS_KEYS]),
    operator=st.sampled_from(["=", "!=", "~", "!~", ">", ">=", "<", "<="]),
    value=st.text(max_size=8),
)
def test_a_filter_is_understood_or_refused_and_its_text_means_the_same(key, operator, value):
    text = f"{key}{operator}{value}"
    assert looks_like_condition(text)
    try:
        found = parse_filter(text)
    except FilterError:
        return
    again = parse_filter(str(found))
    assert (again.field, again.operator, again.values) == (found.field, found.operator, found.values)


@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from(["-w", "--filter", "--", "--watch", "--device=1", "state=busy"])
    )
)
def test_a_command_line_is_understood_or_refused_in_words(words):
    try:
        flags = parse(words)
    except FlagError:
        return
    again = parse(flags.words())
    assert again.words() == flags.words()


@settings(max_examples=30)
@given(words=st.lists(st.sampled_from(["-w", "-a", "-t", "--device=0-2", "--filter=state=busy"]), max_size=4))
def test_colours_change_nothing_but_colour(make, busy_jobs, words):
    snapshot = make("trn2.48xlarge", busy_jobs("trn2.48xlarge"))
    plain = render(snapshot, words, "2.32")[1].decode()
    coloured = render(snapshot, [*words, "--color=always"], "2.32")[1].decode()
    assert SGR.sub("", coloured) == plain
    assert "\x1b" in coloured
    assert render(snapshot, [*words, "--color=never"], "2.32")[1].decode() == plain
    assert render(snapshot, [*words, "--color"], "2.32")[1].decode() == plain
    assert b"\x1b" not in render(snapshot, [*words, "--color=always", "-j"], "2.32")[1]


def test_devices_that_processes_hold_are_coloured_in_table_and_drawing(make, job):
    text = render(make("inf1.6xlarge", (job(1, "a", (4,)),)), ["-t", "--color=always"], "2.32")[1].decode()
    assert "| \x1b[32m1\x1b[0m      |" in text
    assert "[ 0 ]◄––►\x1b[32m[ 1 ]\x1b[0m◄––►[ 2 ]" in text


def test_blanks_are_not_painted():
    assert paint("  ab  ", "\x1b[1m") == "  \x1b[1mab\x1b[0m  "
    assert paint("   ", "\x1b[1m") == "   "
    assert paint("ab", "") == "ab"


@pytest.mark.parametrize(
    ("choice", "environment", "terminal", "expected"),
    [
        (None, {"FORCE_COLOR": "1"}, True, False),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
    ],
)
def test_there_are_colours_only_where_they_are_wanted(monkeypatch, choice, environment, terminal, expected):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(choice, terminal=terminal) is expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--device"], "expected argument for flag `--device'"),
        (["--device", "-w"], "expected argument for flag `--device', but got option `-w'"),
        (["--device=1,"], "flag `--device' expects devices such as 0,2 or 0-3, not `1,'"),
        (["--color=red"], "Invalid value `red' for option `--color'. Allowed values are: auto, always or never"),
        (["--format=xml"], "unknown flag `format'"),
        (["--color", "red"], "Invalid value `red' for option `--color'. Allowed values are: auto, always or never"),
        (["--source="], "expected argument for flag `--source'"),
        (["--verbose=1"], "bool flag `--verbose' cannot have an argument"),
        (["-w=1"], "bool flag `-w, --wide' cannot have an argument"),
        (["-wa=1"], "unknown flag `='"),
        (["--wid"], "unknown flag `wid'"),
        (["--", "-w"], "unexpected argument `-w'"),
        (["--filter", "state=busy", "more"], "unexpected argument `more'"),
        (["--owner", "no-such-user"], "flag `--owner': invalid filter at character 7: unknown user 'no-such-user'\n  owner=no-such-user\n        ^\nhint: use a user name, a uid or me"),
    ],
)  # fmt: skip
def test_wrong_values_are_reported_as_by_the_flag_parser(make, words, text):
    assert render(make("trn1.2xlarge"), words, "2.32") == (1, f"{text}\n".encode(), b"")


def test_every_word_after_a_filter_that_looks_like_one_is_one(make):
    out = render(make("trn1.2xlarge"), ["--filter", "state=busy", "stat=idle"], "2.32")[1].decode()
    assert out.startswith("flag `--filter': invalid filter at character 1: unknown field 'stat'\n")


def test_flags_given_twice_mean_the_same_or_the_last_one_wins(make):
    snapshot = make("inf2.24xlarge")
    assert render(snapshot, ["-w", "-ww", "--wide"], "2.32") == render(snapshot, ["-w"], "2.32")
    assert render(snapshot, ["--csv", "--json"], "2.32") == render(snapshot, ["-j"], "2.32")
    assert render(snapshot, ["--device=1", "--device=3-4"], "2.32") == render(
        snapshot, ["--device=1,3,4"], "2.32"
    )
