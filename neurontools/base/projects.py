"""New projects: the names that they may have, the templates of their files, and how those are written."""

from __future__ import annotations

import keyword
import os
import re
import sys
from typing import TYPE_CHECKING

from neurontools.base.files import write_temporary
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MARK = re.compile(r"@([A-Z_]+)@")


def check_name(kind: str, name: str, taken: frozenset[str]) -> None:
    """Check that a name is valid for a module and its function.

    Args:
        kind: what the name is for.
        name: the name.
        taken: names that the project needs itself.

    Raises:
        NeuronToolsError: the name is invalid.
    """
    if not _NAME.match(name) or keyword.iskeyword(name) or name in taken | sys.stdlib_module_names:
        raise NeuronToolsError(
            f'invalid {kind} name "{name}"',
            "use letters, digits and _, and not a keyword, a module of Python or a name of torch or C++",
        )


def write_files(directory: Path, texts: dict[str, str], remedy: str) -> tuple[Path, ...]:
    """Write new files, by their paths in a directory, none of which exists, and return their paths.

    Args:
        directory: made where it does not exist.
        texts: what each file contains.
        remedy: what to do where one of them exists.

    Raises:
        NeuronToolsError: one of them exists, or the directory cannot be written.
    """
    existing = [file for file in texts if os.path.lexists(directory / file)]
    if existing:
        raise NeuronToolsError(f"{directory / existing[0]} already exists", remedy)
    try:
        for file, text in texts.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            _write_new(directory / file, text)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write {error.filename or directory}: {error.strerror}", "choose another directory"
        ) from error
    return tuple(directory / file for file in texts)


def fill(template: Path, values: dict[str, str]) -> str:
    """Return the text of a template with values for its marks, such as `@NAME@`."""
    return _MARK.sub(lambda mark: values[mark[1]], template.read_text(encoding="utf-8"))


def _write_new(path: Path, text: str) -> None:
    # Linked: the file appears complete, and never replaces an existing file.
    scratch = write_temporary(str(path.parent), text, sync=False)
    try:
        os.link(scratch, path)
    finally:
        os.unlink(scratch)
