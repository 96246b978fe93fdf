"""`customop.yaml`: how the library of a project is built, so that `neuron-customop build` needs no arguments."""

from __future__ import annotations

import difflib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from neurontools.customop.building.request import BuildRequest, with_stack
from neurontools.customop.errors import CustomOpBuildError

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
    "check": dict,
}
_CHECK_KEYS = {"input": list, "reference": str, "backward": list, "tolerance": float}
_FORM = {
    str: "text",
    list: "a list",
    bool: "true or false",
    int: "a number",
    float: "a number such as 0.001",
    dict: "keys: operators and what to check them with",
}


@dataclass(frozen=True, slots=True)
class CheckWords:
    """What an operator is to be checked with, as the options of `neuron-customop check` say it.

    Args:
        inputs: `--input`, one for each.
        reference: `--reference`, "" for none.
        backward: `--backward`, one for each; None: what is found by name.
        tolerance: `--tolerance`, None for torch's own.
    """

    inputs: tuple[str, ...] = ()
    reference: str = ""
    backward: tuple[str, ...] | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A project's file, what it says is to be built, and what its operators are to be checked with, by name."""

    path: Path
    request: BuildRequest
    checks: dict[str, CheckWords]

    @property
    def library(self) -> Path:
        """Where the library is, once it was built."""
        return Path(os.path.abspath(self.request.directory or ".")) / f"lib{self.request.name}.so"


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
    return Project(path, request, _checks(path, cast("dict[object, object]", raw.get("check", {}))))


def _checks(path: Path, raw: dict[object, object]) -> dict[str, CheckWords]:
    checks = {}
    for name, given in raw.items():
        place = f"check: {name}"
        if not isinstance(given, dict):
            raise CustomOpBuildError(f"{path}: {place} is {given!r}", f"keys are {', '.join(_CHECK_KEYS)}")
        _check_keys(path, given, _CHECK_KEYS, place)
        words = cast("dict[str, object]", given)
        backward = tuple(_texts(path, words, "backward")) if "backward" in words else None
        inputs = tuple(map(str, cast("list[object]", words.get("input", []))))
        tolerance = cast("float | None", words.get("tolerance"))
        checks[str(name)] = CheckWords(inputs, str(words.get("reference", "")), backward, tolerance)
    return checks


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


def _check_keys(path: Path, raw: dict[object, object], keys: dict[str, type], place: str = "") -> None:
    where = f"{path}: {place}: " if place else f"{path}: "
    for key, value in raw.items():
        kind = keys.get(str(key))
        if kind is None:
            close = difflib.get_close_matches(str(key), keys, 1)
            hint = f"did you mean {close[0]}?" if close else f"keys are {', '.join(keys)}"
            raise CustomOpBuildError(f"{where}unknown key {key}", hint)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CustomOpBuildError(f"{where}{key} is {value!r}", f"give {_FORM[kind]}")


def _check(path: Path, raw: dict[object, object]) -> None:
    _check_keys(path, raw, _KEYS)
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
