"""A scenario file: read, checked as a whole, every process given its cores (docs/reference/scenarios.md describes the keys)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances import catalogue
from neurontools.scenario.curve_schema import curve_of
from neurontools.scenario.fault_schema import faults_of
from neurontools.scenario.group_schema import GroupReader
from neurontools.scenario.model import HostPlan, Scenario
from neurontools.scenario.nodes import read_yaml
from neurontools.scenario.placement import Placement
from neurontools.scenario.problems import Problem, ScenarioError, suggestion
from neurontools.scenario.quantities import (
    DURATION_FORM,
    PERCENT_FORM,
    SIZE_FORM,
    duration,
    percent,
    size,
    whole,
)

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.model import GroupPlan
    from neurontools.scenario.nodes import Item, Section

_DEFAULT_SEED = 1


def load(path: str, seed: int | None = None) -> Scenario:
    """Read a scenario file.

    Args:
        path: the file.
        seed: instead of the file's own.

    Raises:
        ScenarioError: it has mistakes, all of which are told.
        NeuronToolsError: it can't be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "neurontools scenario list shows those that come along"
        ) from error
    except UnicodeDecodeError as error:
        raise ScenarioError(path, [Problem(1, "", "is no UTF-8 text")]) from error
    return parse(text, path, seed)


def parse(text: str, file: str = "scenario", seed: int | None = None) -> Scenario:
    """Return the scenario in a text; `file` is its name, for messages.

    Raises:
        ScenarioError: it has mistakes, all of which are told.
    """
    root = read_yaml(file, text)
    scenario = _scenario(root, file, seed)
    if scenario is None or root.problems:
        raise ScenarioError(file, root.problems)
    return scenario


def _scenario(root: Item, file: str, seed: int | None) -> Scenario | None:
    section = root.section("a mapping with instance, duration and processes")
    if root.problems and not section.all():
        return None
    name = section.scalar("name", str, "a name", os.path.basename(file).removesuffix(".yaml"))
    described = section.need("description")
    description = "" if described is None else described.scalar(str, "a text", "")
    instance, lnc = _instance(section)
    length = section.need("duration")
    duration_s = 1.0 if length is None else length.scalar(duration, DURATION_FORM, 1.0)
    if length is not None and duration_s <= 0:
        length.wrong(f"expected {DURATION_FORM}, longer than 0")
    own_seed = section.scalar("seed", whole, "a whole number", _DEFAULT_SEED)
    chosen_seed = own_seed if seed is None else seed
    placement = Placement(0 if instance is None else instance.core_count(lnc))
    groups = _groups(section, f"{name}/{chosen_seed}", placement, duration_s)
    faults = faults_of(section.get("faults"), instance, lnc)
    host = _host(section)
    section.finish()
    if instance is None:
        return None
    return Scenario(
        name, description.strip(), instance.name, lnc, duration_s, chosen_seed, groups, faults, host
    )


def _instance(section: Section) -> tuple[InstanceType | None, int]:
    item = section.need("instance")
    lnc_item = section.get("lnc")
    lnc = None if lnc_item is None else lnc_item.scalar(whole, "1 or 2", 1)
    if item is None:
        return None, 1
    name = item.scalar(str, "an instance type such as trn1.32xlarge", "")
    try:
        instance = catalogue.instance_type(name)
    except NeuronToolsError:
        if name:
            item.wrong(f"no instance type {name!r}; {suggestion(name, catalogue.instance_names())}")
        return None, 1
    chosen = instance.device.lnc_default if lnc is None else lnc
    try:
        instance.cores_per_device(chosen)
    except NeuronToolsError as error:
        (lnc_item or item).wrong(f"{error.message}; {error.remedy}")
        return None, 1
    return instance, chosen


def _groups(section: Section, seed: str, placement: Placement, duration_s: float) -> tuple[GroupPlan, ...]:
    item = section.get("processes")
    if item is None:
        return ()
    readers = [
        GroupReader(name, group, f"{seed}/{name}", duration_s)
        for name, group in item.section("a mapping of groups by name").all().items()
    ]
    for reader in readers:
        reader.reserve(placement)
    return tuple(reader.group(placement) for reader in readers)


def _host(section: Section) -> HostPlan:
    item = section.get("host")
    if item is None:
        return HostPlan()
    inner = item.section("a mapping such as {cpu_user: 12, cpu_system: 2, memory: 64 GiB}")
    plan = HostPlan(
        curve_of(inner.get("cpu_user"), percent, PERCENT_FORM, 100.0),
        curve_of(inner.get("cpu_system"), percent, PERCENT_FORM, 100.0),
        curve_of(inner.get("memory"), size, SIZE_FORM),
    )
    inner.finish()
    return plan
