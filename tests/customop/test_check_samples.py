"""Every sample passes `neuron-customop check` with what its customop.yaml says; so does a project of ours."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.commands.customop import main
from neurontools.customop.building.build import build
from neurontools.customop.building.request import CheckWords, load_project

pytestmark = pytest.mark.torch

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"
NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/customop.yaml") if path.parent.name != "project")
LOOKED_AT = {
    "giou": "gradient",
    "layernorm": "reference",
    "relu_element": "reference",
    "relu_multicore": "reference",
    "relu_tcm": "reference",
    "rmsnorm": "reference",
    "topk": "gradient",
    "zeros": "shapes",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_passes_its_checks(name: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = load_project(SAMPLES / name / "customop.yaml")
    shutil.copy(build(replace(project.request, directory=None)).path, scratch)
    shutil.copy(project.path, scratch)
    assert main(["check", "--cases", "2"]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert f"  ok       {LOOKED_AT[name]}" in out
    assert "FAILED" not in out


def test_options_win_over_the_project(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = load_project(SAMPLES / "relu_element" / "customop.yaml")
    (scratch / "relu").mkdir()
    shutil.copy(build(replace(project.request, directory=None)).path, scratch / "relu")
    shutil.copy(project.path, scratch / "relu")
    check = ["check", "relu/librelu_element.so", "forward", "--cases", "0"]
    assert main(check) == 0
    assert "ok       reference" in capsys.readouterr().out
    assert main([*check, "--reference", "x0"]) == 1
    out = capsys.readouterr().out
    assert "FAILED   reference" in out
    assert "neuron-customop run relu/librelu_element.so forward" in out


def test_without_a_library_and_a_project_it_says_what_to_give(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 2
    assert (
        capsys.readouterr().err
        == "error: no LIB given, and no customop.yaml in the current directory\nhint: neuron-customop check LIB\n"
    )
    assert not list(scratch.iterdir())


def test_what_a_project_says_of_checks(scratch: Path) -> None:
    head = "name: a\ncompute: [a.cpp]\nshape: [b.cpp]\n"
    path = scratch / "customop.yaml"
    path.write_text(f"{head}check: {{op: {{input: ['*:float32', 3], backward: [b], tolerance: 0.5}}}}\n")
    project = load_project(path)
    assert project.checks == {"op": CheckWords(("*:float32", "3"), "", ("b",), 0.5)}
    assert project.library == scratch / "liba.so"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("3", "customop.yaml:4: check: expected operators and what to check them with, found 3"),
        (
            "{op: 3}",
            "customop.yaml:4: check.op: expected keys: input, reference, backward, tolerance, found 3",
        ),
        ("{op: {inputs: []}}", "customop.yaml:4: check.op.inputs: unknown key; did you mean 'input'?"),
        ("{op: {input: 8x8}}", "customop.yaml:4: check.op.input: expected a list of texts, found '8x8'"),
    ],
)
def test_invalid_checks(scratch: Path, capsys: pytest.CaptureFixture[str], check: str, message: str) -> None:
    (scratch / "customop.yaml").write_text(f"name: a\ncompute: [a.cpp]\nshape: [b.cpp]\ncheck: {check}\n")
    assert main(["check"]) == 1
    assert message in capsys.readouterr().err
