"""A copy of the installed package, the tests and the tools, in which one mutant at a time is tested."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PR_SET_CHILD_SUBREAPER = 36


class Worker:
    """An environment of its own: a virtual environment whose package is a copy, and a copy of the tracked files."""

    def __init__(self, directory: Path, repository: Path) -> None:
        self.log = directory / "log"
        self.tree = directory / "tree"
        self._venv = directory / "venv"
        self._python = self._venv / "bin" / "python"
        shutil.rmtree(directory, ignore_errors=True)
        venv.create(self._venv, symlinks=True)
        installed = Path(sysconfig.get_path("purelib"))
        site = next(self._venv.glob("lib/python*/site-packages"))
        self.package = site / "neurontools"
        shutil.copytree(installed / "neurontools", self.package, ignore=shutil.ignore_patterns("__pycache__"))
        for metadata in installed.glob("neurontools-*.dist-info"):
            shutil.copytree(metadata, site / metadata.name)
        (site / "outer.pth").write_text(f"{installed}\n", encoding="utf-8")
        for start_up in installed.glob("*coverage*.pth"):  # measures the processes that tests start
            shutil.copy2(start_up, site)
        self._copy_scripts(Path(sys.executable).parent)
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=repository, capture_output=True, check=True
        ).stdout
        for name in filter(None, os.fsdecode(tracked).split("\0")):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, self.tree / name, follow_symlinks=False)

    def _copy_scripts(self, scripts: Path) -> None:
        for script in scripts.iterdir():
            target = self._venv / "bin" / script.name
            if target.exists() or script.is_symlink() or not script.is_file():
                continue
            content = script.read_bytes()
            shebang = f"#!{scripts}/python".encode()
            if content.startswith(shebang):
                target.write_bytes(f"#!{self._python}".encode() + content[len(shebang) :])
                target.chmod(0o755)

    def run(
        self,
        tests: Iterable[str],
        timeout_s: float,
        *options: str,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[str, float]:
        """Run test files or folders; their output goes to the file `log`.

        Args:
            tests: their paths in the tree.
            timeout_s: seconds after which they are killed.
            options: of pytest.
            variables: added to the environment.

        Returns:
            `passed`, `failed` or `timeout`, and the seconds that it took.
        """
        ctypes.CDLL(None).prctl(
            _PR_SET_CHILD_SUBREAPER, 1
        )  # so that stray daemons become children of this process
        # The script and not the module: `python -m` would find the checkout's package before the installed one.
        command = [
            self._python,
            self._venv / "bin" / "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            *options,
        ]
        environment = os.environ | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{self._venv}/bin:{os.environ['PATH']}",
            **variables,
        }
        start_s = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            outcome = "passed" if process.wait(timeout_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "timeout"
        duration_s = time.monotonic() - start_s
        self._kill_strays()
        process.wait()
        return outcome, duration_s

    @staticmethod
    def _kill_strays() -> None:
        while children := psutil.Process().children(recursive=True):
            for child in children:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    pass
            psutil.wait_procs(children, timeout=1)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
