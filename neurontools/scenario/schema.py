"""Scenario files, read and checked as a whole (docs/reference/scenarios.md describes the keys)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from neurontools import paths
from neurontools.base.files import read_input
from neurontools.base.text import did_you_mean, suggest
from neurontools.config import types
from neurontools.config.reader import MAPPING, NULL, FileError, FormatError, Problem, read_yaml
from neurontools.config.types import DURATION, NUMBER, PERCENT, POSITIVE_DURATION, SIZE, WHOLE, WORDS
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.devices import Layout
from neurontools.machine.faults.kinds import EccType, FaultKind
from neurontools.machine.faults.params import FaultSpec, rejection_reason
from neurontools.machine.instances import catalogue
from neurontools.scenario.group_schema import CorePlacement, GroupReader
from neurontools.scenario.model import FaultPlan, HostPlan, Scenario
from neurontools.scenario.work_schema import curve_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.config.reader import Section, Value
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.model import GroupPlan

_SUFFIXES = (".yaml", ".yml")
_DEFAULT_SEED = 1
_DEVICE = types.whole(expected="the number of a device")
_CORE = types.whole(expected="the number of a core")
_LNC = types.whole(expected="1 or 2")


def _fault_plan(at_s: float, **spec: Any) -> FaultPlan:
    return FaultPlan(at_s, FaultSpec(**spec))


_FAULT = types.record(
    _fault_plan,
    "a mapping such as {at: 1m, kind: ecc, device: 3}",
    {"at": ("at_s", DURATION), "kind": ("kind", types.choice(FaultKind, "fault kind"))},
    {
        "device": ("device", _DEVICE),
        "core": ("core", _CORE),
        "to": ("to", _DEVICE),
        "tag": ("tag", WORDS),
        "after_executions": ("after_executions", WHOLE),
        "count": ("count", WHOLE),
        "duration": ("duration_s", DURATION),
        "factor": ("factor", NUMBER),
        "ecc": ("ecc", types.choice(EccType, "ECC type")),
        "amount": ("amount", WHOLE),
        "every": ("every_s", DURATION),
    },
)
_HOST = types.record(
    HostPlan,
    "a mapping such as {cpu_user: 12, cpu_system: 2, memory: 64 GiB}",
    {},
    {
        "cpu_user": ("cpu_user", curve_of(PERCENT, 100.0)),
        "cpu_system": ("cpu_system", curve_of(PERCENT, 100.0)),
        "memory": ("memory", curve_of(SIZE)),
    },
)


class ScenarioError(FileError):
    """A scenario cannot be played; `problems` are all that were found, by line."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        super().__init__(file, problems, "'neurontools help scenarios' describes every key")


def scenario_names() -> tuple[str, ...]:
    """Return the names of the bundled scenarios."""
    files = (os.path.splitext(name) for name in os.listdir(_bundled_directory()))
    return tuple(sorted(name for name, suffix in files if suffix in _SUFFIXES))


def scenario_file(name: str) -> str:
    """Return the file of a scenario: a path, or the name of a bundled scenario.

    Raises:
        UsageError: there is no such scenario.
    """
    if "/" in name or name.endswith(_SUFFIXES) or (name not in scenario_names() and os.path.isfile(name)):
        return name
    if name in scenario_names():
        return f"{_bundled_directory()}/{name}.yaml"
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
    text = read_input(path, NeuronToolsError, "neurontools scenario list shows the bundled scenarios")
    return parse(text, path, seed)


def _bundled_directory() -> str:
    return f"{paths.fixtures_dir()}/scenarios"


def parse(text: str | bytes, file: str = "scenario", seed: int | None = None) -> Scenario:
    """Return the scenario in a text; `file` is its name, for messages.

    Raises:
        ScenarioError: it has mistakes; the message lists all of them.
    """
    try:
        root = read_yaml(text)
    except FormatError as error:
        raise ScenarioError(file, [error.problem]) from error
    if root.kind == NULL:
        raise ScenarioError(file, [Problem(1, "", "the file is empty")])
    scenario = _read_scenario(root, file, seed)
    if scenario is None or root.problems:
        raise ScenarioError(file, root.problems)
    return scenario


def _read_scenario(root: Value, file: str, seed: int | None) -> Scenario | None:
    section = root.section("a mapping with instance, duration and processes")
    if root.problems and root.kind != MAPPING:
        return None
    name = section.read("name", WORDS, os.path.basename(file).removesuffix(".yaml"))
    description = section.require("description", WORDS)
    instance, lnc = _read_instance(section)
    duration_s = section.require("duration", POSITIVE_DURATION)
    file_seed = section.read("seed", WHOLE, _DEFAULT_SEED)
    chosen_seed = file_seed if seed is None else seed
    placement = CorePlacement(0 if instance is None else instance.core_count(lnc))
    groups = _read_groups(section, f"{name}/{chosen_seed}", placement, duration_s)
    faults = _read_faults(section, instance, lnc)
    host = section.read("host", _HOST, HostPlan())
    section.finish()
    if instance is None:
        return None
    return Scenario(
        name, description.strip(), instance.name, lnc, duration_s, chosen_seed, groups, faults, host
    )


def _read_instance(section: Section) -> tuple[InstanceType | None, int]:
    value = section.need("instance")
    lnc = section.read("lnc", _LNC, None)
    name = None if value is None else value.read(WORDS, None)
    if value is None or name is None:
        return None, 1
    try:
        instance = catalogue.instance_type(name)
    except catalogue.UnknownInstanceError:
        value.fail(f"unknown instance type {name!r}", did_you_mean(name, catalogue.instance_names()))
        return None, 1
    chosen = instance.device.lnc_default if lnc is None else lnc
    try:
        instance.cores_per_device(chosen)
    except NeuronToolsError as error:
        section.fail("lnc", error.message, error.remedy)
        return None, 1
    return instance, chosen


def _read_groups(
    section: Section, seed: str, placement: CorePlacement, duration_s: float
) -> tuple[GroupPlan, ...]:
    readers = [
        GroupReader(name, group, f"{seed}/{name}", duration_s)
        for name, group in section.section("processes", "a mapping of groups by name") or ()
    ]
    for reader in readers:
        reader.reserve(placement)
    return tuple(reader.group(placement) for reader in readers)


def _read_faults(section: Section, instance: InstanceType | None, lnc: int) -> tuple[FaultPlan, ...]:
    """Return the faults of a scenario, in order of time."""
    plans = []
    for item in section.items("faults", "a list of faults"):
        before = len(item.problems)
        plan = item.read(_FAULT, _FAULT.placeholder)
        if len(item.problems) > before:
            continue
        rejection = None if instance is None else rejection_reason(plan.spec, _layout(instance, lnc))
        if rejection:
            item.fail(rejection.reason, rejection.remedy)
        plans.append(plan)
    return tuple(sorted(plans, key=lambda plan: plan.at_s))


def _layout(instance: InstanceType, lnc: int) -> Layout:
    links = tuple(neighbours or () for neighbours in instance.connected_to)
    return Layout(instance.device_count, instance.cores_per_device(lnc), instance.device.memory_bytes, links)
