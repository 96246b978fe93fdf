"""Pages made from code are up to date, and the README names the two commands that matter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_environment_page_is_generated_from_the_code():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "environment.md").read_text() == generate.environment_page()


def test_the_readme_names_the_commands_and_shows_real_pictures():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    pictures = [
        line.partition("](")[2].partition(")")[0] for line in readme.splitlines() if line.startswith("![")
    ]
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()
