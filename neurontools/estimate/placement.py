"""Where a model may run: instance types, their cores and HBM, and the tensor-parallel degrees that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.collectives.fabric import allowed_ranks
from neurontools.errors import NeuronToolsError
from neurontools.estimate.models import check_degree, degrees
from neurontools.machine.instances.catalogue import instance_names, instance_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.estimate.models import ModelFacts
    from neurontools.machine.instances.catalogue import InstanceType


class PlacementError(NeuronToolsError):
    """No instance type can run a model as asked."""


@dataclass(frozen=True, slots=True)
class Placement:
    """An instance type with a size of its logical cores."""

    instance: InstanceType
    lnc: int

    @property
    def cores(self) -> int:
        """Logical cores of the instance."""
        return self.instance.core_count(self.lnc)

    @property
    def hbm_bytes(self) -> int:
        """HBM of a logical core."""
        device = self.instance.device
        return device.memory_bytes * self.lnc // device.physical_cores


def places(names: Sequence[str], lnc: int | None) -> list[Placement]:
    """Return instance types by name, all without names; those without that size of logical cores only if named.

    Raises:
        UnknownInstanceError: no instance type has that name.
        NeuronToolsError: a named one has no such logical cores.
    """
    available = []
    for name in dict.fromkeys(names or instance_names()):
        instance = instance_type(name)
        chosen = instance.device.lnc_default if lnc is None else lnc
        if names:
            instance.cores_per_device(chosen)  # raises for a size that it does not have
        if chosen in instance.device.lnc_choices:
            available.append(Placement(instance, chosen))
    return available


def degrees_on(facts: ModelFacts, place: Placement, wanted: Sequence[int]) -> list[int]:
    """Return the tensor-parallel degrees to try on an instance type, smallest first.

    Args:
        facts: of the model.
        place: the instance type.
        wanted: degrees that the user asks for; without them, all that collectives of the instance allow.

    Raises:
        ModelError: a wanted degree does not divide the heads.
    """
    for degree in wanted:
        check_degree(facts, degree)
    allowed = allowed_ranks(place.instance.name, place.lnc)
    candidates = sorted(set(wanted)) or degrees(facts, place.cores)
    return [
        degree
        for degree in candidates
        if degree <= place.cores and (bool(wanted) or allowed is None or degree in {1, *allowed})
    ]


def is_joined(place: Placement) -> bool:
    """Return whether collectives between instances of a type are modelled: those of the largest type of its device."""
    device = place.instance.device.name
    kinds = [kind for kind in map(instance_type, instance_names()) if kind.device.name == device]
    return place.cores == max(kind.core_count(place.lnc) for kind in kinds)
