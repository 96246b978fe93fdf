"""The difference of two graphs: nothing for equal ones, all edits found, readable lines, bounded time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.cache.graph_facts import GraphFacts, GraphForm, Operand, OperatorCall, TensorType
from neurontools.cache.graph_reader import _window, facts_of_graph
from neurontools.cache.why.diff import Aspect, _best_slide, align, diff_graphs
from neurontools.cache.why.diff_text import _format_operand, diff_lines
from neurontools.compiler.graph import View
from tests.compiler.graphs import graphs, mlp

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph

WORDS = st.lists(st.sampled_from("abcd"), max_size=14)
SQUARE = TensorType("f32", (8, 8))


def chain(names: list[str], sizes: tuple[int, ...] = (8, 8)) -> GraphFacts:
    """A graph in which each operator takes the result of the one before."""
    tensor = TensorType("f32", sizes)
    operations = tuple(
        OperatorCall(name, (Operand(number - 1, 0, tensor),), (tensor,), (), f"train.py:{number + 1}")
        for number, name in enumerate(names)
    )
    last = (Operand(len(names) - 1, 0, tensor),) if names else ()
    return GraphFacts(GraphForm.HLO, (tensor,), ("",), operations, last)


@given(WORDS, WORDS)
def test_pairs_rise_and_are_as_many_as_can_be(a: list[str], b: list[str]) -> None:
    pairs = align(a, b, lambda i, j: (i + j) % 2 == 0)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in itertools.pairwise(pairs))
    assert len(pairs) == _longest_common(a, b)


def test_of_operators_of_one_name_those_with_equal_constants_are_a_pair() -> None:
    def scaled(*factors: str) -> GraphFacts:
        graph = chain(["mul"] * len(factors))
        operations = zip(graph.operations, factors, strict=True)
        return replace(
            graph, operations=tuple(replace(call, constants=(factor,)) for call, factor in operations)
        )

    steps = diff_graphs(scaled("2", "3", "4"), scaled("2", "4")).steps
    assert [(step.old, step.new) for step in steps] == [(0, 0), (1, -1), (2, 1)]


def test_the_first_and_the_last_operator_can_be_new_or_gone() -> None:
    def shown(old: str, new: str) -> list[tuple[int, int]]:
        steps = diff_graphs(chain(list(old)), chain(list(new))).steps
        assert not any(step.aspects for step in steps if step.old < 0 or step.new < 0)
        return [(step.old, step.new) for step in steps]

    assert shown("ab", "b") == [(0, -1), (1, 0)]
    assert shown("b", "ab") == [(-1, 0), (0, 1)]
    assert shown("a", "b") == [(0, -1), (-1, 0)]
    assert shown("abc", "abc") == [(0, 0), (1, 1), (2, 2)]
    step = diff_graphs(chain(["a"], (4, 4)), chain(["a"], (8, 8))).steps[0]
    assert Aspect.SHAPE in step.aspects


def test_pairs_are_found_between_edits_at_both_ends() -> None:
    assert align(list("xabcy"), list("uabcv")) == ((1, 1), (2, 2), (3, 3))
    assert align(list("abxcd"), list("acybd")) == ((0, 0), (3, 1), (4, 4))


@given(WORDS, WORDS, st.integers(1, 6))
def test_pairs_rise_however_early_a_search_gives_up(a: list[str], b: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neurontools.cache.why.diff._FEWEST_EDITS", most)
        patch.setattr("neurontools.cache.why.diff._MOST_EDITS", most)
        pairs = align(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in itertools.pairwise(pairs))


def _longest_common(a: list[str], b: list[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


@given(graphs())
def test_a_graph_does_not_differ_from_itself(graph: Graph) -> None:
    diff = diff_graphs(facts_of_graph(graph), facts_of_graph(graph))
    assert diff.is_empty
    assert diff_lines(diff) == ()
    assert diff.first_difference() is None


@given(graphs(), graphs())
@settings(max_examples=60)
def test_graphs_of_other_hash_differ_and_the_steps_hold_both(a: Graph, b: Graph) -> None:
    old, new = facts_of_graph(a), facts_of_graph(b)
    diff = diff_graphs(old, new)
    assert [step.old for step in diff.steps if step.old >= 0] == list(range(len(old.operations)))
    assert [step.new for step in diff.steps if step.new >= 0] == list(range(len(new.operations)))
    for step in diff.steps:
        if step.is_equal:
            assert old.operations[step.old].detail == new.operations[step.new].detail
    diff_lines(diff, full=True)


@given(st.lists(st.sampled_from("abcde"), min_size=3, max_size=30), st.data())
def test_an_inserted_operator_is_the_only_one_added(names: list[str], draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(names)))
    longer = [*names[:at], "new", *names[at:]]
    diff = diff_graphs(chain(names), chain(longer))
    assert [operation.name for operation in diff.added()] == ["new"]
    assert diff.removed() == ()
    back = diff_graphs(chain(longer), chain(names))
    assert [operation.name for operation in back.removed()] == ["new"]


@given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=30), st.data())
def test_a_changed_constant_is_found_where_it_is(names: list[str], draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(names) - 1))
    old = chain(names)
    operations = list(old.operations)
    operations[at] = replace(operations[at], constants=("0.1",))
    diff = diff_graphs(old, replace(old, operations=tuple(operations)))
    assert [(step.new, step.aspects) for step in diff.changed()] == [(at, {Aspect.CONSTANT})]
    assert diff.first_difference() == diff.changed()[0]


def test_an_insertion_stands_where_the_source_says() -> None:
    """Of two equal operators in a row, the one with other shapes is the new one."""
    old = chain(["a", "relu", "b"])
    big = TensorType("f32", (9, 9))
    new = chain(["a", "relu", "relu", "b"])
    operations = list(new.operations)
    operations[1] = OperatorCall("relu", (Operand(0, 0, SQUARE),), (big,), (), "train.py:7")
    diff = diff_graphs(old, replace(new, operations=tuple(operations)))
    assert [operation.source for operation in diff.added()] == ["train.py:7"]


def test_a_run_of_pairs_slides_behind_an_insertion_as_a_whole() -> None:
    pairs = [(-1, -1), (0, 0), (1, 1), (2, 4)]
    later = lambda _, j: int(j >= 2)  # noqa: E731
    assert _best_slide(pairs, 3, 2, "ababc", later) == 2
    assert _best_slide(pairs, 3, 2, "ababc", lambda _, j: int(j < 2)) == 0
    assert _best_slide(pairs, 3, 2, "xbabc", later) == 1
    assert _best_slide([(-1, -1), (0, 0), (2, 1), (3, 4)], 3, 2, "ababc", later) == 1


def test_what_follows_from_the_inputs_sizes_is_summed_up() -> None:
    diff = diff_graphs(facts_of_graph(mlp(rows=8)), facts_of_graph(mlp(rows=6)))
    assert diff.sizes == ((8, 6),)
    assert all(step.follows for step in diff.changed())
    assert [line.text for line in diff_lines(diff)] == ["... 3 operators differ by the sizes 8 -> 6 alone"]
    marks = [line.mark for line in diff_lines(diff, full=True)]
    assert (marks.count("-"), marks.count("+")) == (3, 3)


def test_another_wiring_is_a_difference() -> None:
    old = chain(["a", "b", "c"])
    operations = list(old.operations)
    operations[2] = replace(operations[2], operands=(Operand(0, 0, SQUARE),))
    diff = diff_graphs(old, replace(old, operations=tuple(operations)))
    assert [step.aspects for step in diff.changed()] == [{Aspect.WIRING}]


def test_equal_parts_are_folded_and_lines_are_limited() -> None:
    names = [f"op{number % 7}" for number in range(200)]
    diff = diff_graphs(chain(names), chain([*names[:100], "new", *names[100:]]))
    lines = [f"{line.mark}{line.text}" for line in diff_lines(diff)]
    assert lines[0] == " ... 98 operators the same"
    assert lines[1] == "@@@ -98,5 +98,6 @@ train.py:101"
    assert sum(line.startswith("+new(") for line in lines) == 1
    assert len(lines) == 10
    assert [line.text for line in diff_lines(diff, most=3)][-1] == "7 more lines (--full)"


def test_thousands_of_operators_without_anything_in_common_come_to_an_end() -> None:
    one = chain([f"a{number % 40}" for number in range(3000)])
    other = chain([f"b{number % 40}" for number in range(3000)])
    diff = diff_graphs(one, other)
    assert (len(diff.removed()), len(diff.added())) == (3000, 3000)
    mixed = diff_graphs(one, chain([f"a{number % 37}" for number in range(3000)]))
    assert len(mixed.steps) <= 6000


def test_very_long_graphs_come_to_an_end() -> None:
    one = [f"a{number % 90}" for number in range(60_000)]
    other = [f"a{number % 70}" for number in range(60_000)]
    pairs = align(one, other)
    assert all(one[i] == other[j] for i, j in pairs)
    assert len(pairs) > 20_000


def test_operators_that_take_their_own_results_come_to_an_end() -> None:
    loop = OperatorCall("convert", (Operand(1, 0, SQUARE),), (SQUARE,))
    first = OperatorCall("add", (Operand(1, 0, SQUARE),), (SQUARE,))
    odd = GraphFacts(GraphForm.HLO, (SQUARE,), ("",), (first, loop))
    assert diff_graphs(odd, odd).is_empty
    assert not diff_graphs(odd, chain(["add"])).is_empty
    assert not diff_graphs(chain(["add"]), odd).is_empty


def test_operators_with_other_numbers_of_constants_are_compared() -> None:
    def call(*constants: str) -> OperatorCall:
        return OperatorCall("mul", (Operand(-1, 0, SQUARE),), (SQUARE,), constants, "")

    graphs = [
        GraphFacts(GraphForm.HLO, (SQUARE,), ("",), calls, (Operand(0, 0, SQUARE),))
        for calls in ((call("1"), call("1", "2")), (call("1", "2"),))
    ]
    assert [(step.old, step.new) for step in diff_graphs(*graphs).steps] == [(0, -1), (1, 0)]


@pytest.mark.parametrize(("name", "text"), [("", "input 0:f32[8,8]"), ("x", "x:f32[8,8]")])
def test_an_input_is_shown_by_its_name_or_number(name: str, text: str) -> None:
    graph = replace(chain(["mul"]), input_names=(name,))
    assert _format_operand(graph, Operand(-1, 0, SQUARE)) == text
    assert _format_operand(graph, Operand(3, 0, SQUARE)) == "%3:f32[8,8]"
    assert _format_operand(graph, Operand(3, 1, SQUARE)) == "%3.1:f32[8,8]"


@pytest.mark.parametrize(
    ("strides", "offset", "text"),
    [
        ((12, 4, 1), 0, ""),
        ((99, 4, 1), 0, ""),
        ((12, 1, 3), 0, "strides 12,1,3 at 0"),
        ((12, 4, 1), 5, "strides 12,4,1 at 5"),
    ],
)
def test_a_window_is_shown_where_it_is_not_the_whole_buffer(
    strides: tuple[int, ...], offset: int, text: str
) -> None:
    assert _window(View(0, "float32", (1, 3, 4), strides, offset)) == text
