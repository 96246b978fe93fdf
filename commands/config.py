"""neurontools config: every setting, its value, and where the value comes from."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass
from enum import StrEnum

from neurontools import env, paths
from neurontools.base.text import table
from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_verb
from neurontools.config.settings import Configuration, load

EXAMPLES = """examples:
  neurontools config show
  neurontools config show --json
  neurontools config path

Precedence: flag, environment variable, config.yaml, default.

exit codes: 0 success, 1 config.yaml has mistakes (listed on stderr), 2 usage error
"""


class SettingSource(StrEnum):
    """Where a value comes from, strongest first; a flag of a command beats all of them."""

    ENVIRONMENT = "environment"
    CONFIG = "config"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: key in config.yaml, environment variable, value, its source (`line` of the file), meaning."""

    key: str
    variable: str
    value: str
    source: SettingSource
    line: int | None
    meaning: str


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools config",
        description="Show the settings, their values and where the values come from.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    add_json(add_verb(verbs, "show", "print every setting", _show))
    add_verb(verbs, "path", "print the path of config.yaml", _path)
    return parser


def _path(_arguments: argparse.Namespace) -> int:
    console.out(env.config_file())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    configuration = load(env.config_file())
    settings = [
        _setting(variable, default, meaning, configuration.values)
        for variable, default, meaning in env.DOCUMENTED
        if variable not in env.FOR_CHILDREN
    ]
    if arguments.json:
        console.print_json(_to_json(configuration, settings))
    else:
        rows = [
            (setting.key, setting.value or "-", _origin(setting, configuration.path)) for setting in settings
        ]
        console.out(table(None, rows, "<<<"))
        for problem in configuration.problems:
            console.warn(problem.located(configuration.path))
    return 1 if configuration.problems else 0


def _setting(variable: str, default: str, meaning: str, configured: dict[str, tuple[str, int]]) -> Setting:
    key = variable.removeprefix(env.PREFIX).lower()
    if os.environ.get(variable):
        return Setting(key, variable, os.environ[variable], SettingSource.ENVIRONMENT, None, meaning)
    if key in configured:
        value, line = configured[key]
        return Setting(key, variable, value, SettingSource.CONFIG, line, meaning)
    if variable == env.RUNTIME_DIR:
        default = paths.runtime_dir()
    return Setting(key, variable, default, SettingSource.DEFAULT, None, meaning)


def _to_json(configuration: Configuration, settings: list[Setting]) -> dict[str, object]:
    return {
        "config_file": configuration.path,
        "exists": configuration.exists,
        "settings": [asdict(setting) for setting in settings],
        "problems": [
            {"line": problem.line, "key": problem.key, "message": problem.message, "remedy": problem.hint}
            for problem in configuration.problems
        ],
    }


def _origin(setting: Setting, path: str) -> str:
    match setting.source:
        case SettingSource.ENVIRONMENT:
            return setting.variable
        case SettingSource.CONFIG:
            return f"{path}:{setting.line}"
        case SettingSource.DEFAULT:
            return "default"


main = console.command(build_parser, about_settings=True)
