"""What an installation puts where: one top-level name, the data files, the console scripts."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from neurontools import paths

EXPECTED_DATA = (
    "digits/train-images-idx3-ubyte.gz",
    "instances/trn1.yaml",
    "customops/relu_tcm/relu.cpp",
    "demo/train.py",
)


def test_site_packages_gets_one_new_name():
    installed = distribution("neurontools").files or []
    names = {file.parts[0] for file in installed if file.parts[0] != ".."}
    # An editable install has finder files of the installer instead of the package itself.
    names = {name for name in names if not name.startswith("__editable__") and name != "__pycache__"}
    assert {name for name in names if not name.endswith(".dist-info")} <= {"neurontools"}


def test_the_data_files_are_installed():
    root = Path(paths.fixtures_dir())
    assert [name for name in EXPECTED_DATA if not (root / name).is_file()] == []


def test_a_plain_install_asks_for_five_small_packages_only():
    requires = [line for line in distribution("neurontools").requires or [] if "extra ==" not in line]
    assert sorted(line.split(">")[0].split("<")[0] for line in requires) == [
        "msgspec",
        "psutil",
        "pyyaml",
        "rich",
        "textual",
    ]


def test_every_package_of_the_tree_is_installed():
    root = Path(__file__).parents[2]
    setup = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    homes = {name: folder for name, folder in setup["package-dir"].items() if name != "neurontools"}
    pages = {name for name in homes if name.startswith("neurontools.docs.")}
    assert {homes[name] for name in pages} == {
        str(page.parent.relative_to(root)) for page in (root / "docs").glob("*/*.md")
    }
    packages = {
        ".".join(("neurontools", *init.parent.relative_to(root / "neurontools").parts))
        for init in (root / "neurontools").rglob("__init__.py")
    }
    for name, folder in homes.items():
        for init in (root / folder).rglob("__init__.py"):
            packages.add(".".join((name, *init.parent.relative_to(root / folder).parts)))
    assert sorted(setup["packages"]) == sorted(packages | pages)
