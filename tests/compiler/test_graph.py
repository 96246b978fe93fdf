"""What is stored beside a graph and takes no part in its hash."""

from __future__ import annotations

from dataclasses import replace

from neurontools.compiler.graph import graph_from_bytes
from tests.compiler.graphs import mlp


def test_what_cut_a_graph_is_stored_and_does_not_change_its_hash() -> None:
    plain = mlp()
    cut = replace(plain, cut="mark_step at train.py:9")
    assert cut.digest() == plain.digest()
    assert graph_from_bytes(cut.to_bytes()) == cut
    assert graph_from_bytes(plain.to_bytes()).cut == ""
