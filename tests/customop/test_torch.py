"""Operators in torch: results, fake tensors, autograd, loading again and over each other."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neurontools.customop import load as load_module
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpBuildError, CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.load import load, load_library
from neurontools.customop.torch_operators import loaded_libraries, operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.customop.conftest import Library

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"
STYLES = ("relu_element", "relu_tcm", "relu_multicore")
SIZES = [(32, 4096), (37, 53), (1, 1), (0, 4), (3, 5461), (8, 128)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_samples_are_bit_exact(library: Library, style: str, sizes: tuple[int, int]) -> None:
    load_library(library(style))
    ops = getattr(torch.ops, style)
    x = torch.randn(sizes)
    gradient = torch.randn(sizes)
    assert torch.equal(ops.forward(x), torch.relu(x))
    assert torch.equal(ops.backward(gradient, x), torch.where(x > 0, gradient, 0.0))


@pytest.mark.parametrize("style", STYLES)
def test_training_with_an_operator_equals_training_with_torch(library: Library, style: str) -> None:
    load_library(library(style))
    ops = getattr(torch.ops, style)

    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return ops.forward(x)

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return ops.backward(gradient, x)

    def train(activation: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        torch.manual_seed(0)
        first, last = torch.nn.Linear(20, 16), torch.nn.Linear(16, 4)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        x, y = torch.randn(32, 20), torch.randint(0, 4, (32,))
        losses = []
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(last(activation(first(x))), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert train(Relu.apply) == train(torch.relu)


def test_shapes_without_data(library: Library) -> None:
    load_library(library("relu_tcm"))
    ops = torch.ops.relu_tcm
    meta = ops.forward(torch.empty(3, 4, device="meta"))
    assert (meta.shape, meta.dtype, meta.device.type) == ((3, 4), torch.float32, "meta")
    with FakeTensorMode() as mode:
        fake = ops.forward(torch.empty(5, 6))
        assert fake.shape == (5, 6)
        assert fake.fake_mode is mode
    torch.library.opcheck(ops.forward, (torch.randn(4, 4),), test_utils=("test_schema", "test_faketensor"))


def test_an_operator_is_exported_with_its_name(library: Library) -> None:
    load_library(library("relu_tcm"))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.relu_tcm.forward(x) + 1

    program = torch.export.export(Model(), (torch.randn(2, 3),))
    assert "torch.ops.relu_tcm.forward" in program.graph_module.code
    x = torch.randn(2, 3)
    assert torch.equal(program.module()(x), torch.relu(x) + 1)


def test_wrong_calls_are_refused_by_torch_before_anything_runs(library: Library) -> None:
    load_library(library("faults"))
    with pytest.raises(RuntimeError, match="missing value for argument '_1'"):
        torch.ops.faults.nap(torch.rand(2))
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor'"):
        torch.ops.faults.copy("text")


def test_an_error_of_a_kernel_comes_through_torch_as_it_is(library: Library) -> None:
    load_library(library("faults"))
    x = torch.arange(8.0)
    with pytest.raises(
        NeuronCustomOpError, match=r"faults::fault failed on core 0: abort: .* at .*compute.cpp:\d+"
    ):
        torch.ops.faults.fault(x, x, 60)
    assert torch.equal(torch.ops.faults.copy(x), x)


def test_loading_again_is_harmless(library: Library, scratch: Path) -> None:
    path = library("relu_element")
    first = load_library(path)
    again = load(
        "relu_element", [SAMPLES / "relu_element" / "relu.cpp"], [str(SAMPLES / "relu_element" / "shape.cpp")]
    )
    assert again.digest == first.digest
    assert first in loaded_libraries()
    assert first.ops == ("relu_element::forward", "relu_element::backward")
    x = torch.randn(3, 3)
    assert torch.equal(torch.ops.relu_element.forward(x), torch.relu(x))


SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(PARAMETERS) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(NAMESPACE, m) { m.def("scale", &same, "scale"); }
"""
KERNEL = """#include <torch/torch.h>
torch::Tensor scale(PARAMETERS) { return torch::full(x.sizes(), FACTOR, torch::kFloat); }
"""


