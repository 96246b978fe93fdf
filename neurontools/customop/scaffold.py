"""Create a project for an operator: kernel, shape function, torch function, tests, build file."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from neurontools import paths
from neurontools.base.projects import check_name, fill, write_files

# Namespaces of torch, modules that projects import, keywords of C++, and the reserved name.
_TAKEN = frozenset(
    [
        "aten",
        "prim",
        "prims",
        "builtin",
        "builtins",
        "torch",
        "pytest",
        "neuron",
        "neurontools",
        "shape",
        "conftest",
        "std",
        "c10",
        "auto",
        "bool",
        "char",
        "class",
        "const",
        "double",
        "float",
        "inline",
        "int",
        "long",
        "namespace",
        "new",
        "operator",
        "short",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "typedef",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
    ]
)


class AccessStyle(StrEnum):
    """How the kernel of a new project accesses its tensors."""

    ELEMENT = "element"
    TCM = "tcm"
    MULTICORE = "multicore"


def create_project(name: str, directory: Path, style: AccessStyle = AccessStyle.TCM) -> tuple[Path, ...]:
    """Write a project that builds and passes its own tests.

    Args:
        name: the operator's name: library, namespace, torch function.
        directory: its directory, created if it does not exist. Other files in it stay.
        style: how its kernel accesses tensors.

    Returns:
        The new files.

    Raises:
        NeuronToolsError: the name is invalid, a file of the project exists, or the directory cannot be written.
    """
    check_name("operator", name, _TAKEN)
    return write_files(directory, _texts(name, style), "choose another name or directory")


def _texts(name: str, style: AccessStyle) -> dict[str, str]:
    samples = Path(paths.fixtures_dir()) / "customops"
    sample = f"relu_{style}"
    values = {
        "NAME": name,
        "MULTICORE": str(style is AccessStyle.MULTICORE),
        "MULTICORE_YAML": str(style is AccessStyle.MULTICORE).lower(),
    }

    def template(file: str) -> str:
        return fill(samples / "project" / file, values)

    def source(file: str) -> str:
        text = (samples / sample / file).read_text(encoding="utf-8")
        named = text.replace(f"NEURON_LIBRARY({sample},", f"NEURON_LIBRARY({name},")
        return re.sub(r"\brelu_(forward|backward)\b", rf"{name}_\1", named)

    return {
        f"{name}.cpp": source("relu.cpp"),
        "shape.cpp": source("shape.cpp"),
        f"{name}.py": template("module.py.txt"),
        f"test_{name}.py": template("test.py.txt"),
        "customop.yaml": template("customop.yaml"),
        "README.md": template("README.md"),
        ".gitignore": template("gitignore.txt"),
    }
