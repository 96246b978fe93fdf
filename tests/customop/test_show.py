"""inspect, load and doctor: what a library says of itself, whether the loader agrees, what is installed.

check --reference with a function of a module or a file, and its errors.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.customop import main
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.inspection import inspect_library, open_library
from neurontools.customop.package import Parts, read_package, write_package

if TYPE_CHECKING:
    from tests.customop.conftest import Library

SAMPLE = Path(__file__).parents[2] / "fixtures" / "customops" / "relu_element"


def test_parts_and_their_digests(library: Library) -> None:
    found = inspect_library(library("faults"))
    assert [part.name for part in found.parts] == ["shape", "kernel", "worker"]
    assert found.parts[1].nbytes == len(found.package.parts.kernel)
    assert len({part.sha256 for part in found.parts}) == 3
    assert found.changed == ()


def test_sources_that_changed_since_are_named(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("relu.cpp", "shape.cpp"):
        shutil.copy(SAMPLE / name, scratch)
    path = build(BuildRequest("x", (Path("relu.cpp"),), (Path("shape.cpp"),), Path(), ("-O0",))).path
    (scratch / "shape.cpp").unlink()
    with (scratch / "relu.cpp").open("a") as file:
        file.write("// more\n")
    assert inspect_library(path).changed == (str(scratch / "relu.cpp"), str(scratch / "shape.cpp"))
    assert main(["inspect", str(path)]) == 0
    assert f"{scratch}/relu.cpp  CHANGED since\n" in capsys.readouterr().out


def test_load_runs_the_loader_and_lists(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", str(library("faults"))]) == 0
    out = capsys.readouterr().out
    assert f"{library('faults')}  loaded in " in out
    assert "  faults::copy(Tensor _0) -> Tensor  kernel copy" in out
    assert main(["load", str(library("faults")), "--json"]) == 0
    opened = json.loads(capsys.readouterr().out)
    assert "faults::copy(Tensor _0) -> Tensor" in opened["operators"]
    assert opened["load_ns"] > 0


def test_a_library_that_registers_other_operators_than_it_says(library: Library, scratch: Path) -> None:
    package = read_package(library("faults"))
    entries = package.manifest.operators
    wrong = replace(package.manifest, operators=(replace(entries[0], name="other"), *entries[1:]))
    write_package(scratch / "libwrong.so", wrong, package.parts)
    inspect_library(scratch / "libwrong.so")
    with pytest.raises(CustomOpLibraryError, match="its operators differ from its manifest"):
        open_library(scratch / "libwrong.so")


def test_code_that_the_loader_refuses(library: Library, scratch: Path) -> None:
    package = read_package(library("faults"))
    kernel = bytearray(package.parts.kernel)
    kernel[64:400] = bytes(336)  # the program headers
    parts = Parts(package.parts.shape, bytes(kernel), package.parts.worker)
    manifest = replace(package.manifest, parts_sha256=parts.sha256)
    write_package(scratch / "libwrong.so", manifest, parts)
    with pytest.raises(CustomOpLibraryError, match="cannot load the kernels of "):
        open_library(scratch / "libwrong.so")


def test_doctor_tells_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok       compiler    ") for line in lines)
    assert any(line.startswith("ok       runtime     ") for line in lines)
    assert main(["doctor", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert list(findings) == [
        "system", "compiler", "runtime", "sanitizers", "ccache", "addr2line", "gdb", "torch"
    ]  # fmt: skip
    assert findings["runtime"]["needed"] is True


def test_doctor_without_a_compiler(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "MISSING  compiler    no C++ compiler found" in out
    assert "for build: install g++" in out
    assert "absent   gdb" in out


def test_doctor_with_a_compiler_that_cannot(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = home / "broken-c++"
    broken.write_text(
        '#!/bin/sh\ntest "$1" = --version && echo broken 1 || { echo "error: broken" >&2; exit 1; }\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "ok       compiler    broken 1" in out
    assert "MISSING  runtime     " in out
    assert "absent   sanitizers  " in out


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
