"""neurontools doctor: what is installed, what is missing and how to install it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools doctor",
        description="Check the installation: what is installed, what is missing and how to install it. Starts nothing.",
        epilog="examples:\n  neurontools doctor\n  neurontools doctor --json\n\n"
        "exit codes: 0 success, 1 something is missing or wrong, 2 usage error",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv), about_settings=True)


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    from neurontools import doctor

    checks = doctor.examine()
    if arguments.json:
        import json
        from dataclasses import asdict

        console.out(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            console.out(f"{'ok' if check.ok else check.verdict.upper():<9}{check.name:<19}{check.detail}")
            if not check.ok:
                console.out(f"{'':<9}{'':<19}needed for {check.needed_for}: {check.remedy}")
    return 0 if all(check.ok for check in checks) else 1
