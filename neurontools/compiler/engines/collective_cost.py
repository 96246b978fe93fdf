"""The modelled time of a collective in a graph: that of nccom-test's cost model, on the smallest instance with its ranks.

A NEFF does not depend on the instance that it was compiled on, so the instance follows from device type and ranks.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from neurontools.collectives.fabric import Fabric, find_fabric
from neurontools.collectives.model import Workload, timed
from neurontools.collectives.operations import Operation, parse_groups
from neurontools.compiler.engines.placement import split_name
from neurontools.compiler.graph import reads
from neurontools.compiler.work import read_bytes, write_bytes
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_names, instance_type

if TYPE_CHECKING:
    from neurontools.compiler.graph import Node
    from neurontools.machine.instances.catalogue import DeviceType

_OPERATIONS = {
    "all_reduce_": Operation.ALL_REDUCE,
    "broadcast_": Operation.ALL_REDUCE,  # torch_xla broadcasts by a sum with zeros
    "all_gather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "all_to_all": Operation.ALLTOALL,
    "all_to_all_uneven_": Operation.ALLTOALL,
    "collective_permute": Operation.PERMUTE,
    "send": Operation.SENDRECV,
    "recv_": Operation.SENDRECV,
}
_GROUPS = re.compile(r"\{\{\d+(?:,\d+)*\}(?:,\{\d+(?:,\d+)*\})*\}", re.ASCII)
_MAX_RANKS = 4096


def collective_ns(node: Node, device: DeviceType, lnc: int) -> int | None:
    """Return how long a collective takes by the model, in ns; None where the model does not cover it."""
    operation = _OPERATIONS.get(split_name(node.op)[1])
    texts = [arg for arg in node.args if isinstance(arg, str) and _GROUPS.fullmatch(arg)]
    if operation is None or not reads(node):
        return None
    nbytes = write_bytes(node) if operation is Operation.ALL_GATHER else read_bytes(node)
    groups = texts[0] if texts else "{{0,1}}"
    try:
        return _time_ns(operation, groups, device, lnc, nbytes)
    except NeuronToolsError:
        return None


@cache
def _time_ns(operation: Operation, text: str, device: DeviceType, lnc: int, nbytes: int) -> int | None:
    groups = parse_groups(text)
    if operation is Operation.PERMUTE:
        groups = (tuple(sorted({rank for pair in groups for rank in pair})),)
    ranks = [rank for group in groups for rank in group]
    if max(ranks) >= _MAX_RANKS or len(set(ranks)) < len(ranks) or max(map(len, groups)) < 2:
        return None
    fabric = _smallest(device, lnc, max(ranks) + 1)
    if fabric is None:
        return None
    cores = fabric.core_count
    nodes = len({rank // cores for rank in groups[0]})
    first = tuple(tuple(rank % cores for rank in group if rank < cores) for group in groups)
    work = Workload(operation, tuple(group for group in first if group), fabric, nodes=nodes)
    return round(timed(work, max(nbytes, 1)).time_s * 1e9)


def _smallest(device: DeviceType, lnc: int, ranks: int) -> Fabric | None:
    """Return the fabric of the smallest instance with that many cores, the largest where none has them."""
    kinds = [kind for kind in map(instance_type, instance_names()) if kind.device.name == device.name]
    fabrics = sorted((find_fabric(kind, lnc) for kind in kinds), key=lambda fabric: fabric.core_count)
    enough = (fabric for fabric in fabrics if fabric.core_count >= ranks)
    return next(enough, max(fabrics, key=lambda fabric: fabric.core_count, default=None))
