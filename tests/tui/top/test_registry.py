"""The pages of neuron-top: each is found by its name, has a key of its own, and a new one is two changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import neurontools
from neurontools.tui.names import PAGE_NAMES
from neurontools.tui.top.keys import ANYWHERE, MACHINE_KEYS
from neurontools.tui.top.pages.registry import make_pages, page_class

PROGRAM = """
from neurontools.tui.top.keys import key_names
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.registry import make_pages, page_data, page_text
page = make_pages().named("power")
print(page_text(page, TopModel(), 80), page_data(page, TopModel())["devices"], *key_names())
"""


def test_every_page_is_found_by_its_name_and_by_keys_of_its_own() -> None:
    assert [page.name for page in make_pages()] == list(PAGE_NAMES)
    letters = [page_class(name).letter for name in (*PAGE_NAMES, "machines")]
    keys = [*chain.from_iterable(binding.key.split(",") for binding in (*ANYWHERE, *MACHINE_KEYS))]
    assert len(keys) == len(set(keys))
    assert set(letters) <= set(keys)


def test_a_page_without_a_class_is_no_other_page() -> None:
    with pytest.raises(ModuleNotFoundError):
        page_class("power")


def test_a_page_is_a_class_and_a_name(home: Path) -> None:
    """Follows the recipe in CONTRIBUTING.md in a copy."""
    copy = home / "site" / "neurontools"
    shutil.copytree(Path(neurontools.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    recipe = Path(__file__).parents[3].joinpath("CONTRIBUTING.md").read_text().partition("## Add a page")[2]
    code = recipe.partition("```python\n")[2].partition("   ```")[0]
    page = copy / "tui" / "top" / "pages" / "power.py"
    page.write_text("".join(f"{line[3:]}\n" for line in code.splitlines()))
    names = copy / "tui" / "names.py"
    names.write_text(names.read_text().replace('"events")', '"events", "power")'))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert " no devices" in done.stdout
    assert "('page-power', 'f6,w', 'page power')" in done.stdout
