"""Every item of the reference's interface works, and docs/reference/customop-api.md lists what a kernel here shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.customop.marshalling import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.operation import CustomOperator

SOURCES = Path(__file__).parent / "kernels" / "interface"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "customop-api.md"


@pytest.mark.parametrize("items", ["dtypes", "factories", "operations", "bits", "members", "streams", "tcm"])
def test_items_do_what_they_should(operation: Callable[[str], CustomOperator], items: str) -> None:
    output, completed = execute(operation(f"interface::{items}"), (torch.arange(8.0),))
    assert output[0] == 1
    assert completed.warnings == ()


def test_every_kind_of_parameter(operation: Callable[[str], CustomOperator]) -> None:
    x = torch.ones(2)
    output, _ = execute(operation("interface::parameters"), (x, x, x, 1.5, 0.5, 3))
    assert output.tolist() == [1]


def test_the_page_lists_the_items_that_are_tested() -> None:
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("*.cpp")))
    tested = re.findall(r"\[([\w:=]+)\]", "".join(re.findall(r"//((?: \[[\w:=]+\])+)$", text, re.MULTILINE)))
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and "| yes" in line]
    listed = [item for row in rows for item in re.findall(r"`([\w:=]+)[^`]*`", row.split("|")[1])]
    assert sorted(listed) == sorted(tested)
