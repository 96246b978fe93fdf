"""A machine that belongs to one test: in a directory of its own, found by its environment, gone with its process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from neurontools import env
from neurontools.errors import NeuronToolsError
from neurontools.machine import launch
from neurontools.machine.api import Machine, start_options
from neurontools.machine.client import Client
from neurontools.machine.processes import wait_for_end
from neurontools.runtime import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from neurontools.machine.info import DaemonInfo
    from neurontools.pytest.wish import Choices

DEFAULT_NAME = "test"
TIMEOUT_S = 120.0
_STOP_S = 10.0


class NeuronMachine(Machine):
    """A machine and how to run programs on it.

    `environ` are the variables by which programs find it; they are set in the process of the tests too.
    """

    def __init__(self, client: Client, info: DaemonInfo, environ: Mapping[str, str]) -> None:
        super().__init__(client, info)
        self.environ = dict(environ)

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        check: bool = False,
        timeout_s: float = TIMEOUT_S,
        stdin: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine and return its exit code and what it printed.

        Args:
            command: program and arguments; `neuron-ls` and its like, and `python`, are those of this installation.
            check: raise an error when the exit code is not 0.
            timeout_s: kill it after so many seconds.
            stdin: what it reads.
            environ: variables to set beside those of this process.
            cwd: directory to run in.

        Raises:
            subprocess.CalledProcessError: with `check`, the exit code is not 0.
            subprocess.TimeoutExpired: it took too long.
            FileNotFoundError: there is no such program.
        """
        variables = {**os.environ, **self.environ, **(environ or {})}
        scripts = sysconfig.get_path("scripts")
        variables["PATH"] = f"{scripts}{os.pathsep}{variables.get('PATH', os.defpath)}"
        return subprocess.run(
            [os.fspath(word) for word in command],
            check=check,
            timeout=timeout_s,
            input=stdin,
            env=variables,
            cwd=cwd,
            capture_output=True,
            text=True,
        )


@contextmanager
def private_machine(
    directory: str, instance: str | None = None, *, name: str | None = None, **choices: Unpack[Choices]
) -> Iterator[NeuronMachine]:
    """Start a machine for the time of a block; programs that are started inside find it by their environment.

    It ends with the block, or with this process, however that ends. A runtime that was opened in this process inside
    of the block and not closed is closed.

    Args:
        directory: private, for sockets and pages; it is removed.
        instance: instance type, None for that of NEURONTOOLS_INSTANCE.
        name: the machine's name, "test" when None.
        choices: as of `neurontools.machine.start`.

    Raises:
        NeuronToolsError: there is no such machine, or it could not start.
    """
    environ = {
        env.RUNTIME_DIR: directory,
        env.MACHINE: DEFAULT_NAME if name is None else name,
        env.AUTOSTART: "0",
    }
    before = process.current()
    with pytest.MonkeyPatch.context() as patch:
        _set(patch, environ)
        info = launch.start(start_options(instance, private=True, **choices))
        try:
            with Client.connect() as client:
                yield NeuronMachine(client, info, environ)
        finally:
            _set(patch, environ)  # the test may have changed it
            _close_runtime(before)
            _stop(info)
            shutil.rmtree(directory, ignore_errors=True)


def _set(patch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    for variable, value in environ.items():
        patch.setenv(variable, value)


def _stop(info: DaemonInfo) -> None:
    try:
        launch.stop(info.machine, force=True)
    except NeuronToolsError:
        wait_for_end(info.pid, _STOP_S)  # it ended already, or ends


def _close_runtime(before: process.OpenRuntime | None) -> None:
    runtime = process.current()
    if runtime is not None and runtime is not before:
        runtime.close()
