"""neurontools new: write the files to start from: a training script, or a project for a custom operator."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.customop import add_new
from neurontools.commands.parsing import add_verb
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs

_EXAMPLES = """examples:
  neurontools new train             train.py, a training script for torch_xla
  neurontools new train mnist.py
  neurontools new customop relu     relu/, a C++ operator with its torch function and tests

exit codes: 0 success, 1 the file exists or cannot be written, 2 usage error"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools new",
        description="Write files to start from. Existing files are not replaced.",
        epilog=_EXAMPLES,
    )
    verbs: Verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    train = add_verb(verbs, "train", "write a training script", _train)
    train.add_argument(
        "file", nargs="?", default="train.py", metavar="FILE", help="file to create (default: train.py)"
    )
    add_new(add_verb(verbs, "customop", "create a project for a custom C++ operator", _customop))
    return parser


def _train(arguments: argparse.Namespace) -> int:
    from neurontools import paths

    path = Path(arguments.file)
    text = (Path(paths.fixtures_dir()) / "new" / "train.py").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise NeuronToolsError(
            f"{path} exists", f"name another file: neurontools new train {path.stem}2.py"
        ) from error
    console.out(str(path))
    console.notice(f"next: neuron-run -- python {path}")
    return 0


def _customop(arguments: argparse.Namespace) -> int:
    from neurontools.commands.customop.build import run_new

    return run_new(arguments)


main = console.command(build_parser)