def write(scratch: Path, namespace: str, factor: int, parameters: str = "torch::Tensor x") -> BuildRequest:
    (scratch / "shape.cpp").write_text(
        SHAPE.replace("NAMESPACE", namespace).replace("PARAMETERS", parameters)
    )
    (scratch / "kernel.cpp").write_text(
        KERNEL.replace("FACTOR", str(factor)).replace("PARAMETERS", parameters)
    )
    return BuildRequest(
        namespace, (scratch / "kernel.cpp",), (scratch / "shape.cpp",), scratch, cflags=("-O0",)
    )


def test_an_edited_kernel_takes_over_in_the_same_process(scratch: Path) -> None:
    x = torch.ones(3)
    old = load_library(build(write(scratch, "edited", 2)).path)
    assert torch.ops.edited.scale(x).tolist() == [2, 2, 2]
    new = load_library(build(write(scratch, "edited", 5)).path)
    assert torch.ops.edited.scale(x).tolist() == [5, 5, 5]
    assert old not in loaded_libraries()
    assert new in loaded_libraries()
    with pytest.raises(CustomOpLibraryError, match=r"is loaded as scale\(Tensor _0\) -> Tensor"):
        load_library(build(write(scratch, "edited", 5, "torch::Tensor x, double")).path)
    assert torch.ops.edited.scale(x).tolist() == [5, 5, 5]


def test_operators_of_others_are_not_overwritten(library: Library, scratch: Path) -> None:
    others = torch.library.Library("taken", "FRAGMENT")
    others.define("scale(Tensor x) -> Tensor")
    with pytest.raises(CustomOpLibraryError, match="taken::scale already exists in torch"):
        load_library(build(write(scratch, "taken", 2)).path)


def test_a_second_library_is_a_warning(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    load_library(library("relu_element"))
    load_library(library("faults"))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "neurontools.customop"):
        load_library(library("relu_element"))
    assert caplog.text == ""
    from neurontools.customop.torch_operators import _registry

    _registry.owners.pop("multicore_faults::fault", None)
    with caplog.at_level(logging.WARNING, "neurontools.customop"):
        load_library(library("multicore_faults"))
    assert "is a second custom operator library in this process" in caplog.text


def test_parameters_of_torchs_own_loader_are_ignored_with_a_warning(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    home = SAMPLES / "relu_element"
    with caplog.at_level(logging.WARNING, "neurontools.customop"):
        load(
            "relu_element",
            [home / "relu.cpp"],
            [home / "shape.cpp"],
            extra_ldflags=["-lm"],
            is_python_module=False,
        )
    assert "custom_op.load ignores extra_ldflags, is_python_module" in caplog.text
    with pytest.raises(CustomOpBuildError, match="compute_srcs is a single path"):
        load("x", "relu.cpp", ["shape.cpp"])


def test_an_operator_that_is_not_loaded_is_named() -> None:
    with pytest.raises(CustomOpLibraryError, match="no loaded library has an operator nobody::knows"):
        operation("nobody::knows")


def test_without_torch_one_line_says_how_to_get_it(library: Library) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from neurontools.customop.load import load_library\n"
        "from neurontools.errors import MissingDependencyError\n"
        "try: load_library(sys.argv[1])\n"
        "except MissingDependencyError as error: print(error.message, '|', error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library("faults"))], capture_output=True, text=True, check=True
    )
    assert "torch is not installed | pip install 'neurontools[torch]'" in done.stdout


@pytest.mark.parametrize(
    ("verbose", "rebuilt", "said"),
    [
        (True, True, "compiling\nbuilt lib.so\n"),
        (True, False, "compiling\nup to date: lib.so\n"),
        (False, True, ""),
    ],
)
def test_the_steps_of_a_build_are_shown_on_request(
    verbose: bool,
    rebuilt: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(request: BuildRequest, show: Callable[[str], None] | None) -> SimpleNamespace:
        if show is not None:
            show("compiling")
        return SimpleNamespace(path=f"{request.name}.so", rebuilt=rebuilt, warnings=())

    monkeypatch.setattr(load_module, "build", build)
    monkeypatch.setattr(load_module, "load_library", lambda path: path)
    assert load("lib", ["k.cpp"], ["s.cpp"], verbose=verbose) == "lib.so"
    assert capsys.readouterr().err == said
