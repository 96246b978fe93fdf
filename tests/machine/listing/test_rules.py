"""The documented rules of neuron-ls (AWS Neuron documentation, neuron-ls user guide), one at a time."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from neurontools.machine.listing import formats
from neurontools.machine.listing.flags import FlagError, parse
from neurontools.machine.listing.formats import core_range, cut
from neurontools.machine.listing.text import render, topology_lines


def lines(snapshot, *flags):
    return render(snapshot, list(flags), "2.32")[1].decode().splitlines()


def table(snapshot, *flags):
    return [line for line in lines(snapshot, *flags) if line[:1] in {"+", "|"}]


def test_separators_are_drawn_between_devices_only_where_one_has_two_rows(make, job):
    calm = table(make("inf2.48xlarge", (job(1, "a", (0,)),)))
    assert [line for line in calm if line.startswith("+")] == [calm[0]] * 3
    full = table(make("inf2.48xlarge", (job(1, "a", (0,)), job(2, "b", (1,)))))
    assert [line for line in full if line.startswith("+")] == [full[0]] * (3 + 11)


def test_a_second_process_has_a_row_with_every_other_cell_blank(make, job):
    rows = table(make("trn1.2xlarge", (job(2, "b", (1,)), job(1, "a", (0,)))))
    assert rows[4].split("|")[1:3] == [" 0      ", " 2      "]
    assert rows[5].replace("|", " ").split() == ["2", "b", "2.34.10"]


def test_columns_without_any_value_are_left_out(make, job):
    assert "CONNECTED" not in table(make("trn1.2xlarge"))[1]
    assert "COMMAND" not in table(make("trn1.2xlarge"))[1]
    unreadable = table(make("trn1.2xlarge", (job(1, "", (0,)),)))[1]
    assert "PID" in unreadable
    assert "RUNTIME" in unreadable
    assert "COMMAND" not in unreadable


def test_who_only_looks_on_is_listed_with_all_procs_on_every_device_as_na(make, job):
    snapshot = make("inf2.48xlarge", (job(4711, "neuron-monitor", (), "9.9"), job(1, "a", (0,))))
    assert not any("4711" in row for row in table(snapshot))
    shown = [row for row in table(snapshot, "--show-all-procs") if "4711" in row]
    assert len(shown) == 12
    assert all(row.endswith("| neuron-monitor | NA      |") for row in shown)
    everywhere = json.loads(render(snapshot, ["-aj"], "2.32")[1])
    assert [process["neuron_runtime_version"] for process in everywhere[0]["neuron_processes"]] == [
        "2.34.10",
        "NA",
    ]


@pytest.mark.parametrize(("flags", "width"), [([], 40), (["-w"], 80), (["--wide"], 80)])
def test_commands_are_cut_to_40_or_80_characters(make, job, flags, width):
    command = "".join(str(digit % 10) for digit in range(100))
    snapshot = make("trn1.2xlarge", (job(1, command, (0,)),))
    assert f"| {command[: width - 3]}... |" in table(snapshot, *flags)[4]
    rows = json.loads(render(snapshot, ["-j", *flags], "2.32")[1])[0]["neuron_processes"]
    assert rows == [{"pid": 1, "command": command[: width - 3] + "...", "neuron_runtime_version": "2.34.10"}]


def test_a_command_that_just_fits_is_not_cut():
    assert cut("x" * 40, 40) == "x" * 40
    assert cut("x" * 41, 40) == "x" * 37 + "..."


@pytest.mark.parametrize(
    ("cores", "text"), [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((4, 5, 6, 7), "4-7"), ((0, 2), "0, 2")]
)
def test_core_ids_are_a_range_or_a_list(cores, text):
    assert core_range(cores) == text


def test_logical_cores_follow_the_lnc(make):
    two, one = make("trn2.48xlarge", lnc=2), make("trn2.48xlarge", lnc=1)
    assert "logical-neuroncore-config: 2" in lines(two)
    assert "logical-neuroncore-config: 1" in lines(one)
    assert "| 1      | 4      | 4-7 " in table(two)[5]
    assert "| 1      | 8      | 8-15 " in table(one)[5]


@pytest.mark.parametrize(
    ("instance", "config"), [("trn1.2xlarge", None), ("trn2.48xlarge", 2), ("trn3.48xlarge", 2)]
)
def test_the_lnc_is_named_only_where_it_applies(make, instance, config):
    device = json.loads(render(make(instance), ["-j"], "2.32")[1])[0]
    assert device.get("logical_neuroncore_config") == config
    assert any(line.startswith("logical-neuroncore-config") for line in lines(make(instance))) == (
        config is not None
    )


def test_keys_are_in_the_order_of_the_real_tool(make, job):
    device = json.loads(render(make("trn2.48xlarge", (job(1, "a", (0,)),)), ["-j"], "2.32")[1])[0]
    assert list(device) == [
        "instance_type", "instance_id", "neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count",
        "logical_neuroncore_config", "memory_size", "neuroncore_ids", "neuron_processes",
    ]  # fmt: skip
    assert list(device["neuron_processes"][0]) == ["pid", "command", "neuron_runtime_version"]


def test_release_2_28_has_no_instance_keys_in_json_and_the_same_table(make):
    snapshot = make("trn2.48xlarge")
    old = json.loads(render(snapshot, ["-j"], "2.28")[1])
    new = json.loads(render(snapshot, ["-j"], "2.32")[1])
    assert [
        {**device, "instance_type": "trn2.48xlarge", "instance_id": snapshot.instance_id} for device in old
    ] == new
    assert "instance_type" not in old[0]
    assert render(snapshot, ["-t"], "2.28") == render(snapshot, ["-t"], "2.32")


def test_a_device_that_is_not_there_is_an_error(make):
    code, out, err = render(make("inf2.24xlarge"), ["--device=5,9"], "2.32")
    assert (code, out) == (1, b"")
    assert err.startswith(b"error: ")
    assert b"9" in err.splitlines()[0]


def test_another_release_is_refused(make):
    code, out, err = render(make("trn1.2xlarge"), [], "1.19")
    assert (code, out) == (2, b"")
    assert err == (
        b"error: cannot emulate release '1.19' of the tools\nhint: set NEURONTOOLS_EMULATE to 2.32 or 2.28\n"
    )


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--badflag", "unknown flag `badflag'"),
        ("-x", "unknown flag `x'"),
        ("-wx", "unknown flag `x'"),
        ("--jsn", "unknown flag `jsn'"),
        ("--wide=1", "bool flag `-w, --wide' cannot have an argument"),
        ("trn1", "unexpected argument `trn1'"),
        ("-", "unexpected argument `-'"),
        ("", "unexpected argument `'"),
    ],
)
def test_a_wrong_flag_is_reported_on_stdout_with_exit_code_1(make, word, text):
    assert render(make("trn1.2xlarge"), ["-w", word], "2.32") == (1, f"{text}\n".encode(), b"")
    with pytest.raises(FlagError):
        parse([word])


def test_short_flags_combine_and_json_is_alone_on_stdout(make):
    snapshot = make("trn1.32xlarge")
    assert render(snapshot, ["-tj"], "2.32") == render(snapshot, ["--json-output"], "2.32")
    assert render(snapshot, ["-wt"], "2.32") == render(snapshot, ["-t", "--wide", "--"], "2.32")


def test_a_single_device_has_no_drawing(make):
    assert render(make("trn1.2xlarge"), ["-t"], "2.32") == render(make("trn1.2xlarge"), [], "2.32")


@pytest.mark.parametrize(
    ("flags", "function", "texts"),
    [("-ja", "quoted", 2), ("-a", "printable", 2)],
)
def test_the_text_of_a_process_is_made_once_however_many_devices_list_it(
    make, job, monkeypatch, flags, function, texts
):
    jobs = tuple(job(pid, f"python watch.py --number {pid}") for pid in range(1000, 1200))
    snapshot = make("trn1.32xlarge", jobs)
    made = []
    original = getattr(formats, function)

    def counted(text):
        made.append(text)
        return original(text)

    monkeypatch.setattr(formats, function, counted)
    _, out, _ = render(snapshot, [flags], "2.32")
    assert out.count(b"--number 1100") == 16
    assert len([text for text in made if text == "NA" or text.startswith("python")]) == texts * len(jobs)


def test_a_ring_has_wrap_around_links_and_their_legend(make):
    drawing = topology_lines(make("inf2.48xlarge"))
    assert drawing[3].startswith("*––►[ 0 ]◄––►[ 1 ]◄––►")
    assert drawing[3].endswith("◄––►[11 ]◄––*")
    assert drawing[-1] == "        *––► = Wrap-around link"


def test_part_of_a_torus_lists_its_links(make):
    whole = make("trn2.48xlarge")
    part = replace(whole, devices=(replace(whole.devices[13], index=0),))
    assert topology_lines(part) == [
        "Neuron Device Topology",
        "",
        "",
        "  [ 0 ]◄––►12, 1, 9, 14",
        "",
        "Legend:",
        "",
        "        ◄––►N = Link to device N of the host",
    ]
