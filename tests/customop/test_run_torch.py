"""Where an operator runs in torch: opcheck, compile, export, transforms, autograd, every kind of input."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.customop.building.build import build
from neurontools.customop.building.request import load_project
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.load import load, load_library

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"
BOXES = ((0.0, 0.0, 1.0, 1.0), (1.0, 1.0, 3.0, 3.0))


def load_sample(name: str) -> Any:
    """Load a sample as its project builds it, and return its operators."""
    request = load_project(SAMPLES / name / "customop.yaml").request
    load_library(build(replace(request, directory=None)).path)
    return getattr(torch.ops, name)


def sample_calls(name: str) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return every operator of a sample with inputs that it takes."""
    ops = load_sample(name)
    x, g, w, b = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8), torch.randn(8)
    boxes = torch.tensor(BOXES)
    match name:
        case "layernorm":
            statistics = ops.statistics(x, 1e-5)
            return [
                (ops.statistics, (x, 1e-5)),
                (ops.forward, (x, w, b, statistics)),
                (ops.backward_input, (g, x, w, statistics)),
                (ops.backward_parameters, (g, x, statistics)),
            ]
        case "rmsnorm":
            scale = ops.scale(x, 1e-6)
            return [
                (ops.scale, (x, 1e-6)),
                (ops.forward, (x, w, scale)),
                (ops.backward_input, (g, x, w, scale)),
                (ops.backward_weight, (g, x, scale)),
            ]
        case "topk":
            positions = ops.forward(x, 3.0)[:, 1]
            return [(ops.forward, (x, 3.0)), (ops.backward, (torch.randn(4, 3), positions, x))]
        case "giou":
            return [
                (ops.forward, (boxes, boxes + 0.5)),
                (ops.backward, (torch.randn(2), boxes, boxes + 0.5)),
            ]
        case "zeros":
            return [(ops.compress, (x,)), (ops.expand, (ops.compress(x), 32.0))]
    return [(ops.forward, (x,)), (ops.backward, (g, x))]


@pytest.fixture
def relu(library: Callable[[str], Path]) -> Any:
    """The operators of the sample relu_tcm."""
    load_library(library("relu_tcm"))
    return torch.ops.relu_tcm


