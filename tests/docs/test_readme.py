"""README works as it stands: its commands are run in an empty directory, and what they write is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN = ("train.py", "prof", "relu/librelu.so")


def commands() -> list[str]:
    """Return the commands that README runs in an empty directory."""
    text = (ROOT / "README.md").read_text().partition("Then, in an empty directory:\n")[2]
    block = re.search(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.mark.torch
def test_the_commands_work_in_an_empty_directory(home, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    empty = home / "empty"
    empty.mkdir()
    printed = {}
    for command in commands():
        run = subprocess.run(
            ["bash", "-c", command], cwd=empty, capture_output=True, text=True, check=False, timeout=600
        )
        assert run.returncode == 0, (command, run.stdout, run.stderr)
        printed[command.partition("  ")[0]] = run.stdout
    assert [name for name in WRITTEN if not (empty / name).exists()] == []
    losses = [
        float(loss)
        for loss in re.findall(r"loss ([\d.]+)", printed["neuron-run --profile prof -- python train.py"])
    ]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 4
    assert printed["neuron-cache ls"].count("MODULE_") > 1
    assert "first compile" in printed["neuron-cache why"]


def test_getting_started_shows_the_script_that_new_writes():
    page = (ROOT / "docs" / "tutorials" / "first-steps.md").read_text()
    assert f"```python\n{(ROOT / 'fixtures' / 'new' / 'train.py').read_text()}```\n" in page


def test_new_writes_files_and_replaces_none(tool, home, monkeypatch):
    monkeypatch.chdir(home)
    assert tool("neurontools", "new", "train", "mine.py").stdout == "mine.py\n"
    (home / "mine.py").write_text("changed")
    again = tool("neurontools", "new", "train", "mine.py")
    assert (again.returncode, again.stderr) == (
        1,
        "error: mine.py already exists\nhint: name another file: neurontools new train mine2.py\n",
    )
    assert (home / "mine.py").read_text() == "changed"
    assert "relu/relu.cpp" in tool("neurontools", "new", "customop", "relu").stdout.split()
    assert tool("neurontools", "new", "train", "folder/train.py").stdout == "folder/train.py\n"
    nowhere = tool("neurontools", "new", "train", "mine.py/train.py")
    assert (nowhere.returncode, nowhere.stderr) == (
        1,
        "error: cannot write mine.py: File exists\nhint: choose another directory\n",
    )
