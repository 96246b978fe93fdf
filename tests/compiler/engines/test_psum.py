from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.compiler.engines.estimate import plan
from neurontools.compiler.engines.instructions import CoreProgram, Instruction, Step
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.schedule import Schedule, schedule
from neurontools.compiler.graph import Node
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import graph_of, tensor

CORE = ModelledCore(instance_type("trn1.2xlarge").device, 1)
SEMAPHORE_NS = CORE.costs.semaphore_ns
BANK = 512  # float32 a partition


def product(ns: float, banks: int, target: int = -1) -> Instruction:
    return Instruction(
        Engine.TENSOR, "MATMUL", banks, ns / banks, (), (target,), banks, psum_elements=banks * BANK
    )


def reading(ns: float, pieces: int, source: int, target: int) -> Instruction:
    return Instruction(Engine.VECTOR, "COPY", pieces, ns / pieces, (source,), (target,), pieces)


def run(*steps: list[Instruction], core: ModelledCore = CORE) -> Schedule:
    numbered = [Step(number, found) for number, found in enumerate(steps)]
    return schedule(CoreProgram(numbered, frozenset(), frozenset()), core)


def test_the_tensor_engine_runs_eight_results_ahead_of_a_slower_reader() -> None:
    done = run([product(1600, 16), reading(3200, 16, -1, 0)], [product(100, 1, 1)])
    first, copy, second = done.groups
    assert copy.end_ns == 100 + SEMAPHORE_NS + 3200
    # Its last result takes the bank of the one eight before, its successor's the bank of the one after that.
    assert first.end_ns == copy.end_ns - 8 * 200 + 100
    assert first.busy_ns == 1600
    assert second.start_ns == copy.end_ns - 7 * 200
    assert second.after == 1


def test_a_reader_that_keeps_up_holds_nobody() -> None:
    done = run([product(1600, 16), reading(800, 16, -1, 0)], [product(100, 1, 1)])
    assert done.groups[0].end_ns == done.groups[2].start_ns == 1600


def test_results_of_several_products_share_the_banks() -> None:
    def start_of_third(banks: int) -> float:
        steps = [[product(400, banks, -1 - n), reading(4000, banks, -1 - n, n)] for n in range(2)]
        return run(*steps, [product(100, 1, 2)]).groups[-1].start_ns

    copied = 400 / 4 + SEMAPHORE_NS + 4000 / 4  # the first of the first product's four results
    assert start_of_third(4) == pytest.approx(copied)
    assert start_of_third(3) == 800  # six results, two banks are free


def test_two_cores_have_twice_the_banks() -> None:
    pair = ModelledCore(instance_type("trn2.48xlarge").device, 2)
    done = run([product(1600, 16), reading(3200, 16, -1, 0)], [product(100, 1, 1)], core=pair)
    assert done.groups[0].end_ns == done.groups[2].start_ns


def test_products_of_one_operator_run_among_each_other() -> None:
    done = run([product(1600, 16), reading(3200, 16, -1, -2), product(100, 1, -3)])
    assert done.groups[2].start_ns == 1600


def test_use_rises_to_eight_banks_and_falls_with_each_result_that_is_read() -> None:
    done = run([product(1600, 16), reading(3200, 16, -1, 0)])
    copy_ns = done.groups[1].end_ns
    expected = [(0.0, 8), *((copy_ns - left * 200, left) for left in range(7, -1, -1))]
    assert done.psum_use() == [(pytest.approx(time_ns), banks) for time_ns, banks in expected]


def test_use_of_a_reader_that_keeps_up_is_small() -> None:
    use = run([product(16_000, 16), reading(1600, 16, -1, 0)]).psum_use()
    assert 1 <= max(banks for _, banks in use) <= 3
    assert use[-1][1] == 0


def test_a_new_name_keeps_the_bank() -> None:
    renamed = Instruction(Engine.VECTOR, "", 0, 0.0, (0,), (1,), 1 << 30)
    steps = [product(1600, 16, 0)], [renamed, reading(3200, 16, 1, 2)], [product(100, 1, 3)]
    first, _, copy, second = run(*steps).groups
    assert copy.start_ns == first.busy_ns + SEMAPHORE_NS
    assert second.start_ns == copy.end_ns - 7 * 200


def test_a_large_product_uses_psum_from_start_to_end() -> None:
    matrices = [tensor(number, 1024, 1024) for number in range(3)]
    node = Node("aten.mm.default", tuple(matrices[:2]), (), (matrices[2],))
    done = plan(graph_of(node, inputs=(0, 1)), CORE)
    use = done.psum_use()
    first = next(group for group in done.groups if group.engine is Engine.TENSOR)
    assert use[0][0] == first.start_ns
    assert use[-1] == (pytest.approx(max(g.end_ns for g in done.groups if g.engine is not Engine.DMA)), 0)
    assert 0 < max(banks for _, banks in use) <= 8


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(1, 1e5), st.floats(1, 1e5), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_more_than_eight_banks_and_no_overlap_on_the_tensor_engine(
    found: list[tuple[int, float, float, bool]],
) -> None:
    steps = []
    for number, (banks, product_ns, copy_ns, depends) in enumerate(found):
        made = product(product_ns, banks)
        if depends and number:
            made.reads = (number - 1,)
        steps.append([made, reading(copy_ns, banks, -1 - number, number)])
        made.writes = (-1 - number,)
    done = run(*steps)
    products = [group for group in done.groups if group.engine is Engine.TENSOR]
    assert all(before.end_ns <= after.start_ns + 1e-6 for before, after in pairwise(products))
    assert all(0 <= banks <= 8 for _, banks in done.psum_use())
    assert all(slack >= -1e-6 for slack in done.slack_ns())
    for group, copy in zip(products, done.groups[1::2], strict=True):
        assert group.end_ns <= copy.end_ns
