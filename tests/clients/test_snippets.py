"""One-liners of programs that read neuron-ls, as their sources have them.

jq is written as the Python that does the same, because not every host has it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import machine
from neurontools.runtime.session import Runtime

BIN = Path(sys.executable).parent
LOAD = "import json, sys; found = json.load(sys.stdin); print"

SNIPPETS = [
    ("optimum-neuron: finetune_llama.sh", r"neuron-ls | awk '/^\| [0-9]+/ {total += $4} END {print total}'", "32"),
    ("aws-samples: instance type", "$PREFIX/bin/neuron-ls | grep instance-type | awk -F': ' '{print $2}'", "trn1.32xlarge"),
    ("aws-samples: cores of a device", "neuron-ls --json-output | grep nc_count | head -1", '"nc_count": 2,'),
    ("dp_bert_hf_pretrain: devices", f"neuron-ls -j | python -c '{LOAD}(len(found))'", "16"),
    ("dp_bert_hf_pretrain, torchserve: cores", f'neuron-ls -j | python -c \'{LOAD}(found[0]["nc_count"])\'', "2"),
    ("DJL Serving: devices as cores", f"neuron-ls --json-output | python -c '{LOAD}(len(found))'", "16"),
    ("Ray: all cores", f'$PREFIX/bin/neuron-ls --json-output | python -c \'{LOAD}(sum(d["nc_count"] for d in found))\'', "32"),
    ("vLLM: is there a device", "neuron-ls > /dev/null && echo yes", "yes"),
]  # fmt: skip


@pytest.fixture
def shell(home, tool, monkeypatch):
    """Run a line of shell with the tools in PATH and linked below $PREFIX."""
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("PREFIX", str(home / "neuron"))
    assert tool("neurontools", "link", "--prefix", str(home / "neuron")).returncode == 0

    def run(line):
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def trn1():
    with machine.start("trn1.32xlarge", private=True) as started:
        yield started


@pytest.mark.parametrize(("line", "answer"), [row[1:] for row in SNIPPETS], ids=[row[0] for row in SNIPPETS])
def test_the_snippet_reads_what_it_looks_for(shell, trn1, line, answer):
    run = shell(line)
    assert (run.stdout.strip(), run.returncode) == (answer, 0), run.stderr


def test_json_is_all_there_is_on_stdout_and_has_the_keys_that_backend_ai_reads(shell, trn1):
    device = json.loads(shell("neuron-ls --json-output").stdout)[13]
    wanted = {"neuron_device", "bdf", "numa_node", "nc_count", "memory_size", "neuroncore_ids"}
    assert wanted <= device.keys()
    assert device["neuron_device"] == 13


def test_without_a_driver_programs_get_exit_code_1_and_no_output(shell):
    run = shell("neuron-ls --json-output")
    assert (run.returncode, run.stdout) == (1, "")
    assert shell("neuron-ls > /dev/null 2>&1 && echo yes || echo no").stdout == "no\n"


def test_the_monitors_first_line_is_compact_and_the_monitor_dies_with_its_process_group(shell, trn1, home):
    # neuronx-distributed: test_long_seqlen.py reads memory_used_bytes by this expression, then kills the group.
    runtime = Runtime.open(environ={"NEURON_RT_VISIBLE_CORES": "0"})
    runtime.allocate(0, 1 << 20)
    with subprocess.Popen(
        [home / "neuron" / "bin" / "neuron-monitor"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as monitor:
        assert monitor.stdout is not None
        line = monitor.stdout.readline()
        os.killpg(monitor.pid, signal.SIGTERM)
    runtime.close()
    assert {int(number) for number in re.findall(r'memory_used_bytes":(\d+)', line)}
    assert json.loads(line)["neuron_hardware_info"]["neuron_device_count"] == 16
