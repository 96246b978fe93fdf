"""The scenarios that come with neurontools, and how a scenario is found by name or file."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.errors import UsageError
from neurontools.scenario import schema

if TYPE_CHECKING:
    from neurontools.scenario.model import Scenario

_SUFFIXES = (".yaml", ".yml")


def scenario_names() -> tuple[str, ...]:
    """Return the names of the scenarios that come with neurontools."""
    files = (os.path.splitext(name) for name in os.listdir(_directory()))
    return tuple(sorted(name for name, suffix in files if suffix in _SUFFIXES))


def scenario_file(name: str) -> str:
    """Return the file of a scenario: a path, or the name of one that comes with neurontools.

    Raises:
        UsageError: there is none.
    """
    if "/" in name or name.endswith(_SUFFIXES) or (name not in scenario_names() and os.path.isfile(name)):
        return name
    if name in scenario_names():
        return f"{_directory()}/{name}.yaml"
    near = get_close_matches(name, scenario_names(), n=1)
    raise UsageError(
        f"no scenario {name!r}",
        f"did you mean {near[0]!r}?"
        if near
        else "neurontools scenario list shows them; a file needs its path",
    )


def load(name: str, seed: int | None = None) -> Scenario:
    """Return a scenario by name or file, with another seed than its own if one is given.

    Raises:
        UsageError: there is none.
        ScenarioError: it has mistakes, all of which are told.
        NeuronToolsError: it can't be read.
    """
    return schema.load(scenario_file(name), seed)


def _directory() -> str:
    return f"{paths.fixtures_dir()}/scenarios"
