"""What is stored beside a graph and takes no part in its hash."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from neurontools.compiler.graph import GraphError, graph_from_bytes
from tests.compiler.graphs import mlp


def test_what_cut_a_graph_is_stored_and_does_not_change_its_hash() -> None:
    plain = mlp()
    cut = replace(plain, cut="mark_step at train.py:9")
    assert cut.digest() == plain.digest()
    assert graph_from_bytes(cut.to_bytes()) == cut
    assert graph_from_bytes(plain.to_bytes()).cut == ""


@pytest.mark.parametrize("sizes", [[10**400], [2**62, 2**62], [0, 2**63], [-1]])
def test_sizes_beyond_any_device_are_damage(sizes: list[int]) -> None:
    stored = json.loads(mlp().to_bytes())
    view = next(argument["view"] for argument in stored["nodes"][0]["args"] if "view" in argument)
    view[2:4] = [sizes, [1] * len(sizes)]
    with pytest.raises(GraphError, match="out of range"):
        graph_from_bytes(json.dumps(stored).encode())


def test_a_slot_beyond_any_device_is_damage() -> None:
    stored = json.loads(mlp().to_bytes())
    stored["slots"][0] = 10**400
    with pytest.raises(GraphError, match="out of range"):
        graph_from_bytes(json.dumps(stored).encode())
