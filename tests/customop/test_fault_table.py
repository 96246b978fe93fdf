"""Each fault of the table: one message with operator, core, place, arguments and what to do; docs/reference/customop-faults.md shows it.

WRITE_GOLDEN=1 writes the page's tables from what is really printed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import NeuronCustomOpError, remedy_for
from neurontools.customop.marshalling import execute, infer
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import read_package
from tests.customop.fault_table import ONE, OTHERS, REFERENCE, SANITIZED, Fault

KERNELS = Path(__file__).parent / "kernels"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "customop-faults.md"
Find = Callable[[str], CustomOperator]
NO_TRAP = os.uname().machine == "aarch64"  # divides by zero without one


def place(fault: Fault) -> str:
    """Return `file:line` of the fault's mark."""
    name = "shape.cpp" if fault.op == "bad_shape" else "compute.cpp"
    lines = (KERNELS / fault.library / name).read_text().splitlines()
    return f"{name}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'// {fault.mark}'))}"


def arguments(fault: Fault) -> tuple[object, ...]:
    x = torch.arange(16.0 if fault.library == "multicore_faults" else 8.0)
    return (x, x.clone(), fault.which) if (fault.library, fault.op) == (ONE, "fault") else (x, fault.which)


def told(operation: CustomOperator, fault: Fault, log: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Return the line that a fault prints and what it says to do."""
    if fault.warning:
        with log.at_level(logging.WARNING, "neurontools.customop"):
            execute(operation, arguments(fault))
        line, _, rest = log.messages[-1].rpartition("; ")
        remedy, _, called = rest.partition(" [")
        return f"{line} [{called}", remedy
    with pytest.raises(NeuronCustomOpError) as caught:
        (infer if fault.op == "bad_shape" else execute)(operation, arguments(fault))
    assert caught.value.__notes__ == [f"hint: {caught.value.remedy}"]  # tracebacks show it too
    return caught.value.message, caught.value.remedy


def check_complete(fault: Fault, line: str, remedy: str) -> None:
    called = "16:float32" if fault.library == "multicore_faults" else "8:float32"
    assert line.count("\n") == 0
    assert f"custom operator {fault.library}::{fault.op}" in line
    assert f" {fault.kind}: " in line
    assert f" at {place(fault)}" in re.sub(r"at \S*/", "at ", line)
    assert (f" on core {fault.core}" in line) == (fault.core >= 0)
    assert f"[called with {called}" in line
    assert line.endswith(f"{fault.which}]")
    assert remedy
    assert remedy != remedy_for("no such check", "")


@pytest.mark.parametrize("fault", [*REFERENCE, *OTHERS], ids=lambda fault: fault.name)
def test_a_fault_is_one_complete_message(
    operation: Find, fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if fault.name == "division-by-zero" and NO_TRAP:
        pytest.skip("this processor divides by zero without a trap")
    if fault.kind == "timeout":
        monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.3")
    monkeypatch.setattr("neurontools.customop.operation._warned", set())
    line, remedy = told(operation(f"{fault.library}::{fault.op}"), fault, caplog)
    check_complete(fault, line, remedy)
    check_page(fault, line, remedy)


@pytest.fixture(params=[False, True], ids=["default", "sanitize"])
def build_of_sanitized(request: pytest.FixtureRequest) -> Iterator[tuple[bool, CustomOperator]]:
    home = KERNELS / "sanitized"
    wanted = BuildRequest("sanitized", (home / "compute.cpp",), (home / "shape.cpp",), sanitize=request.param)
    package = read_package(build(wanted).path)
    executor = new_executor(package)
    yield request.param, CustomOperator(package, 0, executor)
    executor.close()


@pytest.mark.parametrize("fault", SANITIZED, ids=lambda fault: fault.name)
def test_what_only_the_sanitizers_find(
    build_of_sanitized: tuple[bool, CustomOperator], fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    sanitize, operation = build_of_sanitized
    if not sanitize:
        x = torch.arange(8.0)
        assert torch.equal(execute(operation, (x, fault.which))[0], x)
        return
    line, remedy = told(operation, fault, caplog)
    assert f" {fault.kind}: " in line
    assert place(fault) in line
    assert "sanitized::copy failed on core 0" in line
    assert "[called with 8:float32, " in line
    check_page(fault, line, remedy)


def test_a_release_build_leaves_the_index_to_the_guard_pages() -> None:
    home = KERNELS / ONE
    wanted = BuildRequest("faults", (home / "compute.cpp",), (home / "shape.cpp",), release=True)
    package = read_package(build(wanted).path)
    executor = new_executor(package)
    try:
        operation = CustomOperator(package, 0, executor)
        x = torch.arange(8.0)
        with pytest.raises(NeuronCustomOpError, match="access 0 bytes past the end of argument 1"):
            execute(operation, (x, x.clone(), 4))
        assert torch.equal(execute(operation, (x, x.clone(), 5))[0], x)
    finally:
        executor.close()


def test_the_page_lists_every_fault_once() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert listed == [fault.name for fault in (*REFERENCE, *OTHERS, *SANITIZED)]


def check_page(fault: Fault, line: str, remedy: str) -> None:
    shown = re.sub(r" at \S*/((?:compute|shape)\.cpp)", r" at \1", line).replace("|", "\\|")
    tick = "``" if "`" in shown else "`"
    row = f"| `{fault.name}` | {tick}{shown}{tick} | {remedy} |"
    if os.environ.get("WRITE_GOLDEN") == "1":
        rows = PAGE.read_text().splitlines()
        mine = [row if old.startswith(f"| `{fault.name}` |") else old for old in rows]
        PAGE.write_text("\n".join(mine) + "\n")
    # Lines move with every change of the kernels: that the right one is named is checked above.
    pages = re.sub(r"(\.cpp):\d+", r"\1:N", PAGE.read_text())
    assert re.sub(r"(\.cpp):\d+", r"\1:N", row) in pages.splitlines()
