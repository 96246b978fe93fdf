"""Daemons that start as copies of a process that has imported neurond's modules: a new Python takes twenty times as long."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from neurontools.machine import launch
from tests import loaded_python_client
from tests.loaded_python import variables_of_python

if TYPE_CHECKING:
    from typing import BinaryIO

    from neurontools.machine.machine_config import StartOptions

# As the package's __main__.
PREAMBLE = "import sys; sys.modules['ssl'] = None; import neurontools.machine.daemon.daemon"
# As launch._start_process: a session of its own, then the package's __main__.
PROGRAM = (
    "import os, runpy\n"
    "os.setsid()\n"
    "runpy.run_module('neurontools.machine.daemon', run_name='__main__', alter_sys=True)"
)
READY_FD = 3

start_new_process = launch._start_process


def resource_limits() -> list[tuple[int, int]]:
    """Return the limits that a child of this process has and that tests change."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    return [resource.getrlimit(kind) for kind in kinds]


def start_copies(address: str, variables: dict[str, str]) -> None:
    """Let `launch.start` in this process start daemons as copies of the process behind `address`.

    Args:
        address: socket of that process.
        variables: those that it read when it started; for others, or with other limits, a new Python starts.
    """

    limits = resource_limits()

    def start_copy(options: StartOptions, ready_fd: int, log_file: BinaryIO) -> None:
        environ = launch._environment()
        if (variables_of_python(environ), resource_limits()) != (variables, limits):
            start_new_process(options, ready_fd, log_file)
            return
        with open(os.devnull) as none:
            loaded_python_client.run(
                address,
                ["-c", PROGRAM, *launch._arguments(options, READY_FD)],
                "/",
                environ,
                {0: none.fileno(), 1: log_file.fileno(), 2: log_file.fileno(), READY_FD: ready_fd},
            )

    launch._start_process = start_copy
