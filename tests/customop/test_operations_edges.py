"""Operations at the edges of every dtype against torch: all 8- and 16-bit values, extremes, infinities, NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neurontools.customop.errors import NeuronCustomOpError

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
SMALL_FLOATS = (torch.float16, torch.bfloat16)
DTYPES = (*INTEGERS, torch.float32, *SMALL_FLOATS)
UNARY = ("abs", "ceil", "floor", "sin", "cos", "tan", "log", "log2", "log10", "exp")
NAN, INF = float("nan"), float("inf")
FLOAT_EDGES = (0.0, -0.0, 0.5, 2.5, -2.5, 1e-45, 1.1754944e-38, 3.4028235e38, 88.7, 88.8, -104.0, 1e22)
FEW = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

Call = Callable[..., torch.Tensor]


def values_of(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a dtype of 8 or 16 bits; of the others extremes and random bits."""
    if dtype in SMALL_FLOATS:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    if dtype.itemsize < 4:
        limits = torch.iinfo(dtype)
        return torch.arange(limits.min, limits.max + 1).to(dtype)
    bits = torch.randint(-(2**31), 2**31 - 1, (9000,), generator=torch.Generator().manual_seed(1))
    if dtype == torch.int32:
        return torch.cat([torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 46341]), bits]).to(dtype)
    edges = torch.tensor([*FLOAT_EDGES, *(-x for x in FLOAT_EDGES), INF, -INF, NAN])
    return torch.cat([edges, bits.to(torch.int32).view(dtype)])


def pairs_of(a: torch.dtype, b: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left, right = values_of(a), values_of(b)
    picks = [torch.randint(0, len(x), (1000,), generator=generator) for x in (left, right)]
    # The first values meet too: those are the extremes.
    return torch.cat([left[picks[0]], left[:12]]), torch.cat([right[picks[1]], right[:12]])


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_every_value(call: Call, dtype: torch.dtype) -> None:
    x = values_of(dtype)
    for which, name in enumerate(UNARY):
        same(call("unary", x, which, 0.0, 0.0), getattr(torch, name)(x))
    if dtype in INTEGERS:
        same(call("unary", x, 11, 0.0, 0.0), ~x)


BOUNDS = ((-3.5, 2.5), (5.0, -5.0), (-INF, INF), (NAN, 1.0), (0.0, NAN), (3e4, 6e4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_clamp_of_every_value(call: Call, dtype: torch.dtype, low: float, high: float) -> None:
    x = values_of(dtype)
    same(call("unary", x, 10, low, high), torch.clamp(x, low, high))


@FEW
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 4), st.integers(0, 9))
@example(torch.float16, torch.int8, 4, 0)
@example(torch.int32, torch.int32, 4, 0)
def test_functions_of_two_tensors(call: Call, a: torch.dtype, b: torch.dtype, which: int, seed: int) -> None:
    x, y = pairs_of(a, b, seed)
    name = ("add", "sub", "mul", "div", "pow")[which]
    same(call("binary", x, y, which, 1), getattr(torch, name)(x, y))


NUMBERS = (0, 1, -1, 2, -3, 7, 100, 255, 256, -129, 40000, 0.0, -0.0, 1.5, -0.25, 1e-3, 65504.0, INF, NAN)
SCALAR = ("add", "sub", "mul", "div", "pow", "rpow", "bitwise_and", "bitwise_or")


def of_torch(name: str, x: torch.Tensor, number: float) -> torch.Tensor | None:
    """What torch says, None when it refuses."""
    try:
        result = torch.pow(number, x) if name == "rpow" else getattr(torch, name)(x, number)
    except RuntimeError:
        return None
    assert isinstance(result, torch.Tensor)
    return result


@FEW
@given(st.sampled_from(DTYPES), st.sampled_from(NUMBERS), st.integers(0, len(SCALAR) - 1))
@example(torch.bfloat16, 40000, 0)
@example(torch.bfloat16, 65504.0, 1)
@example(torch.float16, 40000, 5)
@example(torch.int8, 255, 5)
@example(torch.uint8, 256, 4)
@example(torch.int16, 40000, 4)
@example(torch.float32, 0, 4)
@example(torch.float16, 1, 5)
@example(torch.uint8, -3, 0)
@example(torch.uint8, -129, 6)
def test_functions_of_a_tensor_and_a_number(
    call: Call, dtype: torch.dtype, number: float, which: int
) -> None:
    name = SCALAR[which]
    if name.startswith("bitwise") and (dtype not in INTEGERS or isinstance(number, float)):
        return
    x = values_of(dtype)
    theirs = of_torch(name, x, number)
    if theirs is None:
        with pytest.raises(NeuronCustomOpError) as caught:
            call("with_scalar", x, number, which)
        assert caught.value.kind == "domain"
    else:
        same(call("with_scalar", x, number, which), theirs)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_a_number_that_a_dtype_cannot_hold_is_refused(call: Call, dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    with pytest.raises(NeuronCustomOpError, match=r"clamp: the number 1e\+39 does not fit into dtype"):
        call("unary", x, 10, 0.0, 1e39)
    with pytest.raises(NeuronCustomOpError, match=r"pow: the number 1e\+39 does not fit into dtype"):
        call("with_scalar", x, 1e39, 4)


OUT_FLOAT = (
    "ceil(x)", "floor(x)", "sin(x)", "cos(x)", "tan(x)", "log(x)", "log2(x)", "log10(x)",
    "add(x, y, alpha=2)", "sub(x, y, alpha=2)", "add(x, 3, alpha=2)", "mul(x, 3)", "div(x, 3)", "pow(x, y)", "pow(2, y)",
)  # fmt: skip
OUT_INTEGER = {
    12: "x",
    13: "x",
    20: "x + 2 * y",
    21: "x - 2 * y",
    22: "x + 6",
    23: "x * 3",
    27: "x & 6",
    28: "x | 6",
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_function_that_writes_into_a_tensor(call: Call, dtype: torch.dtype) -> None:
    # Not too close to where 16-bit rounding of an intermediate result would show.
    x = torch.tensor([0.5, 1.25, 2.0, 3.0, 5.0, 9.0]).to(dtype)
    y = torch.tensor([1.0, 0.0, 2.0, 3.0, 1.0, 2.0]).to(dtype)
    if dtype.is_floating_point:
        for which, text in enumerate(OUT_FLOAT, start=12):
            same(call("into", x, y, which), eval(f"torch.{text}"))
    else:
        for which, text in OUT_INTEGER.items():
            same(call("into", x, y, which), eval(text))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filling(call: Call, dtype: torch.dtype) -> None:
    like = torch.empty((3, 5), dtype=dtype)
    for value in (7, 2.75, 0):
        same(call("filled", like, value), torch.full_like(like, value))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accessors_carry_every_element_type(call: Call, dtype: torch.dtype) -> None:
    x = values_of(dtype)[:2000].reshape(-1, 8)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for way in ("elements", "tcm"):
        assert torch.equal(call(way, x).view(integers), x.view(integers))


@pytest.mark.parametrize("rank", range(1, 9))
def test_element_accessors_of_every_rank(call: Call, rank: int) -> None:
    sizes = (2, 3, 1, 2, 3, 1, 2, 2)[:rank]
    x = torch.randn(sizes)
    assert torch.equal(call("elements", x), x)


def test_whole_and_real_numbers_of_one_value_are_different_arguments(call: Call) -> None:
    x = torch.tensor([1, 2], dtype=torch.int32)
    for number in (1, 1.0, 0, -0.0, 0.0):
        same(call("with_scalar", x, number, 2), x * number)
