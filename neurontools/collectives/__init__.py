"""Collectives of a Neuron machine: how long they take by a cost model, and their steps carried out on real buffers.

`modelled_time` is the entry point for programs; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.collectives.checking import check
    from neurontools.collectives.model import Algorithm, CollectiveTime, modelled_time
    from neurontools.collectives.operations import Operation

__all__ = ["Algorithm", "CollectiveTime", "Operation", "check", "modelled_time"]

_HOMES = {
    "Algorithm": "algorithms",
    "check": "checking",
    "CollectiveTime": "model",
    "modelled_time": "model",
    "Operation": "operations",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
