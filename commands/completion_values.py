"""What a word of a command line may be, asked by the completion scripts at each Tab: machines, entries, scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST = 500  # more would not help, and a shell needs its time for them


def values_of(kind: str) -> list[str]:
    """Return what there is of a kind; nothing where that cannot be found out.

    Args:
        kind: a key of `KINDS`.
    """
    try:
        return list(KINDS[kind]())[:MOST]
    except (NeuronToolsError, OSError):
        return []


def _machines() -> Iterable[str]:
    from neurontools.machine import launch

    return [info.machine for info in launch.list_machines()]


def _instances() -> Iterable[str]:
    from neurontools.machine.instances.catalogue import instance_names

    return instance_names()


def _scenarios() -> Iterable[str]:
    from neurontools.scenario.schema import scenario_names

    return scenario_names()


def _entries() -> Iterable[str]:
    """Return the modules of the cache that the settings name, and their numbers; a bucket is not asked."""
    from neurontools.cache.location import resolve
    from neurontools.cache.walk import walk

    location = resolve()
    if location.is_remote:
        return []
    modules = [place.module for place in walk(location.root).places if place.module]
    numbers = [module.removeprefix("MODULE_").partition("+")[0] for module in modules]
    return dict.fromkeys(name for pair in zip(modules, numbers, strict=True) for name in pair)


KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "machines": _machines,
    "instances": _instances,
    "scenarios": _scenarios,
    "entries": _entries,
}
