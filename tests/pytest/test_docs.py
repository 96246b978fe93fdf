"""Every example of docs/how-to/pytest.md is a module of tests that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pytest.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow


def test_the_examples_pass(pytester, suite):
    for number, block in enumerate(BLOCKS[1:]):
        pytester.makepyfile(**{f"test_example_{number}": block})
    tests = sum(block.count("\ndef test_") for block in BLOCKS)
    assert tests >= 6
    found = suite(BLOCKS[0], "--rootdir", str(pytester.path))
    found.assert_outcomes(passed=tests + 2)  # one of them has three parameters
