"""One-liners of programs that read neuron-ls, as their sources have them (system-tools.md section 6.5).

jq is written as the Python that does the same, because not every host has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import machine

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
