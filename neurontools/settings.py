"""Every setting with its value and where that came from: what `neurontools config show` prints."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from neurontools import env, paths
from neurontools.configuration import load


class Source(StrEnum):
    """Where a value came from, strongest first; a flag of a command beats all of them."""

    ENVIRONMENT = "environment"
    CONFIG = "config"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: key in config.yaml, environment variable, value, where that came from (`line` of the file), meaning."""

    key: str
    variable: str
    value: str
    source: Source
    line: int | None
    meaning: str


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Something in the file that is not obeyed: where (line 0: the whole file), what, and what to do about it."""

    line: int
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """The file, whether it is there, every setting, and what is wrong in the file."""

    config_file: str
    exists: bool
    settings: tuple[Setting, ...]
    problems: tuple[ConfigProblem, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def settings_report() -> SettingsReport:
    """Return the settings of this user in this environment; the file is read anew."""
    configuration = load(env.config_file())
    return SettingsReport(
        config_file=configuration.path,
        exists=configuration.exists,
        settings=tuple(
            _setting(variable, default, meaning, configuration.values)
            for variable, default, meaning in env.DOCUMENTED
            if variable not in env.FOR_CHILDREN
        ),
        problems=tuple(
            ConfigProblem(problem.line, problem.message, problem.remedy) for problem in configuration.problems
        ),
    )


def _setting(variable: str, default: str, meaning: str, configured: dict[str, tuple[str, int]]) -> Setting:
    key = variable.removeprefix(env.PREFIX).lower()
    if os.environ.get(variable):
        return Setting(key, variable, os.environ[variable], Source.ENVIRONMENT, None, meaning)
    if key in configured:
        value, line = configured[key]
        return Setting(key, variable, value, Source.CONFIG, line, meaning)
    return Setting(key, variable, default or _made_up(variable), Source.DEFAULT, None, meaning)


def _made_up(variable: str) -> str:
    return paths.runtime_dir() if variable == env.RUNTIME_DIR else ""
