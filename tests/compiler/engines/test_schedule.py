from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.compiler.engines import on_chip_memory
from neurontools.compiler.engines.instructions import CoreProgram, Instruction, Step, StepOperand
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.schedule import Schedule, schedule
from neurontools.machine.instances.catalogue import instance_type

CORE = ModelledCore(instance_type("trn1.2xlarge").device, 1)
TRN2 = ModelledCore(instance_type("trn2.48xlarge").device, 1)
SEMAPHORE_NS = CORE.costs.semaphore_ns
MIB = 1 << 20


def work(
    engine: Engine, ns: float, reads: tuple[int, ...], writes: tuple[int, ...], pieces: int = 1
) -> Instruction:
    return Instruction(engine, "WORK", 1, ns, reads, writes, pieces)


def step(number: int, *instructions: Instruction, streams: bool = False) -> Step:
    return Step(number, list(instructions), streams=streams)


def run(*steps: Step, core: ModelledCore = CORE) -> Schedule:
    return schedule(CoreProgram(list(steps), frozenset(), frozenset()), core)


def test_instructions_of_one_engine_follow_each_other() -> None:
    done = run(step(0, work(Engine.VECTOR, 100, (), (0,))), step(1, work(Engine.VECTOR, 50, (), (1,))))
    assert [(group.start_ns, group.end_ns) for group in done.groups] == [(0, 100), (100, 150)]


def test_independent_instructions_of_two_engines_run_at_once() -> None:
    done = run(step(0, work(Engine.VECTOR, 100, (), (0,)), work(Engine.SCALAR, 70, (), (1,))))
    assert [group.start_ns for group in done.groups] == [0, 0]
    assert done.end_ns == 100


def test_another_engine_waits_for_a_semaphore() -> None:
    done = run(step(0, work(Engine.VECTOR, 100, (), (0,)), work(Engine.SCALAR, 70, (0,), (1,))))
    assert done.groups[1].start_ns == 100 + SEMAPHORE_NS
    assert done.groups[1].after == 0


def test_the_pieces_of_an_operator_overlap() -> None:
    done = run(
        step(
            0,
            work(Engine.TENSOR, 1000, (), (-1,), pieces=10),
            work(Engine.VECTOR, 500, (-1,), (0,), pieces=10),
        )
    )
    product, copy = done.groups
    assert copy.start_ns == 100 + SEMAPHORE_NS
    assert copy.end_ns == product.end_ns + 50 + SEMAPHORE_NS
    assert copy.busy_ns == 500 < copy.end_ns - copy.start_ns


def test_the_slower_one_of_two_overlapping_engines_decides() -> None:
    done = run(
        step(
            0,
            work(Engine.TENSOR, 500, (), (-1,), pieces=10),
            work(Engine.VECTOR, 1000, (-1,), (0,), pieces=10),
        )
    )
    assert done.end_ns == 50 + SEMAPHORE_NS + 1000


def test_operators_pass_values_on_whole() -> None:
    done = run(
        step(0, work(Engine.TENSOR, 1000, (), (0,), pieces=10)),
        step(1, work(Engine.VECTOR, 500, (0,), (1,), pieces=10)),
    )
    assert done.groups[1].start_ns == 1000 + SEMAPHORE_NS


def test_a_value_is_overwritten_after_it_was_read() -> None:
    done = run(
        step(0, work(Engine.VECTOR, 10, (), (0,))),
        step(1, work(Engine.SCALAR, 1000, (0,), (1,))),
        step(2, work(Engine.VECTOR, 10, (), (0,))),
    )
    assert done.groups[2].start_ns >= done.groups[1].end_ns


def loading(number: int, nbytes: int, *, ns: float) -> Step:
    made = Step(number, [work(Engine.VECTOR, ns, (number,), (100 + number,), pieces=32)])
    made.reads.append(StepOperand(number, nbytes, 1 << 16))
    made.writes.append(StepOperand(100 + number, 4, 4))
    return made


def test_loads_are_prefetched_while_there_is_room() -> None:
    done = run(*(loading(number, 4 * MIB, ns=100_000) for number in range(4)))
    loads = [group for group in done.groups if group.engine is Engine.DMA]
    assert [load.start_ns for load in loads] == pytest.approx(
        [load.busy_ns * n for n, load in enumerate(loads)]
    )
    assert done.end_ns == pytest.approx(4 * 100_000, rel=0.05)


def test_a_prefetch_waits_for_room() -> None:
    done = run(*(loading(number, 10 * MIB, ns=500_000) for number in range(4)))
    loads = [group for group in done.groups if group.engine is Engine.DMA]
    assert loads[1].start_ns == loads[0].end_ns
    assert loads[2].start_ns >= 500_000


