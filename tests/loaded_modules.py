"""What a process imports before it is copied (tests/loaded_python.py), so that no copy has to."""

from __future__ import annotations

import importlib
import pkgutil

COMMANDS = (
    "base",
    "cache",
    "commands",
    "compiler",
    "config",
    "machine",
    "monitor",
    "profiler",
    "runtime",
    "scenario",
    "sources",
    "sysfs",
)
PROGRAMS = ("base", "cache", "compiler", "machine", "profiler", "runtime", "xla")
"""What programs on the device import; none of it makes the device, which is up to `neuron-run` and the program."""


def load(packages: tuple[str, ...]) -> None:
    """Import every module of these packages of ours."""
    for package in packages:
        path = importlib.import_module(f"neurontools.{package}").__path__
        for module in pkgutil.walk_packages(path, f"neurontools.{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
