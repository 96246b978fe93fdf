"""check --reference with a function of a module or a file, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.commands.customop import main

Library = Callable[[str], Path]

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
import torch

@dataclass
class Scaled:
    by: float
    def __call__(self, x):
        return torch.relu(x) * self.by

class Names:
    @staticmethod
    def relu(x):
        return helper(x)

def helper(x): return torch.relu(x)
once = Scaled(1.0)
def raises(x): raise ValueError("first line\\nsecond line")
def shape(x): return torch.zeros(x.numel() + 1)
def dtype(x): return x.double()
def nothing(x): return None
def two(x, y): return x
three = 3
"""

RIGHT = ("ref:helper", "ref.py:helper", "./ref.py:helper", "ref:Names.relu", "ref:once", "sub dir/größe.py:helper",
         "torch:relu", "torch.nn.functional:relu", "torch.relu(x0)")  # fmt: skip
FAILING = {
    "absent:f": "no module absent here or installed",
    "ref.sub:f": "no module ref.sub here or installed",
    "absent.py:f": "absent.py does not exist",
    "ref:absent": "ref has no absent",
    "ref.py:absent": "ref.py has no absent",
    "ref:Names.absent": "ref has no Names.absent",
    "ref:three": "three of ref is not a function, but int",
    "ref:raises": "ref:raises fails: ValueError: first line",
    "ref:two": "ref:two fails: TypeError: two() missing 1 required",
    "ref:nothing": "ref:nothing does not return a tensor, but NoneType",
    "imports:f": "cannot import imports: No module named 'absent_too'",
    "imports.py:f": "cannot import imports.py: No module named 'absent_too'",
    "syntax:f": "cannot import syntax: SyntaxError: ",
    "syntax.py:f": "cannot import syntax.py: SyntaxError: ",
    "exits.py:f": "cannot import exits.py: SystemExit: 3",
    "torch.relu(x0": "torch.relu(x0 fails: SyntaxError: ",
}


@pytest.fixture
def command(library: Library, scratch: Path) -> list[str]:
    (scratch / "sub dir").mkdir()
    for name in ("ref.py", "sub dir/größe.py"):
        (scratch / name).write_text(MODULE, encoding="utf-8")
    (scratch / "imports.py").write_text("import absent_too\n", encoding="utf-8")
    (scratch / "syntax.py").write_text("f = (\n", encoding="utf-8")
    (scratch / "exits.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    return [
        "check",
        str(library("relu_tcm")),
        "forward",
        "--input",
        "N:float32",
        "--cases",
        "1",
        "--reference",
    ]


@pytest.mark.parametrize("reference", RIGHT)
def test_functions_are_references(
    command: list[str], reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, reference]) == 0
    assert "ok       reference  agrees" in capsys.readouterr().out


@pytest.mark.parametrize(("reference", "message"), FAILING.items())
def test_what_is_no_function_is_one_error(
    command: list[str], reference: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, reference]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith(f"error: {message}")
    assert lines[-1].startswith("hint: ")
    assert not any(line.startswith(("Traceback", "  File")) for line in lines)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shape", "gives 1:float32, the reference 2:float32"),
        ("dtype", "gives 1:float32, the reference 1:float64"),
    ],
)
def test_results_of_another_shape_or_dtype_are_findings(
    command: list[str], name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, f"ref:{name}"]) == 1
    assert message in capsys.readouterr().out
