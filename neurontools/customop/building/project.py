"""The project file `customop.yaml`: build request and check options."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.config import types
from neurontools.config.reader import FileError, FormatError, read_yaml
from neurontools.config.types import FLAG, NUMBER, TEXT, WHOLE, WORDS
from neurontools.customop.building.request import BuildRequest, with_stack
from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from neurontools.config.reader import Section

FILE_NAME = "customop.yaml"
_TEXTS = types.list_of(TEXT, "a list of texts")
_INPUTS = types.list_of(WORDS, "a list of texts")


@dataclass(frozen=True, slots=True)
class CheckWords:
    """Check options of an operator, like those of `neuron-customop check`.

    Args:
        inputs: values of `--input`.
        reference: value of `--reference`, "" for none.
        backward: values of `--backward`; None: found by name.
        tolerance: value of `--tolerance`; None: torch's.
    """

    inputs: tuple[str, ...] = ()
    reference: str = ""
    backward: tuple[str, ...] | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A project file: path, build request, check options by operator."""

    path: Path
    request: BuildRequest
    checks: dict[str, CheckWords]

    @property
    def library(self) -> Path:
        """Path of the built library."""
        return Path(os.path.abspath(self.request.directory or ".")) / f"lib{self.request.name}.so"


def find_project(place: Path) -> Path | None:
    """Return the project file of a path, which may be its directory; None if there is none."""
    path = place / FILE_NAME if place.is_dir() else place
    return path if path.is_file() else None


def load_project(path: Path) -> Project:
    """Read a project file. Its paths are relative to its directory and may have wildcards.

    Raises:
        CustomOpBuildError: it cannot be read, is not YAML, or has mistakes, all of which are listed.
    """
    try:
        root = read_yaml(path.read_bytes())
    except OSError as error:
        raise CustomOpBuildError(f"cannot read {path}: {error.strerror}") from error
    except FormatError as error:
        raise CustomOpBuildError(error.problem.located(str(path)), "write YAML: key: value") from error
    section = root.section("keys: at least name, compute and shape")
    request = BuildRequest(
        name=section.require("name", TEXT),
        compute=_read_sources(section, "compute", path.parent),
        shape=_read_sources(section, "shape", path.parent),
        directory=path.parent / section.read("output", TEXT, "."),
        cflags=tuple(section.read("cflags", _TEXTS, [])),
        multicore=section.read("multicore", FLAG, default=False),
        release=section.read("release", FLAG, default=False),
        sanitize=section.read("sanitize", FLAG, default=False),
    )
    stack_size = section.read("stack_size", WHOLE, None)
    checks = {
        name: _read_check(value.section("keys: input, reference, backward, tolerance"))
        for name, value in section.section("check", "operators and what to check them with") or ()
    }
    section.finish()
    if root.problems:
        message = FileError(str(path), root.problems).message
        raise CustomOpBuildError(message, "'neurontools help neuron-customop' lists the keys")
    return Project(path, request if stack_size is None else with_stack(request, stack_size), checks)


def _read_check(section: Section) -> CheckWords:
    backward = section.read("backward", _TEXTS, None)
    words = CheckWords(
        inputs=tuple(section.read("input", _INPUTS, [])),
        reference=section.read("reference", TEXT, ""),
        backward=None if backward is None else tuple(backward),
        tolerance=section.read("tolerance", NUMBER, None),
    )
    section.finish()
    return words


def _read_sources(section: Section, key: str, directory: Path) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for pattern in section.require(key, _TEXTS):
        whole = os.path.join(directory, pattern)
        matches = sorted(glob.glob(whole)) if glob.has_magic(pattern) else [whole]
        if not matches:
            section.fail(key, f"no file matches {pattern}")
        found.update(dict.fromkeys(Path(match) for match in matches))
    return tuple(found)
