"""neurontools config: every setting, its value, and where the value comes from."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import env, paths
from neurontools.base.text import table
from neurontools.commands import console
from neurontools.config.settings import Configuration, load

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    show = verbs.add_parser("show", help="print every setting", description="Print every setting.")
    show.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser(
        "path", help="print the path of config.yaml", description="Print the path of config.yaml."
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv), about_settings=True)


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if arguments.verb == "path":
        console.out(env.config_file())
        return 0
    configuration = load(env.config_file())
    settings = [
        _setting(variable, default, meaning, configuration.values)
        for variable, default, meaning in env.DOCUMENTED
        if variable not in env.FOR_CHILDREN
    ]
    if arguments.json:
        console.out(json.dumps(_to_json(configuration, settings), indent=2))
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
