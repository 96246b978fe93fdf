"""neurontools config: every setting, its value, and where that came from."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.commands import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.settings import Setting, SettingsReport

EXAMPLES = """examples:
  neurontools config show
  neurontools config show --json
  neurontools config path

A flag beats the environment, the environment beats the file, the file beats the default.
exit codes: 0 fine, 1 something in the file is not obeyed (stderr says what), 2 usage
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools config",
        description="Show the settings, their values and where those came from.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    show = verbs.add_parser("show", help="print every setting", description="Print every setting.")
    show.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser("path", help="print where the file is", description="Print the path of config.yaml.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv), about_settings=True)


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if arguments.verb == "path":
        console.out(env.config_file())
        return 0
    from neurontools.settings import settings_report

    report = settings_report()
    if arguments.json:
        console.out(json.dumps(report.to_json(), indent=2))
    else:
        console.out(_text(report))
        for problem in report.problems:
            console.warn(env.problem_line(report.config_file, problem.line, problem.message, problem.remedy))
    return 1 if report.problems else 0


def _text(report: SettingsReport) -> str:
    rows = [(setting.key, setting.value or "-", _origin(setting, report)) for setting in report.settings]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for key, value, origin in rows)


def _origin(setting: Setting, report: SettingsReport) -> str:
    match setting.source:
        case "environment":
            return setting.variable
        case "config":
            return f"{report.config_file}:{setting.line}"
        case _:
            return "default"
