"""The samples of fixtures/customops against torch: values, gradients, odd shapes, and what they refuse.

The samples' models train on the simulated device: built, run and read as a user does it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  the customary name

from neurontools.customop.building.build import build
from neurontools.customop.building.request import load_project
from neurontools.customop.building.toolchain import find_compiler, user_flags
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.load import load_library
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import read_package

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"
NEW = ("layernorm", "rmsnorm", "topk", "giou", "zeros")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
EPSILON = 1e-5
FEW = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=2)
WIDTHS = st.sampled_from([1, 3, 8, 37, 1024, 1025, 2500])


@pytest.fixture
def libraries() -> dict[str, Path]:
    """The samples' libraries as their projects build them."""
    requests = [load_project(SAMPLES / name / "customop.yaml").request for name in NEW]
    return {request.name: build(replace(request, directory=None)).path for request in requests}


@pytest.fixture
def operators(libraries: dict[str, Path]) -> Any:
    """The module of torch functions, with all libraries loaded."""
    for path in libraries.values():
        load_library(path)
    spec = importlib.util.spec_from_file_location("operators", SAMPLES / "operators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_gradients(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> None:
    """Compare values and the gradients of all inputs; torch computes in double precision."""
    mine = [x.clone().requires_grad_() for x in inputs]
    exact = [x.double().requires_grad_() for x in inputs]
    result, wanted = ours(*mine), theirs(*exact)
    torch.testing.assert_close(result, wanted.float(), rtol=1e-4, atol=1e-4)
    direction = torch.randn(result.shape, generator=torch.Generator().manual_seed(5))
    result.backward(direction)
    wanted.backward(direction.double())
    for got, right in zip(mine, exact, strict=True):
        assert got.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(got.grad, right.grad.float(), rtol=1e-3, atol=1e-3)


def numbers(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


@FEW
@given(SHAPES, WIDTHS, st.integers(0, 1000))
def test_layernorm(operators: Any, sizes: list[int], width: int, seed: int) -> None:
    if width == 1:
        width = 2  # the variance of one number is zero, and its gradient is rounding only
    x = numbers(*sizes, width, seed=seed) * 3 + 1
    same_gradients(
        lambda x, w, b: operators.LayerNormFunction.apply(x, w, b, EPSILON),
        lambda x, w, b: F.layer_norm(x, (width,), w, b, EPSILON),
        x,
        numbers(width, seed=seed + 1),
        numbers(width, seed=seed + 2),
    )


def test_layernorm_keeps_a_small_variance_beside_a_large_mean(operators: Any) -> None:
    x = torch.randn(5, 300) * 0.01 + 100
    ours = operators.LayerNorm(300)(x)
    wanted = F.layer_norm(x.double(), (300,), eps=EPSILON).float()
    torch.testing.assert_close(ours, wanted, rtol=2e-2, atol=2e-2)


@FEW
@given(SHAPES, WIDTHS, st.integers(0, 1000))
def test_rmsnorm(operators: Any, sizes: list[int], width: int, seed: int) -> None:
    same_gradients(
        lambda x, w: operators.RMSNormFunction.apply(x, w, EPSILON),
        lambda x, w: F.rms_norm(x, (width,), w, EPSILON),
        numbers(*sizes, width, seed=seed),
        numbers(width, seed=seed + 1),
    )


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("rows", [0, 300, 1100])
def test_norms_of_many_rows_and_of_none(operators: Any, name: str, rows: int) -> None:
    norm = getattr(operators, name)(6)
    theirs = getattr(torch.nn, name)(6, eps=norm.eps)
    x = numbers(rows, 6)
    ours = norm(x)
    torch.testing.assert_close(ours, theirs(x))
    ours.square().sum().backward()
    theirs(x).square().sum().backward()
    torch.testing.assert_close(norm.weight.grad, theirs.weight.grad, rtol=1e-3, atol=1e-3)


@FEW
@given(SHAPES, WIDTHS, st.data())
def test_topk(operators: Any, sizes: list[int], width: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(width, 20)))
    x = torch.randperm(
        torch.Size([*sizes, width]).numel(), generator=torch.Generator().manual_seed(k)
    ).float()
    x = x.view(*sizes, width)
    values, indices = operators.TopK.apply(x, k)
    wanted = torch.topk(x, k)
    assert torch.equal(values, wanted.values)
    assert torch.equal(indices, wanted.indices)
    same_gradients(lambda x: operators.TopK.apply(x, k)[0], lambda x: torch.topk(x, k).values, x)


def test_topk_of_equal_numbers_and_of_numbers_that_are_none(operators: Any) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, 3.0, 3.0, -inf], [2.0, inf, nan, -1.0]])
    values, indices = operators.TopK.apply(x, 3)
    assert torch.equal(values.nan_to_num(nan=7.5), torch.topk(x, 3).values.nan_to_num(nan=7.5))
    assert indices.tolist() == [[1, 2, 0], [2, 1, 0]]


def test_topk_takes_as_many_as_fit_and_no_more(operators: Any) -> None:
    x = torch.randperm(3000).float()
    values, indices = operators.TopK.apply(x, 1024)
    assert torch.equal(values, torch.topk(x, 1024).values)
    assert torch.equal(indices, torch.topk(x, 1024).indices)
    with pytest.raises(NeuronCustomOpError, match="k is 1025, at most 1024 fit into TCM"):
        operators.TopK.apply(x, 1025)
    for k in (0, 3001, 1.5):
        with pytest.raises(NeuronCustomOpError, match=r"k is .*, a row has 3000 numbers"):
            operators.TopK.apply(x, k)


