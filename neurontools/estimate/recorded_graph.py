"""The graph of a script's own run on instance types: memory, time, bound and cost of an execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.collectives.operations import parse_groups
from neurontools.compiler.limits import graph_sizes
from neurontools.compiler.what_if import model_graph
from neurontools.estimate.placement import PlacementError
from neurontools.estimate.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.graph import Graph
    from neurontools.compiler.neff import Neff
    from neurontools.estimate.placement import Placement


@dataclass(frozen=True, slots=True)
class Execution:
    """A modelled execution of a recorded graph, on an instance whose cores hold `copies` of it over `ranks` each.

    `price` is the cost of a million executions; None without a price list.
    """

    instance: str
    lnc: int
    ranks: int
    copies: int
    used_bytes: int
    hbm_bytes: int
    execution_ns: int
    executions_s: float
    mfu: float
    bound: str
    price: float | None
    fallback: str


def execute(
    neff: Neff, places: Sequence[Placement], prices: Mapping[str, float] | None = None
) -> list[Execution]:
    """Return an execution of a NEFF's graph on each instance type that holds it, unsorted.

    Raises:
        PlacementError: none does.
    """
    executions, problems = [], {}
    ranks = _ranks(neff.graph)
    sizes = graph_sizes(neff.graph)
    used_bytes = sizes.inputs + sizes.outputs - sizes.aliased + sizes.temporaries
    for place in places:
        name, device = place.instance.name, place.instance.device
        cost, problem = model_graph(neff, neff.graph, device, place.lnc)
        if cost is None or ranks > place.cores or used_bytes > place.hbm_bytes:
            problems[name] = problem or (
                f"the graph has {ranks} ranks" if ranks > place.cores else "too little memory"
            )
            continue
        step = step_of(cost, neff.graph, device, place.lnc, (used_bytes, 0, 0))
        copies = place.cores // ranks
        hourly = (prices or {}).get(name)
        executions_s = copies / step.time_ns * 1e9
        executions.append(
            Execution(
                instance=name,
                lnc=place.lnc,
                ranks=ranks,
                copies=copies,
                used_bytes=used_bytes,
                hbm_bytes=place.hbm_bytes,
                execution_ns=round(step.time_ns),
                executions_s=executions_s,
                mfu=step.mfu(device, place.lnc),
                bound=step.bound,
                price=None if hourly is None else hourly / 3600 / executions_s * 1e6,
                fallback=cost.fallback,
            )
        )
    if not executions:
        name, problem = next(iter(problems.items()))
        raise PlacementError(
            f"the graph runs on none of the instance types: {name}: {problem}", "give larger ones"
        )
    return executions


def _ranks(graph: Graph) -> int:
    """Return the number of ranks in the replica groups of a graph's collectives."""
    texts = {
        arg for node in graph.nodes for arg in node.args if isinstance(arg, str) and arg.startswith("{{")
    }
    return max((1 + max(map(max, parse_groups(text))) for text in texts), default=1)
