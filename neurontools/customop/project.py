"""`customop.yaml`: how the library of a project is built, so that `neuron-customop build` needs no arguments."""

from __future__ import annotations

import difflib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.request import BuildRequest, with_stack

FILE_NAME = "customop.yaml"
_KEYS = {
    "name": str,
    "compute": list,
    "shape": list,
    "output": str,
    "cflags": list,
    "multicore": bool,
    "release": bool,
    "sanitize": bool,
    "stack_size": int,
}
_FORM = {str: "text", list: "a list", bool: "true or false", int: "a number"}


@dataclass(frozen=True, slots=True)
class Project:
    """A project's file and what it says is to be built."""

    path: Path
    request: BuildRequest


def find_project(place: Path) -> Path | None:
    """Return the project file that a file, or a directory with one, stands for; None when there is none."""
    path = place / FILE_NAME if place.is_dir() else place
    return path if path.is_file() else None


def load_project(path: Path) -> Project:
    """Read a project's file; paths in it are relative to its directory, and may have wildcards.

    Raises:
        CustomOpBuildError: it cannot be read, is no YAML, or has keys or values that make no sense.
    """
    raw = _read(path)
    here = path.parent
    request = BuildRequest(
        name=str(raw["name"]),
        compute=_sources(path, raw, "compute"),
        shape=_sources(path, raw, "shape"),
        directory=here / str(raw.get("output", ".")),
        cflags=tuple(_texts(path, raw, "cflags")),
        multicore=bool(raw.get("multicore")),
        release=bool(raw.get("release")),
        sanitize=bool(raw.get("sanitize")),
    )
    if "stack_size" in raw:
        request = with_stack(request, cast("int", raw["stack_size"]))
    return Project(path, request)


def _read(path: Path) -> dict[str, object]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        raw = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506  a safe loader
    except OSError as error:
        raise CustomOpBuildError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is no text"
        raise CustomOpBuildError(f"{path}{where}: {problem}", "write YAML: key: value") from error
    if not isinstance(raw, dict):
        raise CustomOpBuildError(f"{path} has no keys", "write at least name, compute and shape")
    _check(path, raw)
    return raw


def _check(path: Path, raw: dict[object, object]) -> None:
    for key, value in raw.items():
        kind = _KEYS.get(str(key))
        if kind is None:
            close = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"did you mean {close[0]}?" if close else f"keys are {', '.join(_KEYS)}"
            raise CustomOpBuildError(f"{path}: unknown key {key}", hint)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CustomOpBuildError(f"{path}: {key} is {value!r}", f"give {_FORM[kind]}")
    for key in ("name", "compute", "shape"):
        if key not in raw:
            raise CustomOpBuildError(f"{path}: no {key}", f"add {key}: ... to it")


def _texts(path: Path, raw: dict[str, object], key: str) -> list[str]:
    values = cast("list[object]", raw.get(key, []))
    for value in values:
        if not isinstance(value, str):
            raise CustomOpBuildError(f"{path}: {key} holds {value!r}", "give a list of texts")
    return cast("list[str]", values)


def _sources(path: Path, raw: dict[str, object], key: str) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for pattern in _texts(path, raw, key):
        whole = os.path.join(path.parent, pattern)
        matches = sorted(glob.glob(whole)) if glob.has_magic(pattern) else [whole]
        if not matches:
            raise CustomOpBuildError(f"{path}: {key}: no file matches {pattern}", "check the pattern")
        found.update(dict.fromkeys(Path(match) for match in matches))
    return tuple(found)
