"""Every example of docs/reference/python-api.md is run as it stands, and prints what it says that it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_examples():
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs_and_prints_what_it_says(number):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (run.returncode, run.stderr) == (0, "")
    said = re.findall(r"print\(.*\)\s+# (.*)$", BLOCKS[number], re.MULTILINE)
    printed = run.stdout.splitlines()
    assert [line for line in said if line not in printed] == []
    left = subprocess.run(
        [sys.executable, "-c", "from neurontools import machine; print(machine.list_machines())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == "()\n"
