"""Import what the commands import: a copy of this process (tests/loaded_python.py) runs one in a tenth of the time."""

from __future__ import annotations

import importlib
import pkgutil

PACKAGES = (
    "base",
    "cache",
    "commands",
    "compiler",
    "config",
    "machine",
    "monitor",
    "profiler",
    "scenario",
    "sources",
    "sysfs",
)

for package in PACKAGES:
    path = importlib.import_module(f"neurontools.{package}").__path__
    for module in pkgutil.walk_packages(path, f"neurontools.{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
