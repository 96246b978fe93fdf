from __future__ import annotations

from itertools import pairwise

import pytest

from neurontools.compiler.engines import dma, on_chip_memory
from neurontools.compiler.engines.cost import Engine
from neurontools.compiler.engines.dma import SPILL_OPCODE
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.instructions import CoreProgram, Instruction, Step, StepOperand
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.schedule import Schedule, schedule
from neurontools.compiler.graph import Node
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import graph_of, tensor

DEVICE = instance_type("trn1.2xlarge").device
CORE = ModelledCore(DEVICE, 1)
LATENCY_NS = CORE.costs.dma_latency_ns
MIB = 1 << 20
GROUPS = "{{0,1}}"


def making(number: int, slot: int, ns: float, *, reads: tuple[int, ...] = (), nbytes: int = MIB) -> Step:
    made = Step(number, [Instruction(Engine.VECTOR, "WORK", 1, ns, reads, (slot,))])
    made.reads += [StepOperand(operand, nbytes, 1 << 16) for operand in reads]
    made.writes.append(StepOperand(slot, nbytes, 1 << 16))
    return made


def exchanging(number: int, source: int, target: int, ns: float, nbytes: int = MIB) -> Step:
    made = Step(number, [Instruction(Engine.CC, "EXCHANGE", 1, ns, (source,), (target,))], in_hbm=True)
    made.reads.append(StepOperand(source, nbytes, 1 << 16))
    made.writes.append(StepOperand(target, nbytes, 1 << 16))
    return made


def run(*steps: Step, outputs: frozenset[int] = frozenset()) -> Schedule:
    return schedule(CoreProgram(list(steps), frozenset(), outputs), CORE)


@pytest.mark.parametrize("target", [0, 1])
def test_a_collective_waits_for_the_store_of_its_input_and_its_result_is_loaded(target: int) -> None:
    done = run(making(0, 0, 1000), exchanging(1, 0, target, 5000), making(2, 2, 100, reads=(target,)))
    made, store, exchange, load, used = done.groups
    moved_ns = dma.transfer_ns(CORE, MIB, 1 << 16)
    assert store.start_ns == made.end_ns + CORE.costs.semaphore_ns + LATENCY_NS
    assert store.end_ns == pytest.approx(store.start_ns + moved_ns)
    assert exchange.start_ns == store.end_ns
    assert exchange.end_ns == exchange.start_ns + 5000
    assert load.start_ns >= exchange.end_ns + LATENCY_NS
    assert used.end_ns >= load.end_ns + 100
    assert done.critical_path() == [0, 1, 2, 3, 4]


def test_what_is_in_hbm_already_is_not_stored_again() -> None:
    steps = [exchanging(0, 0, 1, 5000), exchanging(1, 1, 2, 5000)]
    found = on_chip_memory.place(CoreProgram(steps, frozenset({0}), frozenset({2})), 20 * MIB)
    assert not any(found.stores)
    assert not any(found.loads)


def test_a_result_that_is_an_output_is_not_stored_again() -> None:
    steps = [making(0, 0, 1000), exchanging(1, 0, 0, 5000)]
    found = on_chip_memory.place(CoreProgram(steps, frozenset(), frozenset({0})), 20 * MIB)
    assert [len(stores) for stores in found.stores] == [1, 0]


def test_what_did_not_fit_was_spilled_and_is_there() -> None:
    done = run(making(0, 0, 1000, nbytes=30 * MIB), exchanging(1, 0, 0, 5000, nbytes=30 * MIB))
    assert [group.instruction.opcode for group in done.groups] == ["WORK", SPILL_OPCODE, "EXCHANGE"]
    assert done.groups[2].start_ns == done.groups[1].end_ns


def test_collectives_follow_each_other_and_engines_go_on() -> None:
    done = run(exchanging(0, 0, 0, 5000), exchanging(1, 1, 1, 3000), making(2, 2, 2000))
    assert [(group.start_ns, group.end_ns) for group in done.groups] == [
        (0, 5000),
        (5000, 8000),
        (0, 2000),
    ]


def test_no_rows_of_a_graph_with_collectives_overlap() -> None:
    width = 2048
    nodes = []
    for layer in range(6):
        a, b, c = (
            tensor(3 * layer, width, width),
            tensor(3 * layer + 1, width, width),
            tensor(3 * layer + 2, width, width),
        )
        nodes += [
            Node("aten.mm.default", (a, b), (), (c,)),
            Node("neurontools.all_reduce_.default", (c, GROUPS, "sum"), (), ()),
        ]
    inputs = tuple(slot for layer in range(6) for slot in (3 * layer, 3 * layer + 1))
    cost = estimate(graph_of(*nodes, inputs=inputs), DEVICE)
    by_engine = {engine: [row for row in cost.rows if row.engine is engine] for engine in Engine}
    assert len(by_engine[Engine.CC]) == 6
    assert cost.engine_busy_ns(Engine.CC) == sum(row.duration_ns for row in by_engine[Engine.CC])
    for rows in by_engine.values():
        rows.sort(key=lambda row: row.start_ns)
        assert all(before.start_ns + before.duration_ns <= after.start_ns for before, after in pairwise(rows))
    assert cost.total_ns < sum(
        cost.engine_busy_ns(engine) for engine in Engine
    )  # they run beside the products
