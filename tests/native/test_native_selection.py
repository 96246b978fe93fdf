"""Which device a program gets: read from its code before torch names the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.errors import UsageError
from neurontools.native.selection import (
    StartedProgram,
    asks_for_neuron,
    chosen_device,
    read_request,
    started_program,
)

if TYPE_CHECKING:
    from pathlib import Path

RUN = {"NEURONTOOLS_RUN": "1"}


@pytest.mark.parametrize(
    "source",
    [
        "model.to('neuron')",
        "x = torch.ones(2, device='neuron:1')",
        "device = torch.device('neuron' if args.fast else 'cpu')",
        "DEVICE_TYPE = 'neuron'",
        "self.device: str = 'neuron'",
        "torch.neuron.synchronize()",
        "d = torch.accelerator.current_accelerator()",
        "parser.add_argument('--device', default='neuron')",
        "dev = 'neuron' if args.fast else 'cpu'",
        "dev, steps = 'neuron', 3",
        "config['device'] = 'neuron'",
        "config = {**defaults, 'device': 'neuron'}",
        "for device in ('cpu', 'neuron'): pass",
        "times = {dev: measure(dev) for dev in ('cpu', 'neuron')}",
        "def pick_device():\n    if fast:\n        return 'neuron'\n    return 'cpu'",
        "model = model.neuron()",
        "def main(where='neuron'): pass",
        "d = 'neuron'\nmodel.to(d)",
        "train('neuron:0')",
        "f = torch.compile(f, backend='neuron')",
        "dist.init_process_group('neuron')",
        "with torch.autocast('neuron'): pass",
        "import torch\ntry:\n    import torch_xla\nexcept ImportError:\n    pass\nx.to('neuron')",
    ],
)
def test_code_that_names_the_device_gets_it(source: str) -> None:
    assert asks_for_neuron(StartedProgram(source, ""))


@pytest.mark.parametrize(
    "source",
    [
        "import torch_xla.core.xla_model as xm\nx.to('neuron')",
        "from torch_xla import runtime\ntorch.neuron",
        "x.to('xla')",
        "print('neuron is fast', 'neurons')",
        "if args.device == 'neuron': import torch_xla",
        "if device in ('cpu', 'neuron'): pass",
        "match device:\n    case 'neuron': pass",
        f"x = {'-' * 2000}1",
        f"x = {'-' * 100_000}1",
        "'''About neuron.'''",
        "def pick_device(): return",
        "torch.classes.neuron.Model",
        "import neuron",
        "a = (",
        "\0",
    ],
)
def test_other_code_does_not(source: str) -> None:
    assert not asks_for_neuron(StartedProgram(source, ""))


BOTH = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="neuron")
device = parser.parse_args().device
if device == "xla":
    import torch_xla.core.xla_model as xm
torch.ones(2, device=device)
"""
LAZY_FOR_NEURON = [
    "if args.device == 'neuron':\n    import torch_xla",
    "if args.device in ('cpu', 'neuron'):\n    if x:\n        from torch_xla import runtime",
    "match args.device:\n    case 'neuron':\n        import torch_xla",
]


@pytest.mark.parametrize(
    ("arguments", "neuron"),
    [
        ([], True),
        (["--device", "neuron"], True),
        (["--device=neuron:1"], True),
        (["neuron", "--steps", "3"], True),
        (["--device", "cpu"], True),
        (["--device", "xla"], False),
        (["--device=xla"], False),
        (["--device=xla:0"], False),
        (["xla"], False),
        (["--steps", "3", "xla"], False),
        (["xla", "neuron"], True),
        (["--note", "xlarge"], True),
    ],
)
def test_an_argument_decides_for_a_program_for_both_devices(arguments: list[str], neuron: bool) -> None:
    assert asks_for_neuron(StartedProgram(BOTH, ""), arguments) is neuron


@pytest.mark.parametrize("arguments", [["--device", "neuron"], ["--device=neuron:1"], ["neuron"]])
def test_an_argument_names_the_device_in_programs_without_torch_xla(arguments: list[str]) -> None:
    assert asks_for_neuron(StartedProgram("model.to(args.device)", ""), arguments)
    assert asks_for_neuron(StartedProgram("def f():\n    import torch_xla", ""), arguments)
    assert not asks_for_neuron(StartedProgram("import torch_xla\nmodel.to(args.device)", ""), arguments)
    for source in LAZY_FOR_NEURON:
        assert not asks_for_neuron(StartedProgram(source, ""), arguments)
    assert not asks_for_neuron(StartedProgram("model.to(args.device)", ""), ["--device", "cpu", "neurons"])