def giou(boxes: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The definition, in torch."""

    def area(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return (high - low).clamp(min=0).prod(dim=1)

    low, high = boxes[:, :2], boxes[:, 2:]
    target_low, target_high = targets[:, :2], targets[:, 2:]
    common = area(torch.maximum(low, target_low), torch.minimum(high, target_high))
    hull = area(torch.minimum(low, target_low), torch.maximum(high, target_high))
    whole = area(low, high) + area(target_low, target_high) - common
    return common / (whole + 1e-7) - (hull - whole) / (hull + 1e-7)


def boxes_of(count: int, seed: int) -> torch.Tensor:
    corners = torch.rand((count, 2, 2), generator=torch.Generator().manual_seed(seed)) * 4
    sides = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    return (corners.sort(dim=1).values + sides).reshape(count, 4)


@FEW
@given(st.sampled_from([0, 1, 7, 8, 257, 3001]), st.integers(0, 1000))
def test_giou(operators: Any, count: int, seed: int) -> None:
    targets = boxes_of(count, seed + 1)
    same_gradients(
        lambda boxes: operators.GIoU.apply(boxes, targets),
        lambda boxes: giou(boxes, targets.double()),
        boxes_of(count, seed),
    )


def test_giou_of_the_same_and_of_distant_boxes(operators: Any) -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    targets = torch.tensor([[0.0, 0.0, 2.0, 1.0], [9.0, 9.0, 10.0, 10.0], [1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(operators.GIoU.apply(boxes, targets), torch.tensor([1.0, -0.98, 0.0]))
    with pytest.raises(NeuronCustomOpError, match="every box needs one target"):
        operators.GIoU.apply(boxes, targets[:2])


@FEW
@given(st.lists(st.integers(0, 40), max_size=3), st.floats(0, 1), st.integers(0, 1000))
def test_zero_compression_gives_the_same_bits_back(
    operators: Any, sizes: list[int], share: float, seed: int
) -> None:
    x = F.dropout(numbers(*sizes, seed=seed), share)
    packed = operators.compress_zeros(x)
    kept = int((x.reshape(-1).view(torch.int32) != 0).sum())
    assert packed.numel() == kept + -(-x.numel() // 16)
    back = operators.expand_zeros(packed, sizes)
    assert torch.equal(back.reshape(-1).view(torch.int32), x.reshape(-1).view(torch.int32))


def test_zero_compression_of_special_numbers_and_of_damaged_ones(operators: Any) -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45])
    packed = operators.compress_zeros(x)
    assert packed.numel() == 5
    assert torch.equal(operators.expand_zeros(packed, [5]).view(torch.int32), x.view(torch.int32))
    with pytest.raises(NeuronCustomOpError, match="not zero-compressed"):
        operators.expand_zeros(torch.full((9,), -1.0), [5])
    with pytest.raises(NeuronCustomOpError, match="it ends early"):
        operators.expand_zeros(packed[:3], [5])


@pytest.mark.parametrize("name", NEW)
def test_no_kernel_leaves_a_warning_or_a_byte_behind(
    operators: Any, libraries: dict[str, Path], name: str
) -> None:
    x, g, w = numbers(13, 4), numbers(13, 4), numbers(4)
    arguments: dict[str, tuple[object, ...]] = {
        "layernorm": (x, 1e-5),
        "rmsnorm": (x, 1e-6),
        "topk": (x, 2.0),
        "giou": (x, g),
        "zeros": (w,),
    }
    contents = read_package(libraries[name])
    executor = new_executor(contents)
    try:
        _, completed = execute(CustomOperator(contents, 0, executor), arguments[name])
        assert completed.warnings == ()
        assert completed.modelled_ns > 0
    finally:
        executor.close()


@pytest.mark.parametrize("name", NEW)
def test_every_warning_that_a_compiler_can_give_is_heeded(name: str) -> None:
    request = load_project(SAMPLES / name / "customop.yaml").request
    compiler = find_compiler()
    words = [*compiler.command, *user_flags(compiler), *STRICT, "-fsyntax-only"]
    done = subprocess.run(
        [*words, *map(str, (*request.compute, *request.shape))], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


PROJECTS = (
    *(f"{name}/customop.yaml" for name in NEW),
    *(f"relu_{style}/customop.yaml" for style in ("element", "tcm", "multicore")),
    "mlp.yaml",
    "transformer.yaml",
)


@pytest.mark.parametrize("name", PROJECTS)
def test_every_sample_has_a_project(name: str) -> None:
    request = load_project(SAMPLES / name).request
    assert all(source.is_file() for source in (*request.compute, *request.shape))


@pytest.mark.parametrize(("model", "steps", "below"), [("mlp", 40, 0.6), ("transformer", 60, 1.0)])
def test_a_model_with_custom_operators_learns(
    tool: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    torch_python: str,
    model: str,
    steps: int,
    below: float,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    project = ("--project", str(SAMPLES / f"{model}.yaml"), "--no-compile-commands", "-o", str(home))
    built = tool("neuron-customop", "build", *project)
    assert built.returncode == 0, built.stderr
    script = ("--", torch_python, str(SAMPLES / f"train_{model}.py"), "--library", f"lib{model}.so")
    run = tool("neuron-run", *script, "--steps", str(steps))
    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", run.stdout)]
    assert len(losses) == 2
    assert losses[0] > 2.0
    assert losses[1] < below
