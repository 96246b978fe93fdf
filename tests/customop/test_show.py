"""inspect, load and doctor: what a library says of itself, whether the loader agrees, what is installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.commands.customop import main
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.inspection import inspect_library, open_library
from neurontools.customop.package import Parts, read_package, write_package

Library = Callable[[str], Path]
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
