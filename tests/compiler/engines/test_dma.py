from __future__ import annotations

import json

import pytest

from benchmarks.engine_model.builder import GraphBuilder
from benchmarks.engine_model.layers import embedding
from neurontools.compiler.engines import dma
from neurontools.compiler.engines.dma import DescriptorMode, queue_of
from neurontools.compiler.engines.estimate import estimate, plan
from neurontools.compiler.engines.instructions import StepOperand
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import Graph, Node
from neurontools.compiler.neff import _subgraph
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import graph_of, tensor

TRN1 = ModelledCore(instance_type("trn1.2xlarge").device, 1)
TRN2 = ModelledCore(instance_type("trn2.48xlarge").device, 1)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("opcode", "written", "name", "mode"),
    [
        ("DMA_DIRECT2D", 0, "qSyncIO0", DescriptorMode.STATIC),
        ("DMA_DIRECT2D", 4096, "qScalarIO0", DescriptorMode.STATIC),
        ("DMA_SPILL_SAVE", 4096, "qScalarSpillReload0", DescriptorMode.STATIC),
        ("DMA_SPILL_RELOAD", 0, "qScalarSpillReload0", DescriptorMode.STATIC),
        ("DMA_INDIRECT", 0, "qGpSimdDynamicSW", DescriptorMode.SOFTWARE),
        ("DMA_TRANSPOSE", 0, "qSyncDynamicHW", DescriptorMode.HARDWARE),
    ],
)
def test_a_transfer_has_a_queue_by_engine_and_purpose(
    opcode: str, written: int, name: str, mode: DescriptorMode
) -> None:
    queue = queue_of(opcode, written)
    assert (queue.name, queue.mode) == (name, mode)


def test_a_transposing_transfer_reaches_nine_tenths_from_hbm_and_half_within_sbuf() -> None:
    plain = dma.transfer_ns(TRN2, MIB, 4096)
    assert dma.transposed_ns(TRN2, MIB, 4096) == pytest.approx(plain / 0.9)
    assert dma.transposed_ns(TRN2, MIB, 4096, from_hbm=False) == pytest.approx(plain / 0.5)


def test_an_instruction_of_hardware_descriptors_takes_600_ns_on_one_of_two_engines() -> None:
    # A small one moves for less than its descriptors are made.
    assert dma.transposed_ns(TRN2, 1024, 1024) == 600 / 2
    moved = dma.load(TRN2, [StepOperand(0, 1024, 1024, is_transposed=True)], is_transposed=True)
    assert (moved.opcode, moved.count, moved.tile_ns) == ("DMA_TRANSPOSE", 1, 300)


def turned_product(dtype: str) -> Graph:
    """Return a product whose left factor lies with rows, not columns, across the partitions; with gradients."""
    a, b = tensor(0, 1024, 512, dtype=dtype), tensor(1, 512, 4096, dtype=dtype)
    c, d = (tensor(number, 1024, 4096, dtype=dtype) for number in (2, 3))
    return graph_of(
        Node("aten.mm.default", (a, b), (), (c,)),
        Node("aten.threshold_backward.default", (c, b, 0), (), (d,)),
        inputs=(0, 1),
    )


def opcodes(graph: Graph, core: ModelledCore) -> list[str]:
    return [group.instruction.opcode for group in plan(graph, core).groups]


@pytest.mark.parametrize(
    ("core", "dtype", "is_turned"),
    [(TRN2, "bfloat16", True), (TRN2, "float32", False), (TRN1, "bfloat16", False)],
)
def test_sixteen_bits_are_transposed_on_their_way_on_trn2(
    core: ModelledCore, dtype: str, is_turned: bool
) -> None:
    done = plan(turned_product(dtype), core)
    turning = sum(group.instruction.turning for group in done.groups)
    assert ("DMA_TRANSPOSE" in opcodes(turned_product(dtype), core)) is is_turned
    assert turning == (0 if is_turned else 32)  # tiles of 128 x 128
    if is_turned:
        load = next(group for group in done.groups if group.instruction.opcode == "DMA_TRANSPOSE")
        # Two rows of 1024 bytes share a descriptor.
        assert load.busy_ns == pytest.approx(dma.transfer_ns(core, 1024 * 1024, 2048) / 0.9)


def test_an_operand_of_less_than_a_tile_is_transposed_by_the_tensor_engine() -> None:
    a, b, c = (
        tensor(number, *shape, dtype="bfloat16")
        for number, shape in enumerate([(64, 512), (512, 64), (64, 64)])
    )
    used = tensor(3, 64, 512, dtype="bfloat16")
    nodes = (
        Node("aten.mm.default", (a, b), (), (c,)),
        Node("aten.threshold_backward.default", (a, a, 0), (), (used,)),
    )
    done = plan(graph_of(*nodes, inputs=(0, 1)), TRN2)
    assert "DMA_TRANSPOSE" not in [group.instruction.opcode for group in done.groups]
    assert sum(group.instruction.turning for group in done.groups) == 4


def test_rows_by_index_have_descriptors_made_by_gpsimd_on_every_version() -> None:
    for core in (TRN1, TRN2):
        b = GraphBuilder("bfloat16")
        graph = b.finish(embedding(b, 1000, 512, b.input(256, dtype="int64")))
        made = next(g for g in plan(graph, core).groups if g.instruction.opcode == "GATHER")
        assert made.engine is Engine.GPSIMD
        assert made.busy_ns == 2 * 1000  # 128 rows an instruction


def test_a_neff_names_the_queues_that_it_uses() -> None:
    graph = turned_product("bfloat16")
    for core, queues in (
        (TRN1, {"qScalarIO0": "output", "qSyncIO0": "data"}),
        (TRN2, {"qScalarIO0": "output", "qSyncDynamicHW": "hardware_dynamic", "qSyncIO0": "data"}),
    ):
        cost = estimate(graph, core.device, lnc=1)
        definition = json.loads(_subgraph("sg00", graph, cost)["sg00/def.json"])
        assert definition["dma_queue"] == {name: {"type": kind} for name, kind in queues.items()}
