"""Modelled times of the published figures of whole models, and the bound that no machine can be faster than.

Times come from the lowering and schedule of recorded graphs. Where all layers are alike, graphs of one and of three are
scheduled, and each further layer takes half of their difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.engine_model import training
from benchmarks.engine_model.anchors import BUILDERS
from benchmarks.engine_model.builder import GraphBuilder
from benchmarks.engine_model.diffusion import decode_image, encode_text, pixart, unet
from benchmarks.engine_model.graph_inputs import input_bytes, with_weights
from benchmarks.engine_model.judge import Comparison, transfer_ns
from benchmarks.engine_model.optimizers import OPTIMIZERS
from benchmarks.engine_model.perceivers import perceiver
from benchmarks.engine_model.sharded import Decoder, record_worker
from benchmarks.engine_model.t5 import decode_t5, encode_t5
from neurontools.compiler.engines.collective_cost import collective_ns
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.modelled_core import engine_costs
from neurontools.compiler.graph import Node, View
from neurontools.compiler.work import item_bytes, products
from neurontools.estimate.recording import record
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.engine_model.model_anchors import ModelAnchor
    from neurontools.compiler.graph import Graph

_PEAK_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_SCALE = 8  # pixels of a side that a latent stands for
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_PROMPTS = 2  # texts of an image: the user's and the empty one that guidance takes


@dataclass(frozen=True, slots=True)
class WorkerExecution:
    """What one worker runs: graphs, each with how often it counts; several executions follow each other.

    Args:
        parts: graphs with their shares; a share below zero takes the difference of two graphs.
        times: how often it runs.
        extra_ns: time beside the graphs: of exchanges, or of the host.
    """

    parts: tuple[tuple[Graph, float], ...]
    times: float = 1.0
    extra_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelTime(Comparison["ModelAnchor"]):
    """The modelled time of a figure, and its bound."""

    bound_ms: float

    @property
    def is_below_bound(self) -> bool:
        """Whether the published time is shorter than the bound."""
        return self.anchor.published_ms < self.bound_ms


def model_time(anchor: ModelAnchor) -> ModelTime | None:
    """Return the modelled time of a figure, None if no builder has its model."""
    builder = anchor.sizes.get("builder", "")
    build = _EXECUTIONS.get(builder)
    if build is None or (anchor.family.startswith("training") and builder not in _TRAINED):
        return None
    sizes = {name: value for name, value in anchor.sizes.items() if name not in {"builder", "config"}}
    executions = build(anchor, sizes)
    return ModelTime(anchor, _modelled_ns(anchor, executions) / 1e6, _bound_ns(anchor, executions) / 1e6)


def _modelled_ns(anchor: ModelAnchor, executions: Sequence[WorkerExecution]) -> float:
    device, lnc = instance_type(anchor.instance).device, anchor.workload.get("lnc")
    cast, total = anchor.workload.get("matmul_dtype"), 0.0
    for execution in executions:
        spent = execution.extra_ns
        for graph, share in execution.parts:
            spent += share * estimate(graph, device, lnc=lnc, matmul_dtype=cast).total_ns
            if anchor.workload.get("transfers"):
                spent += share * transfer_ns(graph)
        total += execution.times * spent
    return total


def _bound_ns(anchor: ModelAnchor, executions: Sequence[WorkerExecution]) -> float:
    """Return the longer of products at the peak rate and inputs at the bandwidth of a core's share of HBM."""
    device, lnc = instance_type(anchor.instance).device, anchor.workload.get("lnc", 1)
    cast = anchor.workload.get("matmul_dtype")
    kind = _PEAK_NAMES[cast or anchor.workload["dtype"]]
    peak_ns = dict(device.core.tensor_tflops)[kind] * 1e3 * lnc
    narrow = item_bytes(cast) / item_bytes(anchor.workload["dtype"]) if cast else 1.0
    bytes_ns = device.memory_bandwidth_bytes_s * lnc / device.physical_cores / 1e9
    total = 0.0
    for execution in executions:
        work = sum(
            share * product.flops
            for graph, share in execution.parts
            for node in graph.nodes
            for product in products(node)
        )
        moved = sum(share * input_bytes(graph) for graph, share in execution.parts) * min(1.0, narrow)
        total += execution.times * max(work / peak_ns, moved / bytes_ns)
    return total


