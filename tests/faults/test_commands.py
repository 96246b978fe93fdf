"""neurontools fault and neurond logs --kernel, as a person uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.faults.kinds import FaultKind
from tests.machine.conftest import wait_readable

if TYPE_CHECKING:
    from neurontools.machine.client import Client
    from tests.conftest import Tool


def test_a_session(client: Client, tool: Tool) -> None:
    def fault(*words: str) -> str:
        done = tool("neurontools", "fault", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    ecc = ("ecc", "--type", "mem-uncorrected", "--device", "3", "--after", "1h", "--count", "2")
    assert fault("inject", *ecc) == "fault 1: ecc mem-uncorrected on device 3, armed in 1h, 2 errors\n"
    assert (
        fault("inject", "hang", "--core", "5", "--count", "1")
        == "fault 2: hang on core 5, armed, 1 execution\n"
    )
    assert (
        fault("inject", "slow-core", "--core", "2", "--factor", "3")
        == "fault 3: slow-core 3x on core 2, armed, until cleared\n"
    )
    assert (
        fault("inject", "ecc", "--device", "1")
        == "fault 4: ecc mem-uncorrected on device 1, fired, the device needs a reset\n"
    )
    assert (
        fault("inject", "ecc", "--device", "0", "--type", "sram-corrected", "--amount", "7")
        == "fault 5: ecc sram-corrected on device 0, fired\n"
    )
    assert (
        fault("inject", "link-down", "--device", "0", "--to", "4")
        == "fault 6: link-down on link 0-4, armed, until cleared\n"
    )
    assert fault("list").splitlines() == [
        "ID  KIND                 TARGET    STATE    HITS  LEFT",
        "1   ecc mem-uncorrected  device 3  waiting  0     2 errors",
        "2   hang                 core 5    armed    0     1 execution",
        "3   slow-core 3x         core 2    armed    0     until cleared",
        "4   ecc mem-uncorrected  device 1  broken   1     -",
        "6   link-down            link 0-4  armed    0     until cleared",
    ]
    rows = json.loads(fault("list", "--json"))
    assert [(row["id"], row["state"], row["left"]) for row in rows] == [
        (1, "waiting", 2),
        (2, "armed", 1),
        (3, "armed", None),
        (4, "broken", 0),
        (6, "armed", None),
    ]
    assert rows[3]["broken_cores"] == [2, 3]
    assert fault("reset", "--device", "1") == "device 1 was reset\n"
    assert fault("clear", "2", "6") == "cleared: 2, 6\n"
    assert json.loads(fault("clear", "--all", "--json")) == {"cleared": [1, 3]}
    assert fault("clear", "--all") == "cleared: nothing, there were no faults\n"
    assert fault("list") == ""
    assert json.loads(fault("list", "--json")) == []


def test_the_kinds_are_listed(tool: Tool) -> None:
    lines = tool("neurontools", "fault", "kinds").stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(FaultKind) + 1]] == list(FaultKind)
    assert max(map(len, lines)) <= 80
    rows = json.loads(tool("neurontools", "fault", "kinds", "--json").stdout)
    assert [row["kind"] for row in rows] == list(FaultKind)


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (["inject", "hnag"], 2, "unknown fault kind 'hnag'", "did you mean 'hang'?"),
        (
            ["inject", "foo"],
            2,
            "unknown fault kind 'foo'",
            "known: ecc, hang, ",
        ),
        (
            ["inject", "ecc", "--type", "mem-corected"],
            2,
            "unknown type of memory errors 'mem-corected'",
            None,
        ),
        (["inject", "hang", "--core", "-1"], 2, "invalid --core '-1': expected a whole number", None),
        (["inject", "hang", "--core", "five"], 2, "invalid --core 'five': expected a whole number", None),
        (["inject", "hang", "--after=-3s"], 2, "invalid duration '-3s'", "use for example"),
        (["inject", "hang", "--factor", "3"], 2, "--factor is for slow-core only, not for hang", None),
        (["inject", "slow-core", "--factor", "x"], 2, "invalid --factor 'x': expected a number", None),
        (["inject", "hang", "--every", "3s"], 2, "--every is for ecc only, not for hang", None),
        (["clear"], 2, "give fault ids or --all", None),
        (["clear", "1", "--all"], 2, "give fault ids or --all", None),
        (["inject", "hang", "--core", "32"], 4, "no core 32", "this machine has cores 0-31"),
        (
            ["inject", "hang", "--core", "3", "--device", "4"],
            4,
            "core 3 is on device 1, not on device 4",
            None,
        ),
        (
            ["inject", "link-down", "--device", "0", "--to", "9"],
            4,
            "device 0 has no link to device 9",
            "its neighbours: 12, 3, 4, 1",
        ),
        (["inject", "slow-core", "--factor", "nan"], 2, "invalid --factor 'nan': expected a number", None),
        (["inject", "slow-core", "--factor", "0.1"], 4, "factor 0.1 out of range", None),
        (["clear", "7"], 4, "no fault 7", "the faults of this machine: none"),
        (["reset", "--device", "16"], 4, "no device 16", "this machine has devices 0-15"),
        (["list", "--machine", "other"], 3, "no machine 'other' is running", None),
    ],
)
def test_invalid_input_is_refused_in_one_line(
    client: Client, tool: Tool, words: list[str], code: int, error: str, hint: str | None
) -> None:
    done = tool("neurontools", "fault", *words)
    assert (done.returncode, done.stdout) == (code, "")
    first, *others = done.stderr.splitlines()
    assert first.startswith(f"error: {error}")
    assert len(others) <= 1
    assert hint is None or others[0].startswith(f"hint: {hint}")


@pytest.mark.parametrize(
    ("target", "warning"),
    [
        (["--tag", "rank5"], "no process has the tag 'rank5' now; did you mean 'llama-rank5'?"),
        (["--tag", "llama-rank4"], "no process has the tag 'llama-rank4' now; did you mean 'llama-rank5'?"),
        (["--tag", "bert"], "no process has the tag 'bert' now"),
        (["--pid", "1"], "no process with the pid 1 uses the machine now"),
        (["--tag", "llama-rank5"], ""),
        (["--core", "3"], ""),
    ],
)
def test_a_fault_for_nobody_says_so(client: Client, tool: Tool, target: list[str], warning: str) -> None:
    client.register(tag="llama-rank5")
    done = tool("neurontools", "fault", "inject", "timeout", *target)
    assert done.returncode == 0
    assert done.stderr == (f"warning: {warning}\n" if warning else "")


def test_the_kernel_log_holds_what_problem_detectors_look_for(client: Client, tool: Tool) -> None:
    empty = tool("neurond", "logs", "--kernel")
    assert (empty.returncode, empty.stdout) == (0, "")
    client.inject("ecc", device=3)
    client.inject("ecc", device=2, ecc="sram-uncorrected")
    client.inject("hardware", core=0)
    client.inject("dma-abort", core=2)
    client.take_fault(0)
    client.take_fault(2)
    lines = tool("neurond", "logs", "--kernel").stdout.splitlines()
    words = ["HBM_UNCORRECTABLE", "SRAM_UNCORRECTABLE", "NC_UNCORRECTABLE"]
    names = [*(f"{word}_ERROR" for word in words), "DMA_ERROR"]
    assert all(
        line.startswith("[") and f" NEURON_HW_ERR={name} " in line
        for line, name in zip(lines, names, strict=True)
    )


def test_the_kernel_log_can_be_followed_from_its_beginning(client: Client) -> None:
    command = [str(Path(sys.executable).parent / "neurond"), "logs", "--kernel", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        try:
            client.inject("ecc", device=5)
            assert following.stdout is not None
            wait_readable(following.stdout.fileno())
            assert "nd5: NEURON_HW_ERR=HBM" in following.stdout.readline()
            client.inject("ecc", device=6)
            wait_readable(following.stdout.fileno())
            assert "nd6: NEURON_HW_ERR=HBM" in following.stdout.readline()
        finally:
            following.kill()


def test_a_lost_device_vanishes_from_neuron_ls(client: Client, tool: Tool) -> None:
    client.inject("device-lost", device=1)
    listed = json.loads(tool("neuron-ls", "-j").stdout)
    assert [row["neuron_device"] for row in listed] == [0, *range(2, 16)]
    assert 1 not in listed[0]["connected_to"]
    assert listed[1]["neuroncore_ids"] == [4, 5]
    only = tool("neuron-ls", "--device", "1")
    assert (only.returncode, only.stdout) == (1, "")
    assert only.stderr.startswith("error: no device 1\n")
    for device in (0, *range(2, 16)):
        client.inject("device-lost", device=device)
    none = tool("neuron-ls")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr.endswith(
        'msg="Failed to load MLA system information" error="failed to discover Neuron devices"\n'
    )
    client.clear_faults()
    assert len(json.loads(tool("neuron-ls", "-j").stdout)) == 16


def test_in_a_container_no_link_can_break_as_neighbours_have_the_hosts_numbers(tool: Tool) -> None:
    tool("neurond", "start", "--instance", "trn1.32xlarge", "--visible-devices", "0,4-7")
    done = tool("neurontools", "fault", "inject", "link-down", "--device", "0", "--to", "4")
    assert done.returncode == 4
    assert done.stderr == "error: device 0 has no link to device 4\nhint: its neighbours: none\n"
    assert tool("neurontools", "fault", "inject", "device-lost", "--device", "4").returncode == 0
    listed = json.loads(tool("neuron-ls", "-j").stdout)
    assert [row["neuron_device"] for row in listed] == [0, 1, 2, 3]
    assert listed[0]["connected_to"] == [12, 3, 4, 1]
    assert "devices   5 (1 lost), " in tool("neurond", "status").stdout
