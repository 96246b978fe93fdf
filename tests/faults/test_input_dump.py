"""NEURON_RT_DBG_DUMP_INPUTS_ON_ERR: what a failed execution was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.client import Client
    from tests.conftest import Tool
    from tests.runtime.conftest import Job

    NewVictim = Callable[..., Job]

EXECUTE = "runtime.execute(m, lambda: 1, lambda: [b'one', b'second'])"


def dumps() -> list[Path]:
    return sorted(Path.cwd().glob("input_dump_*"))


def test_the_wanted_status_leaves_the_inputs_and_others_do_not(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_DBG_DUMP_INPUTS_ON_ERR="1006")
    client.inject("generic", core=6, count=1)
    client.inject("oob", core=6, count=1)
    job.try_to(EXECUTE)
    assert dumps() == []
    job.try_to(EXECUTE)
    (directory,) = dumps()
    assert directory.name.endswith("_h_nn_10001")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "input0.bin": b"one",
        "input1.bin": b"second",
        "model_name.txt": b"m\n",
    }
    assert f"inputs of m are in {directory}\n" in job.stderr()
    assert job.ask(EXECUTE) == 1
    assert len(dumps()) == 1


def test_numerical_errors_that_do_not_fail_leave_their_inputs_too(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_DBG_DUMP_INPUTS_ON_ERR="1003")
    client.inject("numerical", core=6, count=1)
    assert job.ask(EXECUTE) == 1
    assert len(dumps()) == 1


def test_a_directory_that_can_not_be_written_harms_nothing(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_DBG_DUMP_INPUTS_ON_ERR="1004")
    client.inject("generic", core=6, count=1)
    job.ask("os.makedirs('gone') or os.chdir('gone') or os.rmdir('../gone')")
    assert "status=1004" in job.try_to(EXECUTE)["error"]
    assert "cannot write the inputs of m: " in job.stderr()


@pytest.mark.parametrize("value", ["", "x", "-1", "1e3"])
def test_invalid_input_dumps_nothing(client: Client, victim: NewVictim, value: str) -> None:
    job = victim(NEURON_RT_DBG_DUMP_INPUTS_ON_ERR=value)
    client.inject("generic", core=6, count=1)
    job.try_to(EXECUTE)
    assert dumps() == []


TRAINING = """
import json, torch, torch_xla.core.xla_model as xm
from neurontools.machine.client import Client
device = xm.xla_device()
weights = torch.tensor([1.0, 2.0], dtype=torch.bfloat16).to(device)
for step in range(4):
    doubled = weights * 2
    if step == 3:
        with Client.connect() as client:
            client.inject("generic", count=1)
    try:
        xm.mark_step()
    except RuntimeError as error:
        print(json.dumps(str(error)))
"""


def test_a_training_script_leaves_its_tensors(
    tool: Tool, torch_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_DBG_DUMP_INPUTS_ON_ERR", "1004")
    done = tool("neuron-run", "--instance", "trn1.2xlarge", "--", torch_python, "-c", TRAINING)
    assert done.returncode == 0, done.stderr
    assert "nrt_execute status=1004" in json.loads(done.stdout)
    (directory,) = dumps()
    assert (directory / "input0.bin").read_bytes() == bytes.fromhex("803f0040")
    assert (directory / "model_name.txt").read_text().startswith("SyncTensorsGraph.")
