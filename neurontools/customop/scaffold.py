"""Create a project for an operator: kernel, shape function, torch function, tests, build file."""

from __future__ import annotations

import keyword
import os
import re
import sys
from enum import StrEnum
from pathlib import Path

from neurontools import paths
from neurontools.base.files import write_temporary
from neurontools.customop.errors import CustomOpBuildError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
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
_MARK = re.compile(r"@([A-Z_]+)@")


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
        CustomOpBuildError: the name is invalid, a file of the project exists, or the directory cannot be written.
    """
    check_name("operator", name)
    return write_project(directory, _texts(name, style))


def check_name(kind: str, name: str, taken: frozenset[str] = _TAKEN) -> None:
    """Refuse a name that cannot be that of a module and its function.

    Args:
        kind: what the name is for.
        name: the name.
        taken: names that the project needs itself.

    Raises:
        CustomOpBuildError: the name is invalid.
    """
    if not _NAME.match(name) or keyword.iskeyword(name) or name in taken | sys.stdlib_module_names:
        raise CustomOpBuildError(
            f'invalid {kind} name "{name}"',
            "use letters, digits and _, and not a keyword, a module of Python or a name of torch or C++",
        )


def write_project(directory: Path, texts: dict[str, str]) -> tuple[Path, ...]:
    """Write the files of a project, by name, and return their paths.

    Raises:
        CustomOpBuildError: one of them exists, or the directory cannot be written.
    """
    existing = [file for file in texts if os.path.lexists(directory / file)]
    if existing:
        raise CustomOpBuildError(
            f"{directory / existing[0]} already exists", "choose another name or directory"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            _write_new(directory / file, text)
    except OSError as error:
        raise CustomOpBuildError(
            f"cannot write {error.filename or directory}: {error.strerror}", "choose another directory"
        ) from error
    return tuple(directory / file for file in texts)


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


def fill(template: Path, values: dict[str, str]) -> str:
    """Return the text of a template with values for its marks, such as `@NAME@`."""
    return _MARK.sub(lambda found: values[found[1]], template.read_text(encoding="utf-8"))


def _write_new(path: Path, text: str) -> None:
    # Linked: the file appears complete, and never replaces an existing file.
    scratch = write_temporary(str(path.parent), text, sync=False)
    try:
        os.link(scratch, path)
    finally:
        os.unlink(scratch)
