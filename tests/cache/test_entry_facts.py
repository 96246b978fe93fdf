"""Short texts about an entry: script, operators, shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.cache.entries import scan
from neurontools.cache.entry_facts import EntrySummary, format_shapes, read_facts
from neurontools.cache.graph_facts import TensorType

if TYPE_CHECKING:
    from tests.cache.conftest import Tree


def test_different_shapes_have_short_types_and_the_rest_a_number() -> None:
    weights = [TensorType("bfloat16", (size, 64)) for size in (1, 2, 3)]
    inputs = (TensorType("float32", (32, 64)), TensorType("float32", (32, 64)), *weights)
    assert format_shapes(inputs[:2]) == "f32[32,64]"
    assert format_shapes(inputs) == "f32[32,64] bf16[1,64] bf16[2,64] +1"
    assert format_shapes(()) == ""


def test_an_entry_without_a_readable_graph_or_one_that_is_gone_has_no_facts(tree: Tree) -> None:
    path = tree.done(graph="1111")
    (entry,) = scan(str(tree.root)).entries
    assert read_facts(str(tree.root), entry.place).shapes == ""
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert read_facts(str(tree.root), entry.place) == EntrySummary()