class Relu(torch.autograd.Function):
    """relu with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.ops.relu_tcm.forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ops.relu_tcm.backward(gradient, ctx.saved_tensors[0])


@pytest.mark.parametrize(
    "name",
    ["relu_element", "relu_tcm", "relu_multicore", "layernorm", "rmsnorm", "topk", "giou", "zeros"],
)
def test_every_operator_of_the_samples_passes_all_of_opcheck(name: str) -> None:
    for op, arguments in sample_calls(name):
        for wants_gradient in (False, True):
            given = tuple(
                value.clone().requires_grad_()
                if wants_gradient and isinstance(value, torch.Tensor)
                else value
                for value in arguments
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, about operators without a gradient of their own
                torch.library.opcheck(op, given)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own doing
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_keep_the_operator_and_its_gradient(relu: Any, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: Relu.apply(x) + 1, backend=backend, fullgraph=True)
    x = torch.randn(4, 8, requires_grad=True)
    y = compiled(x)
    assert torch.equal(y, torch.relu(x) + 1)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, (x > 0).float())


def test_each_shape_is_compiled_by_itself_even_when_dynamic_shapes_are_asked_for(relu: Any) -> None:
    from torch._dynamo import testing

    torch._dynamo.reset()
    counter = testing.CompileCounter()
    compiled = torch.compile(lambda x: relu.forward(x) + 1, backend=counter, fullgraph=True, dynamic=True)
    for rows in (3, 4, 5, 4, 3):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), torch.relu(x) + 1)
    assert counter.frame_count == 3


def test_a_dimension_that_must_stay_dynamic_is_refused_by_name(relu: Any) -> None:
    x = torch.randn(4, 8)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 0)
    violated = torch.fx.experimental.symbolic_shapes.ConstraintViolationError
    with pytest.raises(violated, match=r"specialized it to be a constant \(4\)"):
        torch.compile(lambda x: relu.forward(x) + 1, backend="eager")(x)
    dims = ({0: torch.export.Dim.DYNAMIC},)
    with pytest.raises(torch._dynamo.exc.UserError, match=r"specialized it to be a constant \(4\)"):
        torch.export.export(Model(), (torch.randn(4, 8),), dynamic_shapes=dims)


def test_after_the_limit_of_compiles_a_model_runs_uncompiled(relu: Any) -> None:
    from torch._dynamo import testing

    torch._dynamo.reset()
    counter = testing.CompileCounter()
    compiled = torch.compile(lambda x: relu.forward(x) + 1, backend=counter, dynamic=True)
    with torch._dynamo.config.patch(recompile_limit=3):
        for rows in range(2, 8):
            x = torch.randn(rows, 8)
            assert torch.equal(compiled(x), torch.relu(x) + 1)
    assert counter.frame_count == 3
    torch._dynamo.reset()
    whole = torch.compile(lambda x: relu.forward(x) + 1, backend="eager", fullgraph=True)
    with (
        torch._dynamo.config.patch(recompile_limit=1),
        pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit),
    ):
        [whole(torch.randn(rows, 8)) for rows in (2, 3, 4)]


def test_a_size_that_values_decide_breaks_a_compiled_graph(relu: Any) -> None:
    def selected(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = relu.forward(x.nonzero().float())
        return result

    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        # Behind the break torch would look into what calls the worker, and keep the addresses of the first call.
        compiled = torch.compile(selected, backend="eager")
        for _ in range(3):
            assert torch.equal(compiled(x), selected(x))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.UserError, match="data-dependent"):
            torch.compile(selected, backend="eager", fullgraph=True)(x)


SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor shape(torch::Tensor x) { return torch::zeros({x.size(0) * FACTOR}, torch::kFloat); }
NEURON_LIBRARY(growing, m) { m.def("grow", &shape, "grow"); }
"""
KERNEL = """#include <torch/torch.h>
torch::Tensor grow(torch::Tensor x) { return torch::ones({x.size(0) * FACTOR}, torch::kFloat); }
"""


def test_compiled_models_follow_a_library_that_was_built_anew(scratch: Path) -> None:
    def build_and_load(factor: int) -> None:
        for name, text in (("shape", SHAPE), ("kernel", KERNEL)):
            (scratch / f"{name}.cpp").write_text(text.replace("FACTOR", str(factor)))
        load("growing", [scratch / "kernel.cpp"], [scratch / "shape.cpp"], scratch, ["-O0"])

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: torch.ops.growing.grow(x) + x.new_ones(1), backend="eager", fullgraph=True
    )
    sized = torch.compile(lambda x: torch.ops.growing.grow(x).shape[0], backend="eager", fullgraph=True)
    for factor in (2, 3):
        build_and_load(factor)
        assert compiled(torch.zeros(4)).tolist() == [2.0] * 4 * factor
        assert sized(torch.zeros(4)) == 4 * factor
        assert torch.ops.growing.grow(torch.zeros(4, device="meta")).shape == (4 * factor,)


