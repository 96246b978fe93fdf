"""Custom operators exist on NeuronCore-v2 only: other machines are refused, unless somebody says to go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools import env
from neurontools.commands.customop import main
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import UnsupportedInstanceError
from neurontools.customop.torch_operators import register
from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions

if TYPE_CHECKING:
    from neurontools.customop.package import Package

Library = Callable[[str], Path]


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "trn1n.32xlarge", "inf2.xlarge"])
def test_machines_with_version_2_cores_are_fine(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv(env.INSTANCE, kind)
    check_instance()


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        ("inf1.xlarge", "NeuronCore-v1"),
        ("trn2.48xlarge", "NeuronCore-v3"),
        ("trn3.48xlarge", "NeuronCore-v4"),
    ],
)
def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch, kind: str, core: str) -> None:
    monkeypatch.setenv(env.INSTANCE, kind)
    with pytest.raises(UnsupportedInstanceError, match=f"machine 'default' is {kind} with {core}") as caught:
        check_instance()
    assert f"{env.CUSTOMOP_ANY_INSTANCE}=1" in caught.value.remedy
    monkeypatch.setenv(env.CUSTOMOP_ANY_INSTANCE, "1")
    check_instance()


def test_the_machine_that_runs_counts(home: Path) -> None:
    machine = "other"
    launch.start(StartOptions(machine=machine, instance_type="trn2.3xlarge"))
    try:
        code = "from neurontools.customop.environment import check_instance; check_instance()"
        run = subprocess.run(
            [sys.executable, "-c", f"import os; os.environ['{env.MACHINE}'] = '{machine}'; {code}"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        launch.stop(machine)
    assert run.returncode == 1
    assert "machine 'other' is trn2.3xlarge with NeuronCore-v3" in run.stderr
    assert "hint: choose another machine" in run.stderr


def test_loading_is_refused(package: Callable[[str], Package], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.INSTANCE, "trn2.48xlarge")
    with pytest.raises(UnsupportedInstanceError, match="custom operators need NeuronCore-v2"):
        register(package("multicore_wrong"))


@pytest.mark.parametrize(
    "words",
    [
        ("load", "LIB"),
        ("run", "LIB", "copy", "--input", "8:float32"),
        ("check", "LIB", "copy", "--cases", "0", "--input", "N:float32"),
    ],
    ids=lambda words: words[0],
)
def test_the_flag_of_the_commands(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv(env.INSTANCE, "trn2.48xlarge")
    monkeypatch.setenv(env.CUSTOMOP_ANY_INSTANCE, "")  # the flag sets it: restored at the end
    argv = [str(library("faults")) if word == "LIB" else word for word in words]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert "error: custom operators need NeuronCore-v2 (trn1, trn1n, inf2); machine 'default' is" in err
    assert "hint: " in err
    assert main([*argv, "--any-instance"]) == 0


def test_the_flag_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "--any-instance" in capsys.readouterr().out
