"""neurontools demo: train a small network end to end, in a temporary directory and on a separate machine."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from neurontools import env, paths
from neurontools.commands import console
from neurontools.errors import TORCH_REMEDY, MissingDependencyError, NeuronToolsError, UsageError

INSTANCE = "trn1.32xlarge"
MACHINE = "demo"
NEXT = """Next steps:
  neuron-top                                   the dashboard, while a program runs
  neuron-run --profile prof -- python train.py your own script on the simulated device
  neuron-profile view prof                     its timeline in the terminal
  neuron-ls --topology                         the machine as a drawing
  neurontools doctor                           check the installation
"""


class DemoError(NeuronToolsError):
    """A step of the demo failed."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools demo",
        description="Build a custom C++ operator, train a small network with it on a simulated trn1.32xlarge, with a "
        "cold and a warm compile cache, and inspect it with the tools. Uses a temporary directory and a "
        "separate machine, and removes both at the end.",
        epilog="examples:\n  neurontools demo\n  neurontools demo --epochs 5 --keep\n\n"
        "exit codes: 0 success, 1 a step failed, 2 usage error, 130 interrupted",
    )
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="training epochs (default: 20)")
    parser.add_argument("--keep", action="store_true", help="keep the directory and print its path")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.epochs < 1:
        raise UsageError(f"--epochs {arguments.epochs} is less than 1", "use at least 1")
    try:
        import_module("torch")  # else the training would fail with a traceback
    except ImportError as error:
        raise MissingDependencyError(f"the demo needs torch: {error}", TORCH_REMEDY) from error
    root = Path(tempfile.mkdtemp(prefix="neurontools-demo-"))
    run = DemoRun(root)
    try:
        run.play(arguments.epochs)
    finally:
        run.close()
        if arguments.keep:
            console.out(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    console.out("\n" + NEXT.rstrip())
    return 0


class DemoRun:
    """A private place for the demo: its directories, its machine, its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.work.mkdir()
        self.environment = os.environ | {
            env.RUNTIME_DIR: str(root / "run"),
            env.MACHINE: MACHINE,
            env.AUTOSTART: "0",
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "TMPDIR": str(self.work),  # torch leaves a directory there
            "NEURON_COMPILE_CACHE_URL": str(root / "compile-cache"),
            "NEURON_RT_NUM_CORES": "1",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("NEURON_CC_FLAGS", "NEURON_RT_VISIBLE_CORES"):
            self.environment.pop(name, None)

    def play(self, epochs: int) -> None:
        """Run the steps; each prints the command it runs and what that command prints."""
        kernels = Path(paths.fixtures_dir()) / "customops" / "relu_tcm"
        shutil.copytree(kernels, self.work / "relu_tcm")
        shutil.copy(Path(paths.fixtures_dir()) / "demo" / "train.py", self.work)
        training = f"python train.py --library librelu.so --epochs {epochs}"
        build = "neuron-customop build relu --compute relu_tcm/relu.cpp --shape relu_tcm/shape.cpp -o ."
        self.step("A machine", f"neurond start --instance {INSTANCE} --machine {MACHINE}")
        self.step("A custom C++ operator", build)
        self.title("Training, with an empty compile cache")
        self.train(f"neuron-run --profile prof -- {training}")
        self.title("The same training, with a warm compile cache")
        self.train(f"neuron-run -- {training}", show_devices=False)
        self.step("The compile cache", "neuron-cache ls")
        self.step("The profile of the first run", "neuron-profile view prof --output-format summary-text")

    def title(self, text: str) -> None:
        """Print the heading of a step."""
        console.out(f"\n== {text}")

    def step(self, title: str, command: str) -> None:
        """Run one tool to its end."""
        self.title(title)
        with self._start(command) as child:
            pass
        self._check(command, child.returncode)

    def train(self, command: str, *, show_devices: bool = True) -> None:
        """Run the training and, after its first epoch, look at the machine with neuron-ls."""
        with self._start(command, stdout=subprocess.PIPE) as child:
            try:
                for line in child.stdout or ():
                    console.out(line.rstrip("\n"))
                    if show_devices and line.startswith("epoch"):
                        show_devices = False
                        self.step("While it runs", "neuron-ls")
                        console.out("")
            except BaseException:
                child.terminate()
                raise
        self._check(command, child.returncode)

    def close(self) -> None:
        """End the machine, whatever happened before."""
        if (self.root / "run" / MACHINE).exists():
            stop = f"neurond stop --force --machine {MACHINE}"
            with self._start(stop, stdout=subprocess.DEVNULL, announce=False) as child:
                child.wait()

    def _start(
        self, command: str, stdout: int | None = None, *, announce: bool = True
    ) -> subprocess.Popen[str]:
        if announce:
            console.out(f"$ {command}")
        sys.stdout.flush()
        program, *arguments = command.split()
        path = os.path.join(os.path.dirname(sys.executable), program)
        return subprocess.Popen(
            [path, *arguments],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            encoding="utf-8",
        )

    def _check(self, command: str, code: int) -> None:
        if code != 0:
            raise DemoError(
                f"the demo's {command.split(maxsplit=1)[0]} failed with exit code {code}",
                "run 'neurontools doctor' to check the installation",
            )


main = console.command(build_parser, _run)
