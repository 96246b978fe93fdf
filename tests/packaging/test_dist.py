"""The source distribution holds the whole project, and the wheel that is built from it one package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from neurontools import __version__

ROOT = Path(__file__).parents[2]
MADE = {"build", "dist", "site"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions, built from a copy of the tree."""
    tree = tmp_path_factory.mktemp("dist") / "tree"

    def left_out(folder: str, names: list[str]) -> list[str]:
        made = MADE if Path(folder) == ROOT else {"__pycache__"}
        # links: of an installation in place
        return [n for n in names if n in made or n.startswith(".") or Path(folder, n).is_symlink()]

    shutil.copytree(ROOT, tree, ignore=left_out)
    run = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return tree / "dist"


def test_twine_accepts_both(dist: Path) -> None:
    files = [str(path) for path in dist.iterdir()]
    assert sorted(path.rpartition("neurontools-")[2] for path in files) == [
        f"{__version__}-py3-none-any.whl",
        f"{__version__}.tar.gz",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


def test_the_wheel_holds_one_package_with_every_module(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert {name.partition("/")[0] for name in names} == {
        "neurontools",
        f"neurontools-{__version__}.dist-info",
    }
    sources = {f"neurontools/{path.relative_to(ROOT / 'neurontools')}" for path in modules("neurontools")}
    sources |= {
        f"neurontools/{path.relative_to(ROOT)}" for top in ("commands", "tui") for path in modules(top)
    }
    assert sources - names == set()
    assert "neurontools/py.typed" in names
    assert {
        f"neurontools/xla/{name}"
        for name in ("device_guard.cpp", "device_views.h", "pinned_memory.h", "worker_sums.h")
    } <= names
    assert "neurontools/fixtures/instances/devices.yaml" in names


def test_the_source_distribution_holds_tests_and_pages(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("Makefile", "constraints.txt", "noxfile.py", "mkdocs.yml", "CHANGELOG.md", "LICENSE"):
        assert name in names
    for folder in ("tests", "docs", "benchmarks", "fixtures", "commands", "tui"):
        assert {str(path.relative_to(ROOT)) for path in files_below(folder)} - names == set()


def modules(folder: str) -> list[Path]:
    """Return the Python files below a folder; links of an installation in place are not followed."""
    return [path for path in files_below(folder) if path.suffix == ".py"]


def files_below(folder: str) -> list[Path]:
    found = [Path(top, name) for top, _, names in os.walk(ROOT / folder) for name in names]
    return [path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"]
