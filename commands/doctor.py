"""neurontools doctor: installed and missing parts, and how to install them."""

from __future__ import annotations

import argparse

from neurontools.commands import console
from neurontools.commands.parsing import add_json


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools doctor",
        description="Check the installation: what is installed, what is missing and how to install it. Starts nothing.",
        epilog="examples:\n  neurontools doctor\n  neurontools doctor --json\n\n"
        "exit codes: 0 success, 1 something is missing or wrong, 2 usage error",
    )
    add_json(parser)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from neurontools import doctor

    checks = doctor.examine()
    if arguments.json:
        from dataclasses import asdict

        console.print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            console.out(f"{'ok' if check.ok else check.verdict.upper():<9}{check.name:<19}{check.detail}")
            if not check.ok:
                console.out(f"{'':<9}{'':<19}needed for {check.needed_for}: {check.remedy}")
    return 0 if all(check.ok for check in checks) else 1


main = console.command(build_parser, _run, about_settings=True)