def making(number: int, reads: tuple[int, ...], nbytes: int) -> Step:
    made = Step(number, [work(Engine.VECTOR, 1000, reads, (number,))])
    made.reads += [StepOperand(slot, nbytes, 4096) for slot in reads]
    made.writes.append(StepOperand(number, nbytes, 4096))
    return made


def test_what_is_used_last_is_spilled_and_reloaded() -> None:
    steps = [making(0, (), 8 * MIB), making(1, (), 8 * MIB), making(2, (1,), 8 * MIB), making(3, (0, 2), MIB)]
    program = CoreProgram(steps, frozenset(), frozenset({3}))
    found = on_chip_memory.place(program, 20 * MIB)
    assert found.spill_save_bytes == 8 * MIB
    assert found.spill_reload_bytes == MIB  # step 3 reads that much of it
    assert max(found.used_bytes) <= 20 * MIB
    assert [operand.buffer for transfer in found.stores[2] for operand in transfer.operands] == [0]


def test_nothing_is_spilled_that_fits_or_is_not_read_again() -> None:
    steps = [making(number, (number - 1,) if number else (), 8 * MIB) for number in range(6)]
    found = on_chip_memory.place(CoreProgram(steps, frozenset(), frozenset({5})), 20 * MIB)
    assert found.spill_save_bytes == found.spill_reload_bytes == 0
    assert sum(len(stores) for stores in found.stores) == 1


def test_neighbours_that_stream_pass_large_values_on() -> None:
    steps = [making(number, (number - 1,), 100 * MIB) for number in range(1, 5)]
    for made in steps:
        made.streams = True
    found = on_chip_memory.place(CoreProgram(steps, frozenset({0}), frozenset({4})), 20 * MIB)
    moved = [
        operand.buffer
        for transfers in (*found.loads, *found.stores)
        for transfer in transfers
        for operand in transfer.operands
    ]
    assert moved == [0, 4]
    for made in steps:
        made.streams = False
    apart = on_chip_memory.place(CoreProgram(steps, frozenset({0}), frozenset({4})), 20 * MIB)
    assert apart.spill_save_bytes == apart.spill_reload_bytes == 300 * MIB


def test_collectives_run_beside_other_transfers() -> None:
    exchange = Instruction(Engine.CC, "PSEUDO_TRIGGER_COLLECTIVE", 1, 1_000_000, (500,), (500,))
    done = run(step(0, exchange), loading(1, MIB, ns=10_000))
    assert done.groups[1].start_ns == 0
    assert done.end_ns == 1_000_000


def test_a_pause_costs_the_tensor_engine_of_trn2_a_ramp() -> None:
    def last_busy(pause_ns: float, core: ModelledCore) -> float:
        done = run(
            step(0, work(Engine.TENSOR, 10_000, (), (0,))),
            step(1, work(Engine.VECTOR, pause_ns, (0,), (1,))),
            step(2, work(Engine.TENSOR, 10_000, (1,), (2,))),
            core=core,
        )
        return done.groups[-1].busy_ns

    assert last_busy(5_000, TRN2) == 10_000 + 1_500
    assert last_busy(500, TRN2) == 10_000
    assert last_busy(5_000, CORE) == 10_000


def test_the_critical_path_has_no_slack_and_decides_the_end() -> None:
    done = run(
        step(0, work(Engine.VECTOR, 1000, (), (0,)), work(Engine.SCALAR, 10, (), (1,))),
        step(1, work(Engine.TENSOR, 1000, (0, 1), (2,))),
    )
    assert done.critical_path() == [0, 2]
    assert done.slack_ns() == [0, 990, 0]


_INSTRUCTIONS = st.builds(
    work,
    st.sampled_from([Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD, Engine.DMA]),
    st.floats(1, 1e6),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.lists(st.integers(0, 5), max_size=2).map(tuple),
    st.sampled_from([1, 2, 32]),
)


@given(st.lists(st.lists(_INSTRUCTIONS, max_size=4), max_size=8))
@settings(max_examples=100, deadline=None)
def test_no_one_reads_before_the_first_piece_or_ends_before_the_last(
    given_steps: list[list[Instruction]],
) -> None:
    done = run(*(step(number, *found) for number, found in enumerate(given_steps)))
    written: dict[int, int] = {}
    for number, group in enumerate(done.groups):
        for buffer in (*group.instruction.reads, *group.instruction.writes):
            if buffer in written:
                earlier = done.groups[written[buffer]]
                assert group.start_ns >= earlier.start_ns
                assert group.end_ns >= earlier.end_ns
        for buffer in group.instruction.writes:
            written[buffer] = number
    assert all(slack >= -1e-6 for slack in done.slack_ns())
    assert (
        done.end_ns
        >= max((sum(g.busy_ns for g in done.groups if g.engine is e) for e in Engine), default=0) - 1e-6
    )