@pytest.mark.parametrize(
    "source",
    [
        "from optimum.neuron import NeuronTrainer\nx.to('neuron')",
        "from optimum.exporters.tasks import TasksManager\nTasksManager.get('bert', 'neuron')",
        "from optimum.commands.optimum_cli import main\nmain()",
        "import neuronx_distributed as nxd\nname = 'neuron'",
        "from neuronx_distributed.trace import ModelBuilder\nexporter = 'neuron'",
        "import neuronx_distributed_inference\nprint('neuron')",
        "import torch_neuronx\nname = 'neuron'\ntorch_neuronx.trace(f, x)",
        "from torch_neuronx import trace\nload('neuron', library='neuron')",
        "import torch_neuronx.xla_impl.custom_op\nfolders = {'neuron': 1}",
    ],
)
def test_libraries_on_torch_xla_may_use_the_text_for_other_things(source: str) -> None:
    assert not asks_for_neuron(StartedProgram(source, ""))
    if "torch_neuronx" not in source:
        assert not asks_for_neuron(StartedProgram(source, ""), ["export", "neuron"])


@pytest.mark.parametrize(
    "source",
    [
        "x.to('neuron')",
        "x = torch.ones(2, device='neuron:1')",
        "d = torch.device('neuron')",
        "torch.neuron.synchronize()",
        "device = 'neuron'",
        "DEVICE_TYPE: str = 'neuron'",
        "config['device'] = 'neuron'",
        "model.neuron()",
        "parser.add_argument('--device', default='neuron')",
        "torch.compile(f, backend='neuron')",
        "torch.set_default_device('neuron')",
        "dev = torch.accelerator.current_accelerator()",
    ],
)
def test_a_program_with_torch_neuronx_gets_the_device_where_it_names_one(source: str) -> None:
    assert asks_for_neuron(StartedProgram(f"import torch, torch_neuronx\n{source}", ""))


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nfrom parts import settings\nimport parts.model\n")
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "__init__.py").write_text("import train\n")  # a circle
    (parts / "settings.py").write_text("NAME = 'neurons'\n")
    (parts / "model.py").write_text("import torch\n")
    program = StartedProgram(script.read_text(), str(script))
    assert not asks_for_neuron(program)
    (parts / "settings.py").write_text("DEVICE = 'neuron'\n")
    assert asks_for_neuron(program)
    (parts / "model.py").write_text("import torch_xla\n")
    assert not asks_for_neuron(program)


def test_an_import_counts_as_the_first_choice_only_at_the_top_level() -> None:
    assert read_request("import torch_xla").lazy
    assert not read_request("def f():\n    import torch_xla").lazy
    assert not read_request("if x:\n    import torch_xla").lazy


def test_what_the_interpreter_was_started_with_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    assert started_program([str(script)], []) == StartedProgram("pass", str(script))
    assert started_program(["-c"], ["python", "-u", "-c", "x = 1"]) == StartedProgram("x = 1", "")
    assert started_program(["-c"], ["python", "-Ic", "x = 1"]) == StartedProgram("x = 1", "")
    assert started_program(["-c"], ["python", "-cx = 1"]) is None
    assert started_program(["-m"], ["python", "-m", "train"]) is None
    assert started_program([], []) is None
    assert started_program([str(tmp_path)], []) is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert started_program([str(tmp_path / "binary")], []) is None


def test_the_variable_decides_and_code_counts_under_neuron_run_only(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x.to('neuron')")
    assert chosen_device({}, [str(script)], []) == ""
    assert chosen_device(RUN, [str(script)], []) == "neuron"
    assert chosen_device(RUN | {"NEURONTOOLS_DEVICE": "xla"}, [str(script)], []) == "xla"
    assert chosen_device({"NEURONTOOLS_DEVICE": "neuron"}, [], []) == "neuron"
    assert chosen_device(RUN, [], []) == ""
    with pytest.raises(UsageError, match="invalid NEURONTOOLS_DEVICE='cuda'"):
        chosen_device({"NEURONTOOLS_DEVICE": "cuda"}, [], [])
