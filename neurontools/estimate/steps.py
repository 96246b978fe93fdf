"""Modelled time and memory of one execution of a model on one rank; repeated layers are recorded and scheduled once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools import paths
from neurontools.compiler.engines.estimate import estimate, launch_ns
from neurontools.compiler.engines.modelled_core import ModelledCore, engine_costs
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import GraphError, graph_from_bytes
from neurontools.compiler.limits import scratch_bytes
from neurontools.errors import TORCH_REMEDY, MissingDependencyError
from neurontools.estimate import stored_graphs
from neurontools.estimate.direct_reads import read_directly
from neurontools.estimate.models import ModelError, ModelPhase, RankRun, Recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.graph import Graph
    from neurontools.estimate.models import RankedModel
    from neurontools.machine.instances.catalogue import DeviceType

_BOUNDS = {
    "Tensor engine": (Engine.TENSOR,),
    "HBM": (Engine.DMA,),
    "collectives": (Engine.CC,),
    "Vector engine": (Engine.VECTOR,),
    "Scalar engine": (Engine.SCALAR,),
    "GpSimd engine": (Engine.GPSIMD,),
}


class ModelledStep(NamedTuple):
    """One execution on one rank; times in ns, FLOPs of matrix products.

    The first numbers grow with the layers, see `Steps`. `busy_ns` has the time of each name in `_BOUNDS`, then that of
    the host: the launch, and what it does for each token that a decoder makes.
    """

    time_ns: float
    flops: float
    weight_bytes: float
    cache_bytes: float
    scratch_bytes: float
    busy_ns: tuple[float, ...]

    @property
    def bound(self) -> str:
        """Return what works longest."""
        names = (*_BOUNDS, "host")
        return names[max(range(len(names)), key=lambda number: self.busy_ns[number])]

    def mfu(self, device: DeviceType, lnc: int) -> float:
        """Return the share of the bf16 peak that the products use."""
        return self.flops / (device.core.tensor_flops_s("bf16") * lnc * self.time_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Range:
    """Factors on a modelled time between which published ones of its family lie, and where that is known from."""

    low: float
    high: float
    source: str


@cache
def ranges() -> dict[str, Range]:
    """Return the ranges by family: prompt, token, training, encoder, graph."""
    import yaml

    with open(f"{paths.fixtures_dir()}/engines/estimate_ranges.yaml", encoding="utf-8") as file:
        document: dict[str, dict[str, Any]] = yaml.safe_load(file)
    return {family: Range(**row) for family, row in document.items()}


class Steps:
    """The executions of one model, each recorded once and scheduled once for each kind of core.

    Args:
        model: the model.
        dtype: of weights, activations and optimizer states: a name of torch.
        weights: type of the stored weights, "" for that of the model's file.
        checkpoints: whether training recomputes the activations of each layer.
    """

    def __init__(
        self, model: RankedModel, dtype: str = "bfloat16", *, weights: str = "", checkpoints: bool = False
    ) -> None:
        self.model, self.facts = model, model.facts
        self._options: dict[str, Any] = {
            "dtype": dtype,
            "weights": weights or self.facts.weights,
            "checkpoints": checkpoints,
        }
        self._recorded: dict[RankRun, Recorded] = {}
        self._steps: dict[tuple[Any, ...], ModelledStep] = {}

    def step(self, run: RankRun, device: DeviceType, lnc: int, layers: int = 0) -> ModelledStep:
        """Return an execution of all layers, or of as many as a pipeline's stage has."""
        key = (run, device.name, lnc, layers)
        if key not in self._steps:
            makes_token = self.facts.causal and not run.phase.is_trained
            host_ns = engine_costs(device.core.name).host_step_ns if makes_token else 0.0
            stacks = (layers,) if layers else self.facts.stacks
            parts = [_step(recorded, device, lnc, host_ns) for recorded in self._graphs(run, stacks)]
            self._steps[key] = _with_layers(parts, self._growth(stacks))
        return self._steps[key]

    def can_share(self, degree: int) -> bool:
        """Return whether the model can be built in as many parts."""
        try:
            self.weight_bytes(degree)
        except ModelError:
            if degree == 1:
                raise
            return False
        return True

    def weight_bytes(self, degree: int) -> float:
        """Return the bytes of a rank's weights."""
        stacks = self.facts.stacks
        graphs = self._graphs(RankRun(ModelPhase.PROMPT, 1, 1, degree, source=self.facts.source or 1), stacks)
        return _grown([recorded.weight_bytes for recorded in graphs], self._growth(stacks))

    def _counts(self, stacks: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the layers of the graphs that are recorded: the fewest, then those with more in one stack."""
        few, more = self.facts.lead + self.facts.period, self.facts.lead + 2 * self.facts.period
        if max(stacks) <= more:
            return [stacks]
        fewest = tuple(min(few, count) for count in stacks)
        grown = [number for number, count in enumerate(stacks) if count > few]
        return [fewest, *((*fewest[:number], more, *fewest[number + 1 :]) for number in grown)]

    def _growth(self, stacks: tuple[int, ...]) -> list[float]:
        """Return how often what each graph has beyond the first counts."""
        first = self._counts(stacks)[0]
        extra = [(count - least) / self.facts.period for count, least in zip(stacks, first, strict=True)]
        return [times for times in extra if times]

    def _graphs(self, run: RankRun, stacks: tuple[int, ...]) -> list[Recorded]:
        return [self._graph(run._replace(layers=counts, **self._options)) for counts in self._counts(stacks)]

    def _graph(self, run: RankRun) -> Recorded:
        if run not in self._recorded:
            key = [self.model.key(), run]
            recorded = _loaded(stored_graphs.load(key))
            if recorded is None:
                recorded = record(self.model, run)
                sizes = {"weight_bytes": recorded.weight_bytes, "cache_bytes": recorded.cache_bytes}
                stored_graphs.save(key, sizes, recorded.graph.to_bytes())
            if run.weights or self.facts.experts:
                recorded = recorded._replace(graph=read_directly(recorded.graph))
            self._recorded[run] = recorded
        return self._recorded[run]


def record(model: RankedModel, run: RankRun) -> Recorded:
    """Record what rank 0 of a model does, see `graphs.record_run`.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    try:
        from neurontools.estimate.graphs import record_run
    except ImportError as error:
        raise MissingDependencyError(f"an estimate needs torch: {error}", TORCH_REMEDY) from error
    return record_run(model, run)


def _loaded(stored: tuple[Mapping[str, Any], bytes] | None) -> Recorded | None:
    if stored is None:
        return None
    sizes, graph = stored
    try:
        return Recorded(graph_from_bytes(graph), int(sizes["weight_bytes"]), int(sizes["cache_bytes"]))
    except (GraphError, LookupError, TypeError, ValueError):
        return None  # damaged: it is recorded again


def step_of(
    cost: GraphCost, graph: Graph, device: DeviceType, lnc: int, sizes: tuple[float, float, float]
) -> ModelledStep:
    """Return an execution of a graph from its schedule; `sizes` are bytes of weights, keys and values, and the rest."""
    busy = [float(sum(map(cost.engine_busy_ns, engines))) for engines in _BOUNDS.values()]
    busy.append(launch_ns(graph, ModelledCore(device, lnc)))
    return ModelledStep(cost.total_ns, cost.matmul_flops, *sizes, tuple(busy))


def _step(recorded: Recorded, device: DeviceType, lnc: int, host_ns: float) -> ModelledStep:
    graph = recorded.graph
    sizes = recorded.weight_bytes, recorded.cache_bytes, scratch_bytes(graph)
    step = step_of(estimate(graph, device, lnc=lnc), graph, device, lnc, sizes)
    *engines_ns, launching_ns = step.busy_ns
    return step._replace(time_ns=step.time_ns + host_ns, busy_ns=(*engines_ns, launching_ns + host_ns))


def _with_layers(parts: Sequence[ModelledStep], growth: Sequence[float]) -> ModelledStep:
    *columns, busy = zip(*parts, strict=True)
    grown_busy = tuple(_grown(column, growth) for column in zip(*busy, strict=True))
    return ModelledStep._make([*(_grown(column, growth) for column in columns), grown_busy])


def _grown(values: Sequence[float], growth: Sequence[float]) -> float:
    """Return a number for all layers: that of the fewest, and what each stack adds."""
    first, *more = values
    return first + sum(times * (value - first) for times, value in zip(growth, more, strict=True))
