"""complex64 on the device: what release 2.32 compiles gives the CPU's numbers, the rest is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neurontools.compiler.limits import type_error
from neurontools.compiler.options import CompileError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import api
from neurontools.xla.debugging import metrics

TRN1 = instance_type("trn1.2xlarge").device
FORMULAS: dict[str, Any] = {
    "arithmetic": lambda z, w: (z + w) * (z - w) / (w * 2.5) - z.neg(),
    "complex numbers": lambda z, w: (z * (1 + 2j) + 1j) / (0.5 - 1j) + w * (1 + 0j),
    "functions": lambda z, w: (
        z.exp() + z.sin() * z.cos() + z.tanh() + z.tan() + z.sigmoid() + z.log1p() + z.expm1()
    ),
    "roots": lambda z, w: z.sqrt() * z.rsqrt() + z.log() + z**2 + z**w + z.sgn(),
    "parts": lambda z, w: torch.complex(z.real * 2, w.imag) + torch.polar(z.abs(), w.angle()),
    "conjugates": lambda z, w: z.conj() * w + (z.conj() * 2).imag,
    "products": lambda z, w: z @ w + torch.addmm(z, w, z) + torch.bmm(z[None], w[None])[0],
    "comparison": lambda z, w: torch.where(z == w, z, w) * (z != w),
    "shapes": lambda z, w: torch.cat([z.t().reshape(2, 8), w.flip(0).view(2, 8)])[1:3, ::2],
    "constants": lambda z, w: (
        torch.ones_like(z) + torch.zeros(4, 4, dtype=z.dtype, device=z.device) + z.tril()
    ),
    "in place": lambda z, w: z.clone().mul_(w).add_(w, alpha=2).div_(3 - 1j),
    "rotary": lambda z, w: torch.view_as_real(torch.view_as_complex(torch.view_as_real(z)) * w).flatten(1),
}


def values(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, dtype=torch.complex64, generator=generator)


def check_last_graph(machine: Any) -> None:
    for node in machine.graphs[-1].nodes:
        assert type_error(node, TRN1) is None


@pytest.mark.parametrize("name", FORMULAS)
def test_complex64_gives_the_numbers_of_the_cpu(name: str, machine: Any) -> None:
    function = FORMULAS[name]
    z, w = values(0), values(1)
    wanted = function(z, w)
    for _ in ("learned", "replayed"):
        got = function(z.to("xla"), w.to("xla"))
        api.mark_step()
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
        check_last_graph(machine)
    assert metrics.executed_fallback_ops() == []


def test_a_complex_number_is_an_input_of_the_graph(machine: Any) -> None:
    z = values(0)
    on_device = z.to("xla")
    for number in (1j, 2 + 1j, 0j, 1 + 0j):
        got = on_device * number
        api.mark_step()
        assert torch.equal(got.cpu(), z * number)
    assert len(machine.graphs) == 1


def test_gradients_of_complex_tensors(machine: Any) -> None:
    def gradient(device: str) -> torch.Tensor:
        z = values(0).to(device).requires_grad_()
        w = values(1).to(device)
        torch.view_as_real(z * w).mul(2.0).sum().backward()
        assert z.grad is not None
        return z.grad.cpu()

    wanted = gradient("cpu")
    for _ in ("learned", "replayed"):
        assert torch.equal(gradient("xla"), wanted)
        check_last_graph(machine)


@pytest.mark.parametrize(
    "function", [torch.fft.fft, torch.sum, lambda z: z.cumsum(0), lambda z: z.to(torch.complex128)]
)
def test_the_rest_is_refused(function: Any, machine: Any) -> None:
    machine.checks_types = True
    got = function(values(0).to("xla"))  # noqa: F841  # a result that nobody has is not computed
    with pytest.raises(CompileError, match="NCC_EVRF004"):
        api.mark_step()
