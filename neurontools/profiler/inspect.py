"""Running a program with profiling on, by the environment that the runtime honours."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from neurontools.errors import NeuronToolsError
from neurontools.profiler.settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping


def inspect_environment(output_dir: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which programs capture system and device profiles into a directory."""
    return {
        **environ,
        PREFIX + "ENABLE": "1",
        PREFIX + "OUTPUT_DIR": os.path.abspath(output_dir),
        PREFIX + "SYSTEM_PROFILE": environ.get(PREFIX + "SYSTEM_PROFILE", "1"),
        PREFIX + "DEVICE_PROFILE": environ.get(PREFIX + "DEVICE_PROFILE", "1"),
    }


def run_inspected(command: tuple[str, ...], output_dir: str) -> NoReturn:
    """Replace this process by a program that is profiled.

    Raises:
        NeuronToolsError: there is no such program.
    """
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), inspect_environment(output_dir, os.environ))  # noqa: S606  not a shell on purpose
    except OSError as error:
        raise NeuronToolsError(
            f"cannot run {command[0]}: {error.strerror}", "check the program's name"
        ) from error