class Model(torch.nn.Module):
    """One operator and an addition."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.relu_tcm.forward(x) + 1


def test_an_exported_shape_is_static(relu: Any, tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert not program.range_constraints
    torch.export.save(program, tmp_path / "model.pt2")
    assert torch.equal(torch.export.load(tmp_path / "model.pt2").module()(x), torch.relu(x) + 1)
    with pytest.raises(torch._dynamo.exc.UserError, match=r"specialized it to be a constant \(4\)"):
        torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_a_shape_that_depends_on_values_cannot_be_exported(relu: Any) -> None:
    class Selected(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.relu_tcm.forward(x[torch.nonzero(x[:, 0])[:, 0]])

    x = torch.randn(4, 8)
    assert torch.equal(Selected()(x), torch.relu(x[x[:, 0] != 0]))
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Selected(), (x,))


def test_a_shape_function_that_reads_values_is_an_error_on_every_kind_of_tensor(
    library: Callable[[str], Path],
) -> None:
    load_library(library("faults"))
    for device in ("cpu", "meta"):
        with pytest.raises(NeuronCustomOpError, match="must not touch"):
            torch.ops.faults.bad_shape(torch.ones(3, device=device), 0)


def test_transforms_of_torch_func(relu: Any) -> None:
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about a batching rule that it replaces by a loop
        assert torch.equal(torch.vmap(relu.forward)(x), torch.relu(x))
    assert torch.equal(torch.func.functionalize(relu.forward)(x), torch.relu(x))


def test_torchscript_keeps_the_operator(relu: Any, tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in (torch.jit.script(Model()), torch.jit.trace(Model(), (x,))):
            module.save(str(tmp_path / "model.pt"))
            assert torch.equal(torch.jit.load(str(tmp_path / "model.pt"))(x), torch.relu(x) + 1)


def test_an_operator_has_no_gradient_of_its_own_and_torch_says_so(relu: Any) -> None:
    x = torch.randn(3, requires_grad=True)
    y = relu.forward(x)
    assert y.requires_grad
    with pytest.warns(UserWarning, match="relu_tcm::forward: an autograd kernel was not registered"):
        y.sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert not relu.forward(x).requires_grad


def test_a_gradient_may_be_registered_with_torch(scratch: Path) -> None:
    for name in ("relu.cpp", "shape.cpp"):
        source = (
            (SAMPLES / "relu_tcm" / name)
            .read_text()
            .replace("NEURON_LIBRARY(relu_tcm", "NEURON_LIBRARY(graded")
        )
        (scratch / name).write_text(source)
    load("graded", [scratch / "relu.cpp"], [scratch / "shape.cpp"], scratch)
    ops = torch.ops.graded

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    torch.library.register_autograd(
        "graded::forward",
        lambda ctx, g: ops.backward(g.contiguous(), *ctx.saved_tensors),
        setup_context=remember,
    )
    x = torch.randn(3, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.forward(x).sum(), x)
    assert torch.equal(gradient, (x > 0).float())
    torch.library.opcheck(ops.forward, (x,))


def test_activation_checkpoints_run_the_kernel_again(relu: Any) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(Relu.apply, x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, (x > 0).float())


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[::2, ::3],
    "expanded": lambda x: x[:1].expand(5, -1),
    "offset": lambda x: x[1:, 1:],
    "0-dim": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "channels last": lambda x: x.view(1, 2, 4, 4).to(memory_format=torch.channels_last),
    "negative bit": lambda x: torch.view_as_complex(x.view(-1, 2)).conj().imag,
    "parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("kind", VIEWS)
def test_any_view_arrives_and_the_result_is_dense(relu: Any, kind: str) -> None:
    x = VIEWS[kind](torch.randn(4, 8))
    y = relu.forward(x)
    assert torch.equal(y, torch.relu(x))
    assert y.is_contiguous()
    assert not y.is_neg()


def test_inference_mode_makes_inference_tensors(relu: Any) -> None:
    with torch.inference_mode():
        x = torch.randn(3)
        y = relu.forward(x)
    assert y.is_inference()
    assert torch.equal(y, torch.relu(x))


def test_autocast_leaves_an_operator_the_types_that_it_is_called_with(relu: Any) -> None:
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relu.forward(x).dtype is torch.float32
        narrow = torch.nn.functional.linear(x, weight)
        assert narrow.dtype is torch.bfloat16
        with pytest.raises(NeuronCustomOpError, match="on a tensor of dtype BFloat16"):
            relu.forward(narrow)


def test_layouts_that_the_device_does_not_have_are_refused_by_torch(relu: Any) -> None:
    with pytest.raises(NotImplementedError, match="SparseCPU"):
        relu.forward(torch.eye(3).to_sparse())
