"""What tells one entry from another at a glance: the script that compiled it, its operators, the shapes of its inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import short_operator
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.show import read_details

if TYPE_CHECKING:
    from neurontools.cache.graph_facts import GraphFacts, TensorType
    from neurontools.cache.walk import EntryRef

_MOST_SHAPES = 3
_SHORT_TYPES = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"))


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """Short texts about an entry, each "" where its files do not tell."""

    script: str = ""
    operators: str = ""
    shapes: str = ""


def read_facts(root: str, place: EntryRef) -> EntrySummary:
    """Return the facts of an entry, without any if it is gone."""
    try:
        details = read_details(root, place)
    except NoSuchEntryError:
        return EntrySummary()
    script = details.origin.program if details.origin else ""
    facts = details.graph.facts if details.graph else None
    if facts is None:
        return EntrySummary(script)
    return EntrySummary(script, _operators(facts), format_shapes(facts.inputs))


def format_shapes(tensors: tuple[TensorType, ...]) -> str:
    """Return the first different shapes with short types, and how many others there are: `f32[32,64] f32[64] +5`."""
    different = list(dict.fromkeys(tensors))
    shown = " ".join(map(_short, different[:_MOST_SHAPES]))
    return f"{shown} +{len(different) - _MOST_SHAPES}" if len(different) > _MOST_SHAPES else shown


def _short(tensor: TensorType) -> str:
    dtype = tensor.dtype
    for long, short in _SHORT_TYPES:
        if dtype.startswith(long):
            dtype = short + dtype[len(long) :]
            break
    return f"{dtype}[{','.join(map(str, tensor.shape))}]"


def _operators(facts: GraphFacts) -> str:
    if not facts.names:
        return ""
    name, count = Counter(facts.names).most_common(1)[0]
    return f"{len(facts.names)} ops, {count} {short_operator(name)}"
