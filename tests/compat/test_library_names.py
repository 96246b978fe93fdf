"""Names that training samples and libraries use beside the documented ones."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import sys
from importlib import import_module

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture
def xla(shims):
    import torch_xla

    yield torch_xla
    for name in [name for name in sys.modules if name.partition(".")[0] in {"neuronxcc", "nkilib", "nki"}]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("torch_xla.test.test_utils", "get_summary_writer write_to_summary close_summary_writer now"),
        (
            "torch_xla.distributed.fsdp.wrap",
            "always_wrap_policy transformer_auto_wrap_policy size_based_auto_wrap_policy",
        ),
        ("torch_xla._XLAC", "_get_xla_tensors_text _get_ir_debug _set_ir_debug"),
        ("torch_xla.distributed.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
        ("libneuronxla", "register_hlo_snapshot_callback"),
        ("torch_neuronx", "PartitionerConfig BucketModelConfig testing"),
        ("torch_neuronx.testing", "assert_close neuron_allclose custom_allclose"),
        ("torch_neuronx.testing.validation", "AllCloseSummary neuron_allclose custom_allclose"),
        ("torch_neuronx.xla_impl.custom_call_targets", "AwsNeuronModuleMarkerStartForward"),
        ("neuronxcc", "__version__"),
    ],
)
def test_a_name_can_be_imported(xla, module, names):
    loaded = import_module(module)
    for name in names.split():
        getattr(loaded, name)


def test_torch_distributed_knows_the_backend_after_the_import(xla):
    assert hasattr(torch.distributed.Backend, "XLA")


def test_recorded_operators_are_shown_without_running_them(xla, shims):
    device = torch.device("xla")
    left, right = torch.ones(2, 3, device="cpu").to(device), torch.ones(3, 2).to(device)
    other = left.cos()
    product = (left @ right).add_(1)
    text = xla._XLAC._get_xla_tensors_text([product])
    assert text.count("xla::device_data") == 2
    assert text.count("f32[2,3]{1,0} xla::device_data()") == 1
    assert "aten::mm.default(%0, %1)" in text
    assert "aten::add_" in text
    assert "cos" not in text
    assert shims.executions == 0
    both = xla._XLAC._get_xla_tensors_text([other, right])
    assert "f32[3,2]{1,0} xla::device_data(), device=xla:0, ROOT=1" in both
    assert "f32[2,3]{1,0} aten::cos.default(%0)" in both
    assert both.count("xla::device_data") == 2
    assert torch.equal(product.cpu(), torch.full((2, 2), 4.0))
    before = xla._XLAC._get_ir_debug()
    xla._XLAC._set_ir_debug(True)
    assert (before, xla._XLAC._get_ir_debug()) == (False, True)
    xla._XLAC._set_ir_debug(False)


def test_progress_lines_and_summaries(xla, capsys):
    from torch_xla.test import test_utils

    test_utils.print_training_update("xla:0", 3, torch.tensor(0.5), 10.0, 9.0, epoch=1)
    test_utils.print_test_update("xla:0", 98.125, epoch=1)
    training, test = capsys.readouterr().out.splitlines()
    assert training.startswith(
        "| Training Device=xla:0/0 Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=9.00"
    )
    assert test.startswith("| Test Device=xla:0/0 Epoch=1 Accuracy=98.12")
    written = []

    class Writer:
        def add_scalar(self, *scalar):
            written.append(scalar)

    assert test_utils.get_summary_writer(None) is None
    test_utils.write_to_summary(Writer(), 4, {"loss": 0.5})
    test_utils.write_to_summary(None, 4, {"loss": 0.5})
    assert written == [("loss", 0.5, 4)]


def test_submodules_are_wrapped_by_a_policy(xla):
    from functools import partial

    from torch_xla.distributed.fsdp import wrap

    class Wrapped(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    def model():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ModuleList([torch.nn.Linear(2, 2)]))

    policies = {
        ("0", "1.0"): partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear}),
        ("0",): partial(wrap.size_based_auto_wrap_policy, min_num_params=20),
        (): partial(wrap.size_based_auto_wrap_policy, min_num_params=1000),
    }
    for names, policy in policies.items():
        wrapped, _ = wrap.recursive_wrap(model(), policy, Wrapped, only_wrap_children=True)
        assert tuple(name for name, part in wrapped.named_modules() if isinstance(part, Wrapped)) == names
    wrapped, count = wrap.recursive_wrap(model(), wrap.always_wrap_policy, Wrapped)
    assert isinstance(wrapped, Wrapped)
    assert count == 26


def test_results_of_the_device_are_compared_with_those_of_the_cpu(shims):
    import torch_neuronx
    from torch_neuronx.testing.validation import custom_allclose

    wanted = torch.tensor([[100.0, 1.0], [0.0, 2.0]])
    near = (wanted + torch.tensor([[0.0, 0.05], [0.0, 0.0]])).to("xla")
    summary = torch_neuronx.testing.neuron_allclose(near, wanted, rtol=1e-3)
    assert summary.allclose  # the tolerance is relative to 100
    assert summary.max_abs_error_index == summary.max_rel_error_index == (0, 1)
    assert summary.max_rel_error == pytest.approx(5e-4, rel=1e-3)
    strict = torch_neuronx.testing.neuron_allclose(near, wanted, rtol=1e-5)
    assert (strict.allclose, strict.num_mismatches) == (False, 1)
    assert custom_allclose(wanted, near, rtol=1e-3)[0]
    assert not torch_neuronx.testing.neuron_allclose(wanted * torch.nan, wanted).allclose
    torch_neuronx.testing.assert_close(near, wanted, atol=0.1, rtol=0)
    with pytest.raises(AssertionError):
        torch_neuronx.testing.assert_close([near], [wanted])


def test_a_bucket_is_chosen_with_constants(neuronx, home):
    def choose(tensors: list[torch.Tensor], sizes: torch.Tensor, side: str, pad: float):
        assert side == "right"
        length = tensors[0].shape[1]
        bucket = torch.argmax((sizes >= length).to(torch.int))
        missing = int(sizes[bucket]) - length
        padded = torch.full([tensors[0].shape[0], missing], pad)
        return [torch.cat([tensors[0], padded], dim=1)], bucket

    config = neuronx.BucketModelConfig(
        bucket_kernel=lambda: torch.jit.script(choose),
        bucket_kernel_constant_args=(torch.tensor([2, 4]), "right", 9.0),
        shared_state_buffer=None,
        shared_state_buffer_preprocessor=lambda: None,
        func_kwargs=[{"bucket_rank": number} for number in range(2)],
        store_example_inputs=True,
    )
    assert config.get_func_kwargs_for_bucket_rank(1) == {"bucket_rank": 1}
    model = neuronx.bucket_model_trace(
        lambda bucket_rank: (lambda x: x + bucket_rank, {}), [torch.zeros(1, 2), torch.zeros(1, 4)], config
    )
    torch.jit.save(model, str(home / "model.pt"))
    for made in (model, torch.jit.load(str(home / "model.pt"))):
        assert made(torch.ones(1, 1)).tolist() == [[1, 9]]
        assert made(torch.ones(1, 3)).tolist() == [[2, 2, 2, 10]]


def test_a_partitioner_leaves_all_operators_on_the_device(neuronx):
    config = neuronx.PartitionerConfig(
        trace_kwargs={"compiler_args": "--optlevel=1"},
        model_support_percentage_threshold=0.8,
        min_subgraph_size=2,
        max_subgraph_count=3,
        ops_to_partition={"aten::relu"},
        analyze_parameters={"compiler_workdir": "."},
    )
    made = neuronx.trace(torch.relu, torch.rand(2), partitioner_config=config)
    assert made(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]


def test_the_target_is_that_of_the_flags_or_the_environment(neuronx, monkeypatch):
    from torch_neuronx.utils.utils import get_platform_target

    assert get_platform_target("--target inf2 -O1") == get_platform_target(["--target=inf2"]) == "inf2"
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert get_platform_target() == get_platform_target("--optlevel 2") == "trn2"
    assert get_platform_target("--target trn1") == "trn1"


def test_names_that_can_only_be_imported_are_values(xla):
    from nkilib.core.utils.common_types import ActFnType

    member = ActFnType.SiLU

    @dataclasses.dataclass
    class Options:
        activation: object
        factors: dict

    options = Options(member, {ActFnType.GELU: 1})
    for made in (copy.deepcopy(options), copy.copy(options)):
        assert made == options
    assert dataclasses.asdict(options)["activation"] == member
    for value in (member, ActFnType, ActFnType(3)):
        for made in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert (made, type(made), hash(made)) == (value, type(value), hash(value))
    assert member == ActFnType.SiLU != ActFnType.GELU
    assert isinstance(member, str)
    assert (member == "SiLU", member != "SiLU", member == "GELU", member == [1]) == (
        True,
        False,
        False,
        False,
    )
    assert import_module("nki").jit(member) == member
    assert json.loads(json.dumps({"act": member}))["act"].endswith("ActFnType.SiLU")
    with pytest.raises(NotImplementedError, match="is not simulated"):
        copy.deepcopy(member)(3)
