"""docs/reference/faults.md is made from the data that the machine, neuron-monitor and the sysfs tree use."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.faults.kinds import ECC, KINDS, FaultKind
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "faults.md").read_text()


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_made_from_the_data(generate: ModuleType) -> None:
    assert generate.with_table(PAGE, generate.faults_table()) == PAGE


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FaultKind.COLLECTIVES, "NRT_EXEC_HW_ERR_COLLECTIVES"),
        (FaultKind.HARDWARE, "NRT_EXEC_HW_ERR_NC_UE"),
        (FaultKind.DMA_ABORT, "NRT_EXEC_HW_ERR_DMA_ABORT"),
        (FaultKind.NQ_OVERFLOW, "NRT_EXEC_SW_NQ_OVERFLOW"),
        (FaultKind.BAD_INPUT, "NRT_EXEC_BAD_INPUT"),
    ],
)
def test_a_kind_ends_executions_with_the_status_of_the_runtime_for_it(kind: FaultKind, name: str) -> None:
    assert NrtStatus(KINDS[kind].status).name == name


def test_every_kind_has_its_row_with_its_status(generate: ModuleType) -> None:
    table = generate.faults_table()
    for name, status in [
        *((f"`{kind}`", facts.status) for kind, facts in KINDS.items() if kind != "ecc"),
        *((f"`ecc` `{ecc}`", facts.status) for ecc, facts in ECC.items()),
    ]:
        shown = f"{status} `{NrtStatus(status).name}`" if status else "success"
        assert f"| {name} | {shown} |" in table


def test_the_documented_log_lines_are_on_the_page() -> None:
    for facts in KINDS.values():
        if facts.log is not None and facts.log.documented:
            line = facts.log.text.format(nd=0, nc=0, model=10001, timeout_ms=600000)
            assert f"`{facts.log.component}:{facts.log.function} {line}`" in PAGE
