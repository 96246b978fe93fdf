"""Tensor operations, factories and 16-bit types of the headers against torch itself.

The headers compile without a warning in programs that ask for all of them, by every compiler that is here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools import customop
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import dtype_of

if TYPE_CHECKING:
    from neurontools.customop.operation import CustomOperator

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = INTEGERS + FLOATS
FEW = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

Call = Callable[..., torch.Tensor]


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES, count: int = 1) -> list[torch.Tensor]:
    """Tensors of one shape; small numbers, so that most functions stay finite."""
    sizes = draw(st.lists(st.integers(0, 5), max_size=3))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        dtype = draw(st.sampled_from(dtypes))
        if dtype.is_floating_point:
            made.append((torch.randn(sizes, generator=generator) * 4).to(dtype))
        else:
            low = 0 if dtype == torch.uint8 else -9
            made.append(torch.randint(low, 10, sizes, generator=generator).to(dtype))
    return made


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, equal_nan=True)


UNARY = ("abs", "ceil", "floor", "sin", "cos", "tan", "log", "log2", "log10", "exp")


@FEW
@given(tensors(), st.integers(0, len(UNARY) - 1))
def test_functions_of_one_tensor(call: Call, made: list[torch.Tensor], which: int) -> None:
    same(call("unary", made[0], which, 0.0, 0.0), getattr(torch, UNARY[which])(made[0]))


@FEW
@given(tensors(), st.floats(-5, 5), st.floats(-5, 5))
def test_clamp(call: Call, made: list[torch.Tensor], low: float, high: float) -> None:
    same(call("unary", made[0], 10, low, high), torch.clamp(made[0], low, high))


BINARY = ("add", "sub", "mul", "div")


@FEW
@given(tensors(count=2), st.integers(0, len(BINARY) - 1))
def test_functions_of_two_tensors_promote_as_torch(call: Call, made: list[torch.Tensor], which: int) -> None:
    same(call("binary", *made, which, 1), getattr(torch, BINARY[which])(*made))


@FEW
@given(tensors(FLOATS, count=2), st.sampled_from([-2, 3, 0.5]), st.integers(0, 1))
def test_add_and_sub_scale_the_second_tensor(
    call: Call, made: list[torch.Tensor], alpha: float, which: int
) -> None:
    same(call("binary", *made, which, alpha), getattr(torch, BINARY[which])(*made, alpha=alpha))


@FEW
@given(tensors(INTEGERS, count=2), st.sampled_from(["bitwise_and", "bitwise_or"]))
def test_bitwise_functions(call: Call, made: list[torch.Tensor], name: str) -> None:
    same(call("binary", *made, 5 if name == "bitwise_and" else 6, 1), getattr(torch, name)(*made))
    same(call("unary", made[0], 11, 0.0, 0.0), torch.bitwise_not(made[0]))


SCALAR = ("add", "sub", "mul", "div")


@FEW
@given(tensors(), st.sampled_from([-3, 2, 7, 1.5, -0.25]), st.integers(0, len(SCALAR) - 1))
def test_functions_of_a_tensor_and_a_number(
    call: Call, made: list[torch.Tensor], number: float, which: int
) -> None:
    if made[0].dtype == torch.uint8 and number == -3:
        number = 3  # torch has its own rules for a negative number and uint8
    same(call("with_scalar", made[0], number, which), getattr(torch, SCALAR[which])(made[0], number))


@FEW
@given(tensors(), st.sampled_from([0, 1, 2, 3]))
def test_powers(call: Call, made: list[torch.Tensor], exponent: int) -> None:
    same(call("with_scalar", made[0], exponent, 4), torch.pow(made[0], exponent))
    exponents = made[0].clamp(0, 5)
    same(call("with_scalar", exponents, 2, 5), torch.pow(2, exponents))
    same(call("binary", made[0], exponents, 4, 1), torch.pow(made[0], exponents))


def test_integers_wrap(call: Call) -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 70000], dtype=torch.int32)
    same(call("binary", x, x, 0, 1), x + x)
    same(call("binary", x, x, 2, 1), x * x)
    same(call("with_scalar", x, 5, 4), torch.pow(x, 5))


def test_results_go_into_a_tensor_of_the_caller(call: Call) -> None:
    x = torch.tensor([-3, 0, 2, 5], dtype=torch.int32)
    y = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    wanted = [x.abs(), x + y, x - 3, x * y, x.clamp(1, 2), x * x, x & 6, x | y, ~x]
    for which, theirs in enumerate(wanted):
        same(call("into", x, y, which), theirs)
    same(call("into", x, y, 11), ~x)
    same(call("into", x.float(), y.float(), 9), x / y)


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("into", (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32), 9), "dtype"),
        ("into", (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32), 10), "dtype"),
        ("binary", (torch.ones(2), torch.ones(3), 0, 1), "shape"),
        ("binary", (torch.ones(2), torch.ones(2), 5, 1), "dtype"),
        ("binary", (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32), 0, 0.5), "dtype"),
        ("with_scalar", (torch.ones(2, dtype=torch.int32), -2, 4), "domain"),
    ],
)
def test_what_torch_refuses_is_refused(
    call: Call, name: str, arguments: tuple[object, ...], kind: str
) -> None:
    with pytest.raises(NeuronCustomOpError) as caught:
        call(name, *arguments)
    assert caught.value.kind == kind


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factories(call: Call, dtype: torch.dtype) -> None:
    like = torch.empty((3, 5), dtype=dtype)
    wanted = [
        torch.zeros_like(like),
        torch.ones_like(like),
        torch.full_like(like, 7),
        torch.eye(3, 5, dtype=dtype),
    ]
    for which, theirs in enumerate(wanted):
        same(call("made", like, which, 7), theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_streams_carry_every_element_type(call: Call, dtype: torch.dtype) -> None:
    x = torch.arange(3000).reshape(30, 100).to(dtype)
    assert torch.equal(call("stream", x), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_types_round_as_torch_does(call: Call, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = call("as_type", every, torch.zeros(0))
    assert torch.equal(wide.nan_to_num(nan=1234.5), every.float().nan_to_num(nan=1234.5))
    bits = torch.randint(-(2**31), 2**31 - 1, (20000,), generator=torch.Generator().manual_seed(1))
    numbers = torch.cat(
        [bits.to(torch.int32).view(torch.float32), torch.randn(20000), torch.randn(20000) * 1e-6]
    )
    narrow = call("as_type", numbers, torch.zeros(0, dtype=dtype))
    assert torch.equal(narrow.nan_to_num(nan=1.0), numbers.to(dtype).nan_to_num(nan=1.0))


def test_shapes_of_operations_are_known_without_data(operation: Callable[[str], CustomOperator]) -> None:
    from neurontools.customop.marshalling import infer

    shape = infer(operation("operations::with_scalar"), (torch.zeros(2, 3, dtype=torch.int8), 0.5, 2))
    assert (shape.sizes, dtype_of(shape.dtype)) == ((2, 3), torch.float32)


INCLUDE = Path(next(iter(customop.__path__))) / "include"
KERNELS = Path(__file__).parent / "kernels"
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wnon-virtual-dtor",
    "-Werror",
)
COMPILERS = ("g++", "clang++", "aarch64-linux-gnu-g++")
PROGRAM = f"""
#include <ATen/ATen.h>
#include <neuron/neuron-utils.hpp>
#include <torch/extension.h>
#include <torch/torch.h>
#include "torchneuron/register.h"
#include "{KERNELS / "interface" / "compute.cpp"}"
#include "{KERNELS / "interface" / "shape.cpp"}"

at::Tensor twice(at::Tensor x) {{ return at::add(x, x); }}
"""


# A language that only one of two compilers objects to is rare: the other two speak ours and the newest.
@pytest.mark.parametrize(
    ("compiler", "standard"),
    [
        *(("g++", standard) for standard in ("c++14", "c++17", "c++20")),
        *((compiler, standard) for compiler in COMPILERS[1:] for standard in ("c++14", "c++20")),
    ],
)
def test_the_headers_have_no_warnings(compiler: str, standard: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM)
    # Not as system headers, where compilers keep quiet.
    command = [compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only", "-I", str(INCLUDE), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_there_is_a_compiler_to_test_with() -> None:
    assert any(map(shutil.which, COMPILERS))