def repeated(build: Callable[[int], Graph], layers: float) -> tuple[tuple[Graph, float], ...]:
    """Return the parts of a network of equal layers: each beyond the first takes half of what two more do."""
    more = (layers - 1) / 2
    return (build(1), 1 - more), (build(3), more)


def _built(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work = anchor.workload
    given = {name: work[name] for name in ("batch", "length", "dtype") if name in work}
    return [WorkerExecution(((BUILDERS[anchor.sizes["builder"]](**sizes, **given), 1.0),))]


def _decoder(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work, dtype = anchor.workload, _DTYPES[anchor.workload["dtype"]]
    if anchor.family == "training-many-nodes":
        return _trained_decoder(anchor, sizes)

    def build(layers: int) -> Graph:
        has_kernel = anchor.instance.startswith("trn2")
        decoder = Decoder(sizes, work["workers"], dtype, layers, has_kernel=has_kernel)
        with torch.no_grad():
            if anchor.family == "decoder-token":
                graph = record_worker(work["workers"], decoder.token, work["batch"], work["context"])
            else:
                graph = record_worker(work["workers"], decoder.prompt, work["batch"], _bucket(anchor))
        return with_weights(graph, work["weights"]) if work["weights"] == "int8" else graph

    return [WorkerExecution(repeated(build, sizes["layers"]), extra_ns=_host_ns(anchor))]


def _host_ns(anchor: ModelAnchor) -> float:
    """Return how long the host takes between two executions that depend on each other."""
    return engine_costs(instance_type(anchor.instance).device.core.name).host_step_ns


def _bucket(anchor: ModelAnchor) -> int:
    """Return the length that a prompt is padded to."""
    length: int = anchor.workload["length"]
    return (
        _LONG_BUCKET
        if _LONG_BUCKET // 2 < length < _LONG_BUCKET and anchor.instance.startswith("trn2")
        else length
    )


_LONG_BUCKET = 12288


def _trained_decoder(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work = anchor.workload
    tensor, pipeline, copies = work["tensor"], work["pipeline"], work["copies"]
    counts: dict[int, int] = {}

    def build(layers: int) -> Graph:
        has_kernel = sizes.get("gated", True)  # Llama's examples have one, GPT's do not
        decoder = Decoder(sizes, tensor, torch.bfloat16, layers, is_trained=True, has_kernel=has_kernel)
        graph = record_worker(tensor, lambda: decoder.train(work["length"], has_words=True))
        counts[layers] = sum(weight.numel() for weight in decoder.parameters)
        return graph

    layers = sizes["layers"] / pipeline
    passes = work["global_batch"] / copies
    step = WorkerExecution(repeated(build, layers), passes + pipeline - 1)
    weights = counts[1] + (layers - 1) / 2 * (counts[3] - counts[1])
    stride = [list(range(first, tensor * copies, tensor)) for first in range(tensor)]
    exchanged = _reduction_ns(anchor, weights, stride)
    return [step, _optimizer(work, weights / copies, exchanged)]


def _optimizer(work: Any, weights: float, exchanged_ns: float) -> WorkerExecution:
    """Return the optimizer's step on a worker's share of the weights, as one matrix."""
    b = GraphBuilder(work["master_dtype"], training=True)
    width = 4096
    weight = b.parameter(math.ceil(weights / width), width)
    b.gradients[weight.slot] = b.input(*weight.shape)
    OPTIMIZERS[work["optimizer"]](b)
    return WorkerExecution(((b.finish(), 1.0),), 1.0, exchanged_ns)


def _reduction_ns(anchor: ModelAnchor, weights: float, groups: Iterable[Sequence[int]]) -> float:
    """Return the time in which all copies add their gradients."""
    device = instance_type(anchor.instance).device
    dtype = anchor.workload["master_dtype"]
    text = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    gradients = View(0, dtype, (math.ceil(weights),), (1,), 0)
    node = Node("neurontools.all_reduce_.default", ((gradients,), "sum", 1.0, text), (), ())
    return collective_ns(node, device, 1) or 0


def _pretraining(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work = anchor.workload
    graph = training.encoder_pretraining(
        **sizes, batch=work["batch"], length=work["length"], dtype=work["dtype"]
    )
    rest = {name: sizes[name] for name in ("layers", "width", "inner", "vocabulary")}
    step = training.optimizer_step(name=work["optimizer"], dtype=work["master_dtype"], **rest)
    weights = sum(graph.slots[slot].nbytes for slot in graph.inputs if slot in graph.outputs) / item_bytes(
        work["dtype"]
    )
    passes = work["global_batch"] / (work["copies"] * work["batch"])
    exchanged = _reduction_ns(anchor, weights, [range(work["copies"])])
    return [WorkerExecution(((graph, 1.0),), passes), WorkerExecution(((step, 1.0),), 1.0, exchanged)]


def _t5(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work, dtype = anchor.workload, _DTYPES[anchor.workload["dtype"]]
    workers, beams = work["workers"], work["beams"]

    def decoder(layers: int) -> Graph:
        return record_worker(workers, decode_t5, sizes, beams, work["context"], dtype, workers, layers)

    def encoder(layers: int) -> Graph:
        return record_worker(workers, encode_t5, sizes, work["length"], dtype, workers, layers)

    once = 1 / work["output"]
    return [
        WorkerExecution(repeated(decoder, sizes["layers"]), extra_ns=_host_ns(anchor)),
        WorkerExecution(repeated(encoder, sizes["layers"]), once),
    ]


def _diffusion(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work, dtype = anchor.workload, _DTYPES[anchor.workload["dtype"]]
    height, width = work["height"] // _SCALE, work["width"] // _SCALE
    refiner = sizes.get("refiner", {"share": 0.0})
    texts = [record(encode_text, text, 77, torch.float32) for text in sizes["texts"]]
    executions = [WorkerExecution(((graph, 1.0),), _PROMPTS) for graph in texts]
    for network, share in ((sizes, 1 - refiner["share"]), (refiner, refiner["share"])):
        if share:
            executions.append(
                WorkerExecution(
                    ((record(unet, network, height, width, dtype), 1.0),),
                    work["steps"] * share,
                    _host_ns(anchor),
                )
            )
    return [*executions, WorkerExecution(((record(decode_image, height, width, torch.float32), 1.0),))]


def _pixart(anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    work, dtype = anchor.workload, _DTYPES[anchor.workload["dtype"]]
    height, width = work["height"] // _SCALE, work["width"] // _SCALE

    def text(layers: int) -> Graph:
        return record_worker(1, encode_t5, sizes["text"], sizes["text_length"], dtype, 1, layers)

    def network(layers: int) -> Graph:
        return record(pixart, sizes, height, width, dtype, layers)

    return [
        WorkerExecution(repeated(text, sizes["text"]["layers"]), _PROMPTS),
        WorkerExecution(repeated(network, sizes["layers"]), work["steps"], _host_ns(anchor)),
        WorkerExecution(((record(decode_image, height, width, dtype), 1.0),)),
    ]


def _perceiver(_anchor: ModelAnchor, sizes: dict[str, Any]) -> list[WorkerExecution]:
    return [WorkerExecution(((record(perceiver, sizes), 1.0),))]


_TRAINED = frozenset({"encoder_pretraining", "llama"})
_EXECUTIONS: dict[str, Callable[[ModelAnchor, dict[str, Any]], list[WorkerExecution]]] = {
    **dict.fromkeys(("encoder", "decoder", "resnet", "vision_transformer", "clip"), _built),
    "encoder_pretraining": _pretraining,
    "llama": _decoder,
    "t5": _t5,
    "diffusion": _diffusion,
    "pixart": _pixart,
    "perceiver": _perceiver,
}
