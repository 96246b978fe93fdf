"""customop.yaml and compile_commands.json: what they say, and how mistakes in them are told."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.customop import main
from neurontools.customop.building.request import BuildRequest, load_project
from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

KERNEL = """#include <torch/torch.h>
torch::Tensor twice(const torch::Tensor& x) { return torch::full(x.sizes(), FACTOR, torch::kFloat); }
"""
SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(project, m) { m.def("twice", &same, "twice"); }
"""
PROJECT = """name: twice
compute: [src/*.cpp]
shape: [shape.cpp]
output: build
cflags: [-DFACTOR=2, -O0]
"""


@pytest.fixture
def project(scratch: Path) -> Path:
    home = scratch / "home of it"
    (home / "src").mkdir(parents=True)
    (home / "src" / "twice.cpp").write_text(KERNEL)
    (home / "shape.cpp").write_text(SHAPE)
    (home / "customop.yaml").write_text(PROJECT)
    return home


def test_everything_that_a_project_file_may_say(project: Path) -> None:
    path = project / "customop.yaml"
    path.write_text(PROJECT + "multicore: true\nrelease: true\nsanitize: true\nstack_size: 9000\n")
    assert load_project(path).request == BuildRequest(
        "twice",
        (project / "src" / "twice.cpp",),
        (project / "shape.cpp",),
        project / "build",
        ("-DFACTOR=2", "-O0", "-DSTACK_SIZE=9000"),
        multicore=True,
        release=True,
        sanitize=True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae: x", ":1: nmae: unknown key; did you mean 'name'?"),
        ("qq: x", ":1: qq: unknown key; known: name, compute,"),
        ("name: 7", ":1: name: expected a text, found 7"),
        ("name: x\ncompute: a.cpp", ":2: compute: expected a list of texts, found 'a.cpp'"),
        ("name: x\nstack_size: true", ":2: stack_size: expected a whole number, found true"),
        ("name: x\ncompute: [a.cpp]", ":1: 'shape' is missing"),
        ("name: x\ncompute: [1]\nshape: [b]", ":2: compute[0]: expected a text, found 1"),
        ("name: x\ncompute: [none*.cpp]\nshape: [b]", ":2: compute: no file matches none*.cpp"),
        (
            "name: x\ncheck: {twice: {tolerence: 1}}",
            ":2: check.twice.tolerence: unknown key; did you mean 'tolerance'?",
        ),
        ("- a", ":1: expected keys: at least name, compute and shape, found a list of 1"),
        ("", ":1: expected keys: at least name, compute and shape, found nothing"),
        ("a: [", "customop.yaml:1: not YAML"),
        ("a: \x00", "customop.yaml: not YAML"),
    ],
)
def test_mistakes_are_named(project: Path, text: str, message: str) -> None:
    path = project / "customop.yaml"
    path.write_text(text)
    with pytest.raises(CustomOpBuildError) as caught:
        load_project(path)
    told = f"{caught.value.message}\n{caught.value.remedy}"
    assert str(path) in told
    assert message in told


def test_a_directory_whose_name_is_not_text_is_a_place_to_work_in(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = project.rename(project.with_name(os.fsdecode(b"home \xff")))
    monkeypatch.chdir(home)
    assert main(["build"]) == 0
    assert "built in" in capsys.readouterr().out
    assert main(["build"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["bench", "build/libtwice.so", "twice", "--shape", "64", "--repeat", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reports"][0]["places"]


def test_a_project_builds_without_arguments_and_flags_add_to_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main(["build", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["path"] == str(project / "build" / "libtwice.so")
    assert first["rebuilt"] is True
    assert first["operators"] == ["project::twice(Tensor _0) -> Tensor"]
    assert main(["build"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["build", "--project", "..", "-o", "x"]) == 2
    assert "no NAME given, and no customop.yaml in " in capsys.readouterr().err
    assert main(["build", "--release", "-o", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(project / "other" / "libtwice.so")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "x"), "building x needs --compute and --shape"),
        (("build", "--compute", "a.cpp"), "--compute and --shape need a NAME"),
    ],
)
def test_half_a_command_line(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(list(arguments)) == 2
    assert message in capsys.readouterr().err


def test_editors_learn_how_sources_are_compiled(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    other = {"directory": "/", "file": "/other.cpp", "arguments": ["c++"]}
    stale = {"directory": "/", "file": str(project / "shape.cpp"), "arguments": ["old"]}
    path = project / "compile_commands.json"
    path.write_text(json.dumps([other, stale]))
    assert main(["build"]) == 0
    entries = json.loads(path.read_text())
    assert other in entries
    assert [entry["file"] for entry in entries] == sorted(
        ["/other.cpp", str(project / "shape.cpp"), str(project / "src" / "twice.cpp")]
    )
    for entry in entries:
        if entry != other:  # what it says must be a command that works
            subprocess.run([*entry["arguments"], "-fsyntax-only"], cwd=entry["directory"], check=True)
    before = path.stat()
    assert main(["build"]) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_colours_in_a_pipe_where_they_are_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for state in ("built in ", "up to date"):
        assert main(["build"]) == 0
        assert f"  \x1b[32m{state}" in capsys.readouterr().out


def test_compile_commands_are_there_while_a_source_does_not_compile(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    (project / "src" / "twice.cpp").write_text("no C++\n")
    assert main(["build", "--no-compile-commands"]) == 1
    assert not (project / "compile_commands.json").exists()
    assert main(["build", "--color", "always"]) == 1
    assert (project / "compile_commands.json").exists()
    assert "\x1b[1;31merror:\x1b[0m" in capsys.readouterr().err
    assert main(["build", "--color", "never"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_build_of_missing_sources_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["build", "relu", "--compute", "relu.cpp", "--shape", "shape.cpp"]) == 1
    assert "relu.cpp does not exist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
