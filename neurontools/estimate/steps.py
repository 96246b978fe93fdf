"""Modelled time and memory of one execution of a model on one rank; repeated layers are recorded and scheduled once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools import paths
from neurontools.compiler.engines.estimate import estimate, launch_ns
from neurontools.compiler.engines.modelled_core import ModelledCore, engine_costs
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.limits import scratch_bytes
from neurontools.estimate.graphs import ModelPhase, record_phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.graph import Graph
    from neurontools.estimate.graphs import Recorded
    from neurontools.estimate.models import RankedModel
    from neurontools.machine.instances.catalogue import DeviceType

_FEW, _MORE = 2, 3  # layers: every further one takes as long as the third, whose neighbours are equal
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
        dtype: of weights, activations and optimizer states.
        checkpoints: whether training recomputes the activations of each layer.
    """

    def __init__(self, model: RankedModel, dtype: torch.dtype, *, checkpoints: bool = False) -> None:
        self.model = model
        self._options = {"dtype": dtype, "checkpoints": checkpoints}
        self._recorded: dict[tuple[Any, ...], tuple[Recorded, ...]] = {}
        self._steps: dict[tuple[Any, ...], ModelledStep] = {}

    def step(
        self,
        phase: ModelPhase,
        batch: int,
        length: int,
        degree: int,
        device: DeviceType,
        lnc: int,
        data: int = 1,
    ) -> ModelledStep:
        """Return an execution of all layers, see `graphs.record_phase`."""
        call = phase, batch, length, degree, data
        key = (*call, device.name, lnc)
        if key not in self._steps:
            makes_token = self.model.causal and phase is not ModelPhase.TRAINING
            host_ns = engine_costs(device.core.name).host_step_ns if makes_token else 0.0
            parts = [_step(recorded, device, lnc, host_ns) for recorded in self.recorded(*call)]
            self._steps[key] = _with_layers(parts, self.model.layers)
        return self._steps[key]

    def weight_bytes(self, phase: ModelPhase, degree: int) -> float:
        """Return the bytes of a rank's weights."""
        graphs = self.recorded(phase, 1, 1, degree, 1)
        return _grown([recorded.weight_bytes for recorded in graphs], self.model.layers)

    def recorded(
        self, phase: ModelPhase, batch: int, length: int, degree: int, data: int
    ) -> tuple[Recorded, ...]:
        """Return the graphs of two and of three layers; of all where there are no more."""
        call = phase, batch, length, degree, data
        if call not in self._recorded:
            counts = (self.model.layers,) if self.model.layers <= _MORE else (_FEW, _MORE)
            self._recorded[call] = tuple(
                record_phase(
                    self.model, phase, batch, length, degree, data=data, layers=count, **self._options
                )
                for count in counts
            )
        return self._recorded[call]


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


def _with_layers(parts: Sequence[ModelledStep], layers: int) -> ModelledStep:
    *columns, busy = zip(*parts, strict=True)
    grown_busy = tuple(_grown(column, layers) for column in zip(*busy, strict=True))
    return ModelledStep._make([*(_grown(column, layers) for column in columns), grown_busy])


def _grown(values: Sequence[float], layers: int) -> float:
    """Return a number for all layers from those of two and three."""
    first, *more = values
    return first + (layers - _FEW) * (more[0] - first) if more else first
