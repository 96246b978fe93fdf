"""Programs with the device `neuron`: eager, compiled, and with torch's interfaces for any device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from neurontools.errors import NoMachineError
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
CHECKS = Path(__file__).parent / "native_checks.py"
AUTOLOAD = "from neurontools.native.autoload import autoload; autoload()"
"""What `import torch` does in a new process, for copies of one that has loaded torch."""
_seen: dict[str, Any] = {}


@pytest.fixture
def seen(tool: Any, home: Path) -> dict[str, Any]:
    """What each check saw: one process runs them all, because most of its time goes to starting torch."""
    if not _seen:
        start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
        run = tool("neuron-run", "--", "python", "-W", "ignore", str(CHECKS), "seen.json")
        assert run.returncode == 0, run.stderr
        _seen.update(json.loads((home / "seen.json").read_text()))
        assert [value["error"] for value in _seen.values() if "error" in value] == []
    return _seen


def test_torch_knows_the_device_without_an_import(seen):
    assert seen["names"] == {
        "device": "neuron:0",
        "is_neuron": True,
        "method": "neuron:0",
        "module": "neuron:0",
        "accelerator": "neuron",
        "counts": [4, 4],
        "backend": True,
    }


def test_training_gives_the_numbers_of_the_cpu_with_one_graph_a_step(seen):
    assert seen["training"]["same"]
    assert seen["training"]["counted"] == [[1, 1], [2, 2], [2, 3], [2, 4], [2, 5], [2, 6]]


def test_compiled_training_gives_the_numbers_of_the_cpu(seen):
    assert seen["compiled_training"]["same"]
    graphs = [graphs for graphs, _ in seen["compiled_training"]["counted"]]
    assert graphs[1:] == [graphs[1]] * 5
    first, second = (executions for _, executions in seen["compiled_training"]["counted"][-2:])
    assert second - first == 4  # forward, loss, backward, optimizer


def test_a_loop_without_synchronization_repeats_one_graph(seen):
    loop = seen["loop_without_reads"]
    assert loop["same"]
    assert loop["compiles"] == 1
    assert loop["executions"] >= 4


def test_deterministic_mode_turns_fusion_off(seen):
    assert seen["deterministic_mode"] == {"eager": [False, True, False], "executions": 2, "y": [4.0] * 3}


def test_a_graph_break_makes_two_graphs_and_each_shape_its_own(seen):
    assert seen["graph_break_and_shapes"] == {
        "results": [6.0, 9.0, 9.0, 12.0],
        "gradient": [2.0, 2.0],
        "graphs": 8,
        "breaks": 4,
    }


def test_inputs_on_the_cpu_are_copied_to_the_device(seen):
    assert seen["compiled_inputs_of_the_cpu"] == {
        "device": "neuron:0",
        "y": [2.0, 2.0],
        "refused": "Input tensor at index 0 is on cpu device",
    }


def test_dynamic_shapes_are_refused(seen):
    assert "torch.compile(backend='neuron') does not support dynamic=True" in seen["dynamic_is_refused"]


def test_a_compiled_graph_is_one_execution_however_long(seen):
    assert seen["whole_graph"] == {"executions": 1, "same": True}


def test_autocast_has_the_conventions_of_cuda(seen):
    types = [
        "bfloat16",
        "bfloat16",
        "float32",
        "float32",
        "float32",
        "bfloat16",
        "float32",
        "float64",
        "bfloat16",
        "int64",
    ]
    assert seen["amp"] == {
        "same": True,
        "types": types,
        "refused": "binary_cross_entropy may overflow under autocast",
    }
    assert seen["grad_scaler"] == {"changed": True, "scale": 4.0}


def test_weights_are_saved_with_their_values(seen):
    assert seen["saved"] == {"device": "neuron:0", "same": True, "cpu": True}


def test_checkpointed_dropout_draws_the_same_numbers_again(seen):
    assert seen["loader_and_checkpoint"] == {"same": True}


def test_the_module_of_the_device(seen):
    module = seen["module_of_the_device"]
    assert module.pop("allocated") >= 1024
    assert module == {
        "stats": True,
        "current": [0, 0],
        "elapsed": True,
        "same": True,
        "name": "NC_v3d",
        "hint": "module 'torch.neuron' has no attribute 'memory_snapshot': not simulated; "
        "nearest supported name: neuron-run --profile DIR, which records allocations with their lines",
        "current_stream": "neuron:0",
    }


def test_torchs_functions_for_any_accelerator(seen):
    assert seen["accelerator"] == {
        "inside": [1, "neuron:1"],
        "after": 0,
        "no such device": "DeviceError: device neuron:9 does not exist: this process has 4 NeuronCore(s)",
        "still": 0,
        "capability": [True, False],
        "streams": True,
    }


def test_streams_and_events_are_those_of_torch(seen):
    assert seen["streams_and_events"] == {
        "inside": 1,
        "after": 0,
        "torch": True,
        "elapsed": True,
        "ran": True,
        "waiting": None,
        "names": ["torch.neuron.Stream(device=neuron:1)", "torch.neuron.Event(enable_timing=True)"],
    }


def test_the_peak_of_the_memory_starts_again(seen):
    assert seen["memory"] == {
        "torch": True,
        "retries": 0,
        "class": True,
        "random": True,
        "snapshot": "AttributeError: module 'torch.neuron.memory' has no attribute 'memory_snapshot': not simulated; "
        "nearest supported name: neuron-run --profile DIR, which records allocations with their lines",
        "lowered": True,
        "equal": True,
        "nested": True,
        "summary": ["neuron:0,", "allocated", "peak", "free"],
        "short": 2,
    }


def test_tensors_count_before_their_operators_have_run(seen):
    assert seen["memory_before_a_read"] == {"sizes": [4, 12, 12], "below": True, "pending": 2}


def test_what_torch_has_for_gpus_alone_is_refused_in_one_line(seen):
    refused = seen["what_torch_has_for_gpus_alone"]
    assert refused["snapshot"].endswith(
        "has no attribute '_snapshot': not simulated; nearest supported name: "
        "neuron-run --profile DIR, which records allocations with their lines"
    )
    assert refused["amp"] == (
        "ImportError: cannot import name 'amp' from 'torch.neuron': not simulated; nearest supported name: torch.amp"
    )
    assert refused["DataParallel"] == "DeviceError: torch.nn.DataParallel does not run on the device neuron"
    assert "DeviceError: the backend inductor has no code for the device neuron" in refused["inductor"]


def test_scaled_products_of_experts_are_those_of_each_group(seen):
    assert list(seen["products_of_experts"].values()) == [True] * 4


def test_an_operator_of_nki_runs_its_kernel_and_takes_others(seen):
    assert seen["kernels_of_nki"] == {
        "eager": [[4, 4, 4]] * 2,
        "compiled": [[4, 4, 4]] * 2,
        "gradient": [[3, 3, 3]] * 2,
        "other kernel": [[2, 2, 2]] * 2,
    }


def test_pinned_memory_says_that_it_is(seen):
    assert seen["pinned_memory"] == {
        "pinned": [True, True, True],
        "loaded": [True, True],
        "not": False,
        "moved": [0, 1, 2, 3],
    }


def test_files_hold_storages_as_those_of_any_device(seen):
    assert seen["saving"] == {
        "devices": {
            "cpu": "cpu",
            "second": "neuron:1",
            "dictionary": "neuron:2",
            "function": "cpu",
            "default": "neuron:0",
        },
        "values": True,
        "strides": [1, 3],
        "tied": True,
        "old": "neuron:1",
        "module": True,
        "pickled": "neuron:1",
        "device": "neuron:1",
    }


def test_a_core_may_take_all_memory_of_its_device_and_reports_that(seen):
    memory = seen["memory_of_the_device"]
    assert memory["totals"] == [96 << 30] * 3
    assert memory["taken"] == 48 << 30  # more than a quarter: the four cores share the memory
    assert memory["refused"] == 'NrtError: nrt_tensor_allocate status=4 message="Allocation Failure"'


def test_torchscript_modules_move_and_are_saved(seen):
    assert seen["torchscript"] == {
        "devices": {"None": "cpu", "cpu": "cpu", "neuron:1": "neuron:1"},
        "same": [True] * 4,
        "kept": True,
        "tied": 5,
        "constant": "DeviceError: TorchScript code with constant tensors on the device cannot be saved",
        "function": "DeviceError: TorchScript code with constant tensors on the device cannot be saved",
        "plain function": [[[1, 2], [3, 4]]] * 2,
    }


def test_storages_have_addresses_and_copies(seen):
    assert seen["storages"] == {
        "apart": True,
        "offset": 4,
        "bytes": 16,
        "copied": True,
        "shared": [0, 0, 0],
        "original": [0, 1, 2, 3],
    }


def test_a_module_that_moves_keeps_its_parameters(seen):
    assert seen["moving_modules"] == {
        "lazy": ["neuron:0", [1, 2]],
        "hooked": ["neuron"],
        "kept": True,
        "moved": True,
        "trained": True,
        "back": "cpu",
        "tied": True,
        "graph": "neuron:0",
    }


def test_a_parameter_that_moves_stays_the_same_object(seen):
    for name, found in seen["parameters_that_move"].items():
        device = "cpu" if name == "back" else "neuron"
        assert found == {
            "device": device,
            "kept": True,
            "shared": True,
            "tag": "a",
            "hooked": ["a"],
            "gradient": device,
            "class": "Parameter",
        }, name


def test_gradients_arrive_at_parameters_that_have_left_the_device_meanwhile(seen):
    found = seen["assigned_data"]
    assert found.pop("refused").startswith("DeviceError: an autograd graph refers to this tensor: ")
    assert found == {"kinds": ["neuron:0", True, True, "cpu"], "values": [3, 3], "gradient": [4, 4]}


def test_random_numbers_of_generators_and_forks(seen):
    assert seen["random_numbers"] == {"clone": True, "forked": True}


def test_the_device_can_be_torchs_default(seen):
    assert seen["default_device"] == {
        "inside": ["neuron:0", "neuron:0"],
        "printed": "tensor([1.5000, 2.0000], device='neuron:0')",
        "on the CPU": None,
        "cpu": "cpu",
    }


def test_what_cannot_be_done_is_one_clear_line(seen):
    said = seen["refusals"]
    assert said.pop("double") is True
    absent = "does not exist: this process has 4 NeuronCore(s)"
    mixed = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices"
    to_numpy = "TypeError: can't convert neuron:0 device type tensor to numpy."
    assert said["numpy"].startswith(to_numpy)
    assert said["array"].startswith(to_numpy)
    assert {name: text for name, text in said.items() if name not in {"numpy", "array"}} == {
        "index": f"DeviceError: device neuron:7 {absent}",
        "index of a stream": f"DeviceError: device neuron:7 {absent}",
        "type": "DeviceError: cpu is not a neuron device",
        "cpu": f"{mixed}, neuron:0 and cpu!",
        "two devices": f"{mixed}, neuron:0 and neuron:1!",
        "shared": "DeviceError: a tensor on neuron:0 cannot be shared with another process",
        "dlpack": "DeviceError: a tensor on neuron:0 cannot be exported by DLPack",
        "np.from_dlpack": "DeviceError: a tensor on neuron:0 cannot be exported by DLPack",
    }


def test_operators_on_types_that_the_compiler_lacks_run_on_the_cpu(seen):
    types = seen["types_that_the_compiler_lacks"]
    assert types["same"] == [True] * 6
    assert types["sparse"].endswith("layout torch.sparse_coo, which the neuron device does not support")
    assert types["dropout"] == [2.0, 0.0]
    assert types["on the device"]
    assert types["forbidden"].startswith(
        "CompileError: [NCC_EVRF004] Complex data types are not supported: complex128"
    )


def test_a_lack_of_memory_is_torchs_error(seen):
    full = seen["memory_is_full"]
    assert full["runtime"]
    assert full["full"] == 'neuron out of memory. nrt_tensor_allocate status=4 message="Allocation Failure"'


def test_profiles_of_torch_have_stacks(seen):
    assert seen["profiler_with_stacks"] == {"keys": True, "older": True}


def test_profiles_of_torch_have_rows_of_the_device(seen):
    assert seen["profiler"] == {"rows": True, "column": True, "devices": ["neuron"]}


def test_the_other_name_says_which_one_the_process_has(seen):
    reason = "the device of this process is called 'neuron', so it cannot be 'xla' too"
    assert seen["other_names"] == {
        "errors": [
            f"ImportError: {reason}: use one of the two names per process; NEURONTOOLS_DEVICE=xla chooses 'xla'",
            f"DeviceError: {reason}",
        ],
        "memory": True,
    }


@pytest.mark.parametrize("mode", ["eager", "compile", "mixed"])
def test_the_sample_prints_on_the_device_what_it_prints_on_the_cpu(seen, mode):
    assert seen["sample"][mode] == seen["sample"]["cpu"]
    assert len(seen["sample"]["cpu"]) == 7


def test_the_sample_trains_in_bfloat16(seen):
    losses = {
        name: [float(line.split("loss ")[1].split(",")[0]) for line in seen["sample"][name][:-1]]
        for name in ("eager", "eager amp")
    }
    assert losses["eager"] != losses["eager amp"] == pytest.approx(losses["eager"], abs=0.02)


def test_torchs_errors_about_the_other_name_get_the_reason(tool, torch_python):
    run = tool("neuron-run", "--", torch_python, "-c", "import torch_xla, torch\ntorch.ones(2).to('neuron')")
    reason = "the device of this process is called 'xla', so it cannot be 'neuron' too"
    remedy = "use one of the two names per process; NEURONTOOLS_DEVICE=neuron chooses 'neuron'"
    assert run.stderr.endswith(f"\n{reason}: {remedy}\n")


def test_tritons_error_without_a_gpu_gets_the_reason(tool, torch_python, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_DEVICE", "neuron")
    code = "raise RuntimeError('0 active drivers ([]). There should only be one.')"
    run = tool("neuron-run", "--", torch_python, "-c", f"{AUTOLOAD}\n{code}")
    assert run.stderr.endswith(
        "\nTriton kernels do not run on the device neuron: call torch operators, or a custom operator in C++ "
        "(neuron-customop)\n"
    )


def test_another_instance_type_is_refused_unless_forced(tool, home, torch_python):
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    (home / "use.py").write_text(
        f"import os, torch\n{AUTOLOAD}\n"
        "for force in '01':\n"
        "    os.environ['NEURONTOOLS_NATIVE_ANY_INSTANCE'] = force\n"
        "    print(torch.neuron.is_available(), torch.neuron.device_count())\n"
        "    try:\n        print(torch.ones(2).to('neuron').sum().item())\n"
        "    except RuntimeError as error:\n        print(error)\n"
    )
    run = tool("neuron-run", "--", torch_python, "use.py")
    assert run.stdout.splitlines() == [
        "False 0",
        "the device neuron needs a trn2 or trn3 instance, this machine is a trn1.2xlarge",
        "True 2",
        "2.0",
    ], run.stderr


def test_a_machine_that_has_to_be_started_has_the_device(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.delenv("NEURONTOOLS_INSTANCE", raising=False)
    show = "import torch; print(torch.neuron.get_device_name(), torch.neuron.device_count())"
    run = tool("neuron-run", "--", "python", "-c", show)
    assert run.stdout.splitlines() == ["NC_v3d 4"], run.stderr


def test_without_torchs_autoload_the_import_of_torch_neuronx_gives_the_device(tool, monkeypatch):
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    code = "import torch\nimport torch_neuronx\nprint(torch.ones(2).to('neuron').device)"
    run = tool("neuron-run", "--", "python", "-c", code)
    assert run.stdout.splitlines() == ["neuron:0"], run.stderr


def test_a_setting_names_the_instance_type_of_the_machine():
    from neurontools.native.cores import prefer_native_instance

    environ: dict[str, str] = {}
    prefer_native_instance(environ)
    assert environ == {"NEURONTOOLS_INSTANCE": "trn2.3xlarge"}
    prefer_native_instance(named := {"NEURONTOOLS_INSTANCE": "trn2.48xlarge"})
    assert named == {"NEURONTOOLS_INSTANCE": "trn2.48xlarge"}


def test_nothing_happens_outside_neuron_run(monkeypatch):
    from neurontools.native import autoload

    monkeypatch.delenv("NEURONTOOLS_RUN", raising=False)
    monkeypatch.setattr("sys.argv", [str(CHECKS)])
    called = []
    monkeypatch.setattr(
        "neurontools.native.selection.chosen_device", lambda *arguments: called.append(arguments)
    )
    autoload.autoload()
    assert called == []
    monkeypatch.setenv("NEURONTOOLS_RUN", "1")
    autoload.autoload()
    assert [arguments[1] for arguments in called] == [[str(CHECKS)]]


def test_a_device_that_cannot_be_prepared_ends_the_program_in_one_line(monkeypatch):
    from neurontools.native import activation, autoload
    from neurontools.xla import api, device

    monkeypatch.setenv("NEURONTOOLS_DEVICE", "cuda")
    with pytest.raises(
        SystemExit, match=r"^neurontools: invalid NEURONTOOLS_DEVICE='cuda': use neuron or xla$"
    ):
        autoload.autoload()
    monkeypatch.setenv("NEURONTOOLS_DEVICE", "neuron")
    monkeypatch.setattr(device, "_NEEDED", ("in_another_torch",))
    monkeypatch.setattr(api, "_engine", None)
    monkeypatch.setattr(api, "choose_device_name", lambda name: None)
    monkeypatch.setattr(activation, "is_active", lambda: False)
    with pytest.raises(
        SystemExit, match=r"^neurontools: torch \S+ lacks in_another_torch, .*: install torch 2.13$"
    ):
        autoload.autoload()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Expected one of cpu device type at start of device string: neuron"),
        AttributeError("module 'torch' has no attribute 'neuron'"),
    ],
    ids=["name", "module"],
)
@pytest.mark.parametrize(
    ("chosen", "note"),
    [
        ("", "this program's code does not ask for the device neuron"),
        ("xla", "the device of this process is called 'xla', so it cannot be 'neuron' too"),
    ],
)
def test_a_missing_device_is_explained_once(monkeypatch, chosen, note, error):
    from neurontools.native import autoload
    from neurontools.xla import api, device_name

    seen = []
    monkeypatch.setattr("sys.excepthook", lambda kind, error, traceback: seen.append(error.__notes__))
    monkeypatch.setenv("NEURONTOOLS_RUN", "1")
    monkeypatch.setattr("neurontools.native.selection.chosen_device", lambda *arguments: chosen)
    monkeypatch.setattr(device_name, "_chosen", [chosen] if chosen else [])
    monkeypatch.setattr(api, "activate", lambda: None)
    device_name.explain_at_exit.cache_clear()
    try:
        autoload.autoload()
        autoload.autoload()
        error.__notes__ = []
        sys.excepthook(type(error), error, None)
    finally:
        device_name.explain_at_exit.cache_clear()
    assert [[text.startswith(note) for text in notes] for notes in seen] == [[True]]


@pytest.mark.parametrize("code", ["torch.ones(2).to('xla')", "torch.ones(2, device='xla')"])
def test_a_program_without_torch_xla_is_told_to_import_it(tool, torch_python, code):
    run = tool("neuron-run", "--", torch_python, "-c", f"import torch\n{AUTOLOAD}\n{code}")
    assert run.returncode == 1
    assert run.stderr.endswith("\nhint: import torch_xla first, or set NEURONTOOLS_DEVICE=xla\n")


@pytest.mark.parametrize("shared", ["", "2-3"])
def test_workers_count_the_devices_of_all(monkeypatch, shared):
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.native import cores

    class Machine:
        instance_type = "trn2.3xlarge"
        devices = (type("Device", (), {"core_ids": (0, 1, 2, 3)}),)

    class Engine:
        is_open = True

    assert instance_type(Machine.instance_type)
    monkeypatch.setattr(cores, "read_machine", lambda environ: Machine)
    monkeypatch.setattr(cores.api, "engine", Engine)
    monkeypatch.setattr(cores.api, "device_count", lambda: 1)
    environ = {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    if shared:
        environ["NEURON_RT_VISIBLE_CORES"] = shared
    from neurontools.xla.distributed import workers

    workers.assign_core(environ)
    assert environ["NEURON_RT_VISIBLE_CORES"] == ("3" if shared else "1")
    assert cores.core_count(environ) == (2 if shared else 4)
    assert cores.core_count({}) == 1  # this process has opened its own


def test_without_a_machine_the_device_is_not_available(monkeypatch):
    from neurontools.native import device_functions

    def no_machine(environ):
        raise NoMachineError("no machine 'default' is running")

    monkeypatch.setattr(device_functions, "core_count", no_machine)
    assert not device_functions.is_available()
    with pytest.raises(NoMachineError):
        device_functions.device_count()


def test_both_devices_share_the_compile_cache(tool, home, torch_python, monkeypatch):
    (home / "use.py").write_text(
        "import sys, torch\n"
        "from neurontools.native.activation import activate\n"
        "from neurontools.xla import api\n"
        "name, = sys.argv[1:]\n"
        "activate() if name == 'neuron' else api.activate()\n"
        "torch.manual_seed(0)\n"
        "layer, x = torch.nn.Linear(4, 2).to(name), torch.ones(3, 4, device=name)\n"
        "torch.nn.functional.dropout(layer(x)).sum().backward()\n"
        "print(layer.weight.grad.tolist())\n"
    )
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    first, second = (tool("neuron-run", "--", torch_python, "use.py", name) for name in ("xla", "neuron"))
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1]
    assert "Call compiler with cmd" in first.stderr
    assert "Using a cached neff" in second.stderr
    assert "Call compiler with cmd" not in second.stderr
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_NEFF_CACHE", "1")
    assert "Call compiler with cmd" in tool("neuron-run", "--", torch_python, "use.py", "neuron").stderr
    monkeypatch.delenv("TORCH_NEURONX_DISABLE_NEFF_CACHE")
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL", raising=False)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "neffs")
    assert "Call compiler with cmd" in tool("neuron-run", "--", torch_python, "use.py", "neuron").stderr
    assert list((home / "neffs").glob("*/MODULE_*/model.neff"))
