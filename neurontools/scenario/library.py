"""The bundled scenarios, and scenarios by name or file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.text import suggest
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.scenario import schema

if TYPE_CHECKING:
    from neurontools.scenario.model import Scenario

_SUFFIXES = (".yaml", ".yml")


def scenario_names() -> tuple[str, ...]:
    """Return the names of the bundled scenarios."""
    files = (os.path.splitext(name) for name in os.listdir(_directory()))
    return tuple(sorted(name for name, suffix in files if suffix in _SUFFIXES))


def scenario_file(name: str) -> str:
    """Return the file of a scenario: a path, or the name of a bundled scenario.

    Raises:
        UsageError: there is no such scenario.
    """
    if "/" in name or name.endswith(_SUFFIXES) or (name not in scenario_names() and os.path.isfile(name)):
        return name
    if name in scenario_names():
        return f"{_directory()}/{name}.yaml"
    match = suggest(name, scenario_names())
    raise UsageError(
        f"unknown scenario {name!r}",
        f"did you mean {match!r}?"
        if match
        else "neurontools scenario list shows the bundled scenarios; a file needs its path",
    )


def load(name: str, seed: int | None = None) -> Scenario:
    """Return a scenario by name or file.

    Args:
        name: of a bundled scenario, or a file.
        seed: replaces the scenario's own.

    Raises:
        UsageError: there is no such scenario.
        ScenarioError: it has mistakes; the message lists all of them.
        NeuronToolsError: it cannot be read.
    """
    path = scenario_file(name)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "neurontools scenario list shows the bundled scenarios"
        ) from error
    return schema.parse(text, path, seed)


def _directory() -> str:
    return f"{paths.fixtures_dir()}/scenarios"
