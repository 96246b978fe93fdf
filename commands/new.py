"""neurontools new: write files to start from: a training script, a sample, a kernel, or a custom operator."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.parsing import add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs

_EXAMPLES = """examples:
  neurontools new train             train.py, a training script for torch_xla
  neurontools new train mnist.py
  neurontools new sample            list the samples
  neurontools new sample nanogpt    nanogpt.py, a character-level GPT
  neurontools new sample customops  customops/, all operators with programs that train with them
  neurontools new customop relu     relu/, a C++ operator with its torch function and tests
  neurontools new nki silu          silu/, an NKI kernel with its tests

exit codes: 0 success, 1 the file exists or cannot be written, 2 usage error"""
_OPERATORS = "customops"
_TEMPLATES = "project"
_TAKEN_BY_KERNELS = frozenset({"min", "nisa", "nki", "nl", "numpy", "pytest", "range", "slice"})
_SHARED = re.compile(r'^#include "\.\./([\w.]+)"', re.MULTILINE)


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
    sample = add_verb(verbs, "sample", "write a sample: a training script or a custom operator", _sample)
    sample.add_argument("name", nargs="?", metavar="NAME", help="the sample (default: list them)")
    customop = add_verb(verbs, "customop", "create a project for a custom C++ operator", _customop)
    customop.add_argument("name", metavar="NAME", help="name of the operator")
    customop.add_argument("directory", nargs="?", metavar="DIR", help="directory to create (default: NAME)")
    customop.add_argument(
        "--style",
        choices=("element", "tcm", "multicore"),
        default="tcm",
        help="how the kernel accesses its tensors (default: tcm)",
    )
    nki = add_verb(verbs, "nki", "create an NKI kernel with its tests", _nki)
    nki.add_argument("name", metavar="NAME", help="name of the kernel")
    nki.add_argument("directory", nargs="?", metavar="DIR", help="directory to create (default: NAME)")
    return parser


def _train(arguments: argparse.Namespace) -> int:
    from neurontools import paths

    path = Path(arguments.file)
    _write(
        {path: Path(paths.fixtures_dir()) / "new" / "train.py"},
        f"name another file: neurontools new train {path.stem}2.py",
    )
    console.notice(f"next: neuron-run -- python {path}")
    return 0


def _customop(arguments: argparse.Namespace) -> int:
    from neurontools.customop.scaffold import AccessStyle, create_project

    directory = Path(arguments.directory or arguments.name)
    for path in create_project(arguments.name, directory, AccessStyle(arguments.style)):
        console.out(str(path))
    console.notice(f"next: cd {directory} && neuron-customop build && neuron-customop check")
    return 0


def _nki(arguments: argparse.Namespace) -> int:
    from neurontools import paths
    from neurontools.base.projects import check_name, fill, write_files

    name, directory = arguments.name, Path(arguments.directory or arguments.name)
    check_name("kernel", name, _TAKEN_BY_KERNELS)
    templates = Path(paths.fixtures_dir()) / "new" / "nki"
    texts = {
        file: fill(templates / template, {"NAME": name})
        for file, template in ((f"{name}.py", "kernel.py.txt"), (f"test_{name}.py", "test.py.txt"))
    }
    for path in write_files(directory, texts, "choose another name or directory"):
        console.out(str(path))
    console.notice(f"next: cd {directory} && neuron-run -- pytest")
    return 0


def _sample(arguments: argparse.Namespace) -> int:
    samples = _samples()
    if arguments.name is None:
        width = max(map(len, samples))
        console.out("\n".join(f"{name:<{width}}  {_summary(path)}" for name, path in samples.items()))
        return 0
    name = arguments.name.removesuffix(".py")
    if name not in samples:
        raise UsageError(f"no sample {arguments.name}", f"one of {', '.join(samples)}")
    files = _files(samples[name])
    _write(files, "change to another directory")
    projects = [path.parent for path in files if path.name == "customop.yaml"]
    if projects:
        console.notice(f"next: cd {projects[-1]} && neuron-customop build && neuron-customop check")
    else:
        console.notice(f"next: neuron-run -- python {next(iter(files))}")
    return 0


def _samples() -> dict[str, Path]:
    """Return the installed samples: programs and directories, by name."""
    from neurontools import paths

    fixtures = Path(paths.fixtures_dir())
    operators = fixtures / _OPERATORS
    programs = [
        path for path in (fixtures / "samples").iterdir() if path.suffix == ".py" or _has_sources(path)
    ]
    kernels = [path for path in operators.iterdir() if _has_sources(path) and path.name != _TEMPLATES]
    return {path.stem: path for path in (*sorted(programs), *sorted(kernels), operators)}


def _has_sources(path: Path) -> bool:
    return path.is_dir() and any(file.suffix in {".py", ".cpp"} for file in path.iterdir())


def _summary(path: Path) -> str:
    if path.name == _OPERATORS:
        return "All custom operators, and programs that train with them"
    sources = [path] if path.is_file() else [*path.glob("*.cpp"), *path.glob("*.py")]
    source = next(source for source in sorted(sources) if source.name != "shape.cpp")
    return re.split(r"[:.,](?: |$)| \(", source.read_text(encoding="utf-8").splitlines()[0].strip('"/ '))[0]


def _files(sample: Path) -> dict[Path, Path]:
    """Return what to write for a sample, and where it is installed."""
    if sample.is_file():
        return {Path(sample.name): sample}
    wanted = [path for path in sorted(sample.rglob("*")) if path.is_file()]
    files = {
        path.relative_to(sample.parent): path
        for path in wanted
        if "__pycache__" not in path.parts and path.relative_to(sample).parts[0] != _TEMPLATES
    }
    shared = {
        name
        for path in files.values()
        if path.suffix == ".cpp" and path.parent == sample
        for name in _SHARED.findall(path.read_text(encoding="utf-8"))
    }
    return files | {Path(name): sample.parent / name for name in sorted(shared) if not _has(name, sample)}


def _has(name: str, sample: Path) -> bool:
    """Return whether the current directory has the file of another sample already."""
    path = Path(name)
    return path.is_file() and path.read_bytes() == (sample.parent / name).read_bytes()


def _write(files: dict[Path, Path], remedy: str) -> None:
    from neurontools.base.projects import write_files

    texts = {str(path): source.read_text(encoding="utf-8") for path, source in files.items()}
    for path in write_files(Path(), texts, remedy):
        console.out(str(path))


main = console.command(build_parser)
