"""Kernels in every style of the AWS Neuron documentation compile and give the right numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.customop.marshalling import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.operation import CustomOperator
    from neurontools.customop.package import Package


@pytest.mark.parametrize("style", ["elements", "tcm", "destination"])
@pytest.mark.parametrize("count", [1, 1024, 2500])
def test_negating(operation: Callable[[str], CustomOperator], style: str, count: int) -> None:
    x = torch.randn(count)
    assert torch.equal(execute(operation(f"styles::{style}"), (x,))[0], -x)


@pytest.mark.parametrize("style", ["sum", "streams"])
def test_adding(operation: Callable[[str], CustomOperator], style: str) -> None:
    x, y = torch.randn(3000), torch.randn(3000)
    assert torch.equal(execute(operation(f"styles::{style}"), (x, y))[0], x + y)


def test_numbers_of_every_kind(operation: Callable[[str], CustomOperator]) -> None:
    x = torch.randn(10)
    result, _ = execute(operation("styles::scaled"), (x, 2.5, 3, True))
    torch.testing.assert_close(result, x * 2.5 + 4)


def test_what_a_kernel_does_decides_its_modelled_time(operation: Callable[[str], CustomOperator]) -> None:
    x = torch.randn(4096)
    modelled = {
        style: execute(operation(f"styles::{style}"), (x,))[1].modelled_ns
        for style in ("elements", "tcm", "destination")
    }
    assert modelled["tcm"] < modelled["destination"] / 10
    assert modelled["destination"] == 1000 + 2 * 4096 * 200  # the launch, and two touches an element
    assert modelled["destination"] < modelled["elements"]  # which is copied to the output besides


def test_the_access_of_each_kernel_is_read_from_its_source(package: Callable[[str], Package]) -> None:
    found = {entry.name: str(entry.access) for entry in package("styles").manifest.operators}
    assert found == {
        "elements": "element",
        "sum": "element",
        "streams": "stream",
        "tcm": "tcm",
        "destination": "element",
        "scaled": "tensor",
    }
    by_helpers = {entry.name: str(entry.access) for entry in package("faults").manifest.operators}
    assert by_helpers == {"fault": "element", "copy": "element", "nap": "element", "bad_shape": "tensor"}
