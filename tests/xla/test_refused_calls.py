"""An operator that the compiler refuses takes with it only what depends on it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from neurontools.compiler.options import CompileError
from neurontools.xla import api
from neurontools.xla.accelerator import LostValueError
from neurontools.xla.debugging import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator

Values = tuple[list[torch.Tensor], list[torch.Tensor]]
"""What does not depend on a refused operator, and what does."""


def ones(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(*shape).to(device)


def sibling(device: str) -> Values:
    return [torch.arange(4.0).to(device) + 1], [torch.fft.fft(ones(device, 4)).abs()]


def later_sibling(device: str) -> Values:
    z = torch.fft.fft(ones(device, 4))
    return [torch.arange(4.0).to(device) * 3 + z.new_ones(4, dtype=torch.float32)], [z.real * 2]


def complex128(device: str) -> Values:
    x = ones(device, 3)
    return [x * 2], [x.to(torch.complex128).mul(2j).imag]


def float8(device: str) -> Values:
    x = ones(device, 3)
    return [x * 2], [x.to(torch.float8_e4m3fn).float() + 1]


def float8_without_negative_zero(device: str) -> Values:
    x = ones(device, 3)
    return [x * 2], [x.to(torch.float8_e5m2fnuz)]


def two_refused(device: str) -> Values:
    x = ones(device, 4)
    spectrum, small = torch.fft.fft(x), x.to(torch.float8_e5m2fnuz)
    return [x - 1, x.sum()], [spectrum.abs() + small.float(), small, spectrum.imag]


def in_place_around(device: str) -> Values:
    x, y = ones(device, 4), ones(device, 4) * 2
    x.add_(1)
    before = y + x
    x.mul_(3)
    z = torch.fft.fft(x).abs()
    x.sub_(5)
    y.copy_(x)
    y[1:3].mul_(10)
    return [x, y, before, y[1:3]], [z]


def lost_in_place(device: str) -> Values:
    x, y = ones(device, 4) + 1, ones(device, 4)
    before = x * 2
    x.add_(torch.fft.fft(y).abs())
    y.add_(4)
    x.mul_(0.5)
    return [before, y], [x, x * 2, x[:2], x.view(2, 2)]


def lost_input_in_place(device: str) -> Values:
    x = ones(device, 4)
    x[2:].add_(torch.fft.fft(ones(device, 2)).abs())
    return [ones(device, 4) + 1], [x, x[:1]]


def views_of_lost(device: str) -> Values:
    base = ones(device, 2, 2) * 2
    view = base.t()
    base.mul_(torch.fft.fft(ones(device, 2, 2)).abs())
    other = ones(device, 2, 2).t() + 1
    return [other, other.t()[0]], [base, view, view[0]]


def draws_around(device: str) -> Values:
    first = torch.rand(4, device=device)
    z = torch.fft.fft(first)
    second = torch.nn.functional.dropout(first, 0.5)
    lost = torch.nn.functional.dropout(z.abs(), 0.5)
    return [first, second, torch.randn(3, device=device)], [lost]


def several_results(device: str) -> Values:
    x = torch.arange(6.0).reshape(2, 3).to(device)
    values, indices = torch.fft.fft(x).abs().max(dim=1)
    kept, places = x.max(dim=1)
    return [kept, places, *x.split(1)], [values, indices]


def branches(device: str) -> Values:
    x = torch.arange(4.0).to(device)
    left, right = x + 1, x * 2
    left, right = torch.fft.fft(left).abs(), right.exp()
    return [right.log(), x], [left + right, left]


def autograd(device: str) -> Values:
    x, w = torch.arange(1.0, 5).to(device).requires_grad_(), ones(device, 4).requires_grad_()
    (x * 2).pow(2).sum().backward()
    torch.fft.fft(w * 3).abs().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [x.grad, x, w], [w.grad]


def optimizer_of_a_kept_loss(device: str) -> Values:
    weight, bias = nn.Parameter(ones(device, 2, 2)), nn.Parameter(ones(device, 2))
    optimizer = torch.optim.SGD([weight, bias], lr=0.1, momentum=0.5)
    x = ones(device, 3, 2)
    spectrum = torch.fft.fft(x).abs().mean()
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.linear(x, weight, bias).pow(2).sum().backward()
        optimizer.step()
    return [weight, bias], [spectrum]


def optimizer_of_both(optimizer: Callable[..., torch.optim.Optimizer], device: str) -> Values:
    kept, lost = nn.Parameter(ones(device, 3)), nn.Parameter(ones(device, 3))
    also_kept = nn.Parameter(ones(device, 2) * 2)
    steps = optimizer([kept, lost, also_kept], lr=0.1)
    ((kept * 2).sum() + torch.fft.fft(lost).abs().sum() + also_kept.pow(2).sum()).backward()
    steps.step()
    return [kept, also_kept, kept.grad], [lost]  # type: ignore[list-item]


def sgd(device: str) -> Values:
    return optimizer_of_both(torch.optim.SGD, device)


def adam(device: str) -> Values:
    return optimizer_of_both(torch.optim.AdamW, device)


def list_with_results(device: str) -> Values:
    x = ones(device, 3)
    z = torch.fft.fft(x).abs()
    first, second, third = torch._foreach_add([x, z, x * 2], [1.0, 2.5, 3.5])
    norms = torch._foreach_norm([x, z])
    return [first, third, norms[0]], [second, norms[1]]


def list_with_a_lost_number(device: str) -> Values:
    x = ones(device, 3)
    factor = torch.fft.fft(x).abs()[0]
    first, second = torch._foreach_mul([x, x + 1], factor)
    return [x], [first, second]


def recorded_numbers(device: str) -> Values:
    x = torch.arange(3.0).to(device)
    z = (torch.fft.fft(x + 0.5) * 2.5).abs()
    return [(x + 1.5) * 4.5, x.clamp(0.25, 1.25)], [z]


def nothing_else(device: str) -> Values:
    return [], [torch.fft.fft(ones(device, 4)).abs()]


CASES = (
    sibling,
    later_sibling,
    complex128,
    float8,
    float8_without_negative_zero,
    two_refused,
    in_place_around,
    lost_in_place,
    lost_input_in_place,
    views_of_lost,
    draws_around,
    several_results,
    branches,
    autograd,
    optimizer_of_a_kept_loss,
    sgd,
    adam,
    list_with_results,
    list_with_a_lost_number,
    recorded_numbers,
    nothing_else,
)
TRIGGERS = ("step", "lost", "kept")


@pytest.fixture
def strict(machine: InMemoryAccelerator) -> InMemoryAccelerator:
    machine.checks_types = True
    return machine


def check(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("case", CASES)
def test_only_what_depends_on_a_refused_operator_is_lost(
    case: Callable[[str], Values], trigger: str, strict: InMemoryAccelerator
) -> None:
    torch.manual_seed(3)
    for _ in ("learned", "replayed", "replayed again"):
        wanted, _ = case("cpu")
        kept, lost = case("xla")
        if trigger == "kept" and kept:
            check(kept, wanted)
        else:
            with pytest.raises(CompileError, match=r"\[NCC_EVRF0\d\d\].* in aten\."):
                api.mark_step() if trigger == "step" else lost[0].cpu()
        executions = strict.executions
        check(kept, wanted)
        for tensor in lost * 2:
            with pytest.raises(LostValueError, match=r"\[NCC_EVRF0\d\d\].* in aten\."):
                tensor.cpu()
            with pytest.raises(LostValueError, match=r"\[NCC_EVRF0\d\d\]"):
                tensor + 1
        assert strict.executions == executions
        assert (torch.rand(3, device="xla") + 1).cpu().equal(torch.rand(3) + 1)
        del kept, lost
    assert metrics.executed_fallback_ops() == []


def test_the_rest_is_the_graph_of_the_program_without_the_refused_operator(
    strict: InMemoryAccelerator,
) -> None:
    def program(*, whole: bool) -> list[torch.Tensor]:
        x = torch.arange(4.0).to("xla")
        kept = [x * 2.5]
        if whole:
            kept.append((torch.fft.fft(kept[0]).abs() + 7.5).clamp(0.5, 2.5).add_(kept[0]))
        kept += x.clone().add_(3.5).max(dim=0)
        kept += torch._foreach_mul([kept[0], x], [4.5, 5.5])
        return kept

    values = program(whole=False)
    api.mark_step()
    wanted = strict.graphs[-1]
    for executions in (2, 3):
        values = program(whole=True)  # noqa: F841  # kept alive
        with pytest.raises(CompileError):
            api.mark_step()
        assert strict.executions == executions
        assert strict.graphs[-1].digest() == wanted.digest()


@pytest.mark.parametrize("case", CASES)
def test_all_memory_is_free_afterwards(case: Callable[[str], Values], strict: InMemoryAccelerator) -> None:
    for _ in range(2):
        kept, lost = case("xla")
        with pytest.raises(CompileError):
            api.mark_step()
        assert api.engine().memory(0).used_bytes >= sum(t.nbytes for t in kept if t._base is None)
        del kept, lost
        gc.collect()
        assert api.engine().memory(0).used_bytes == 0
    assert metrics.counter_value("CreateXlaTensor") == metrics.counter_value("DestroyXlaTensor")


@pytest.mark.parametrize("times", [1, 2], ids=["learned", "replayed"])
def test_an_execution_of_the_rest_that_fails_loses_all_that_it_computes(
    times: int, strict: InMemoryAccelerator
) -> None:
    for left in reversed(range(times)):
        x = ones("xla", 4)
        y, z = x + 1, torch.fft.fft(x)
        strict.fail_next = KeyboardInterrupt() if not left else None  # type: ignore[assignment]
        with pytest.raises(CompileError if left else KeyboardInterrupt):
            api.mark_step()
    for lost in (y, z):
        with pytest.raises(LostValueError):
            lost.cpu()
    assert (x + 1).tolist() == [2] * 4


def test_a_rest_that_does_not_fit_is_lost_with_its_own_error(strict: InMemoryAccelerator) -> None:
    strict.limit_bytes = 100
    x = ones("xla", 16)
    y, z = x + 1, torch.fft.fft(x)
    with pytest.raises(MemoryError):
        y.cpu()
    for lost in (y, z):
        with pytest.raises(LostValueError):
            lost.cpu()
    assert x.sum().item() == 16


def test_each_operator_that_runs_at_once_fails_alone(strict: InMemoryAccelerator) -> None:
    api.set_eager(True)
    try:
        x = ones("xla", 4) + 1
        with pytest.raises(CompileError, match="_fft_r2c"):
            torch.fft.fft(x)
        assert x.mul_(2).tolist() == [4] * 4
    finally:
        api.set_eager(False)


def test_a_function_that_is_one_graph_fails_as_a_whole(strict: InMemoryAccelerator) -> None:
    x = ones("xla", 4)
    y = x + 1
    function = api.engine().as_graph(
        lambda a: (a + 1, torch.fft.fft(a)), "before", "function", repeatable=True
    )
    for _ in range(3):
        with pytest.raises(CompileError):
            function([x])
        assert y.tolist() == [2] * 4
    z = torch.fft.fft(x)  # noqa: F841  # recorded before the function, whose call ends its graph
    known = api.engine().as_graph(lambda a: (a + 1,), "before", "function", repeatable=True)
    with pytest.raises(CompileError):
        known([x])
    assert known([x])[0].tolist() == [2] * 4


def test_devices_fail_alone(strict: InMemoryAccelerator) -> None:
    here, there = torch.ones(3).to("xla:0") + 1, torch.ones(3).to("xla:1") + 2
    lost = torch.fft.fft(here)
    with pytest.raises(CompileError):
        api.mark_step()
    assert there.tolist() == [3] * 3
    assert here.to("xla:1").add(there).tolist() == [5] * 3
    with pytest.raises(LostValueError, match=r"xla:0 has no value.*_fft_r2c"):
        lost.to("xla:1")


def test_a_lost_tensor_can_be_overwritten_from_the_host(strict: InMemoryAccelerator) -> None:
    total = torch.zeros(4).to("xla")
    for _ in range(2):
        total += torch.fft.fft(ones("xla", 4)).abs()
        with pytest.raises(CompileError):
            total.cpu()
        with pytest.raises(LostValueError):
            total.add_(1)
        total.copy_(torch.ones(4))
        assert total.add_(1).tolist() == [2] * 4


OVERWRITES = {
    "zero_": (lambda lost, other: lost.zero_(), [0] * 4),
    "fill_": (lambda lost, other: lost.fill_(2.5), [2.5] * 4),
    "fill_ from a tensor": (lambda lost, other: lost.fill_(other[0]), [1] * 4),
    "copy_": (lambda lost, other: lost.copy_(other), [1] * 4),
    "copy_ of another type": (lambda lost, other: lost.copy_(other.bool()), [1] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERWRITES)
def test_a_lost_tensor_can_be_overwritten_on_the_device(name: str, strict: InMemoryAccelerator) -> None:
    overwrite, wanted = OVERWRITES[name]
    for _ in ("learned", "replayed", "replayed again"):
        other = ones("xla", 4)
        lost = torch.fft.fft(ones("xla", 4)).abs()
        with pytest.raises(CompileError):
            lost.cpu()
        overwrite(lost, other)
        assert (lost.add(1) - 1).tolist() == lost.tolist() == wanted


PARTS = {
    "a part": lambda lost, other: lost[1:].zero_(),
    "itself": lambda lost, other: lost.copy_(lost.flip(0)),
    "a view of itself": lambda lost, other: lost.fill_(lost[0]),
    "another lost tensor": lambda lost, other: lost.copy_(other),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_lost_tensor_stays_lost_if_its_new_value_depends_on_lost_ones(
    name: str, strict: InMemoryAccelerator
) -> None:
    for _ in ("learned", "replayed", "replayed again"):
        lost, other = torch.fft.fft(ones("xla", 4)).abs(), torch.fft.fft(ones("xla", 4)).real.clone()
        with pytest.raises(CompileError):
            lost.cpu()
        with pytest.raises(LostValueError, match=r"aten\._fft_r2c"):
            PARTS[name](lost, other)
        for tensor in (lost, other):
            with pytest.raises(LostValueError, match=r"aten\._fft_r2c"):
                tensor.cpu()
        lost.zero_()
        assert lost.tolist() == [0] * 4
