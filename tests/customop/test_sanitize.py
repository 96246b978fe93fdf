"""--sanitize: what the sanitizers see in the worker, each as one error with a line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import Package, read_package

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent / "kernels" / "sanitized"


@pytest.fixture
def package() -> Package:
    request = BuildRequest("sanitized", (HERE / "compute.cpp",), (HERE / "shape.cpp",), sanitize=True)
    return read_package(build(request).path)


@pytest.fixture
def operation(package: Package) -> Iterator[CustomOperator]:
    executor = new_executor(package)
    yield CustomOperator(package, 0, executor)
    executor.close()


def line_of(mark: str) -> str:
    lines = (HERE / "compute.cpp").read_text().splitlines()
    return f"compute.cpp:{next(index for index, line in enumerate(lines, 1) if f'// {mark}' in line)}"


@pytest.mark.parametrize(
    ("which", "kind", "message", "mark"),
    [
        (1, "sanitizer", "heap-buffer-overflow: write of 4 bytes", "heap"),
        (2, "sanitizer", "heap-buffer-overflow: read of 4 bytes", "past"),
        (3, "sanitizer", "heap-buffer-overflow: write of 4 bytes", "before"),
        (4, "sanitizer", "heap-use-after-free: read of 4 bytes", "freed"),
        (5, "sanitizer", "index 8 out of bounds for type '", "stack"),
        (6, "sanitizer", "signed integer overflow", "overflow"),
        (7, "sanitizer", "shift exponent 40 is too large", "shift"),
        (8, "const", "write to argument 0, which the kernel takes as const Tensor&", ""),
        (9, "tcm", "write of 4 bytes past the end of a TCM block of 64 bytes", "block"),
    ],
)
def test_what_the_sanitizers_see(
    operation: CustomOperator, which: int, kind: str, message: str, mark: str
) -> None:
    x = torch.ones(8)
    with pytest.raises(NeuronCustomOpError) as caught:
        execute(operation, (x, which))
    assert caught.value.kind == kind
    assert message in str(caught.value)
    if mark:
        assert line_of(mark) in str(caught.value)
    assert torch.equal(execute(operation, (x, 0))[0], x)  # the next call has a new worker


def test_a_correct_kernel_is_left_alone(operation: CustomOperator) -> None:
    for size in (0, 1, 1000, 100_000):
        x = torch.rand(size)
        assert torch.equal(execute(operation, (x, 0))[0], x)


def test_it_is_not_for_this_process(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_CUSTOMOP_INPROCESS", "1")
    with pytest.raises(
        CustomOpLibraryError, match="built with sanitizers, which cannot be loaded into Python"
    ):
        new_executor(package)
