"""Modelled times of whole models: what is recorded, how layers are counted, and what the script prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks.engine_model.graph_inputs import input_bytes, with_weights
from benchmarks.engine_model.model_anchors import ModelAnchor, model_anchors
from benchmarks.engine_model.model_times import ModelTime, model_time, repeated
from benchmarks.engine_model.published import CALIBRATION, REPORT
from benchmarks.engine_model.sharded import Decoder, record_worker
from benchmarks.model_anchors import aggregate, row_line
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.work import products
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph

DEVICE = instance_type("trn1.32xlarge").device
SIZES = {"width": 512, "heads": 8, "kv_heads": 4, "inner": 1024, "vocabulary": 4096}
CONTEXT, BATCH = 256, 4
MATRICES = 512 * (512 + 2 * 256 + 512 + 3 * 1024)  # of a layer


def token(layers: int, workers: int = 1) -> Graph:
    with torch.no_grad():
        return record_worker(workers, Decoder(SIZES, workers, torch.bfloat16, layers).token, BATCH, CONTEXT)


def work(graph: Graph) -> int:
    return sum(product.flops for node in graph.nodes for product in products(node))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_share_the_products_and_the_bytes_of_a_token(workers: int) -> None:
    attention = 2 * 2 * BATCH * 8 * 64 * CONTEXT
    assert work(token(3, workers)) * workers == 2 * BATCH * (3 * MATRICES + 512 * 4096) + 3 * attention
    cache = 2 * BATCH * 4 * 64 * CONTEXT
    layer = input_bytes(token(3, workers)) - input_bytes(token(2, workers))
    assert layer == pytest.approx(2 * (MATRICES + cache) / workers, rel=0.01)


def test_weights_in_int8_are_a_byte_each() -> None:
    wide = token(3)
    narrow = with_weights(wide, "int8")
    assert input_bytes(wide) - input_bytes(narrow) == 3 * MATRICES + 512 * 4096
    assert work(wide) == work(narrow)


def test_a_step_of_training_has_three_times_the_products_of_a_pass() -> None:
    decoder = Decoder(SIZES, 2, torch.bfloat16, 1, is_trained=True, has_kernel=True)
    graph = record_worker(2, lambda: decoder.train(128, has_words=True))
    linear = 2 * 128 * (MATRICES + 512 * 4096) / 2
    found = sum(product.flops for node in graph.nodes if "mm" in node.op for product in products(node))
    assert found == 3 * linear
    assert [node.op for node in graph.nodes if node.op.startswith("neurontools.")].count(
        "neurontools.reduce_scatter.default"
    ) == 3 + 3


@pytest.mark.parametrize("workers", [1, 4])
def test_layers_beyond_the_first_take_what_two_more_take(workers: int) -> None:
    def modelled(graph: Graph) -> float:
        return estimate(graph, DEVICE).total_ns

    guessed = sum(share * modelled(graph) for graph, share in repeated(lambda n: token(n, workers), 8))
    assert guessed == pytest.approx(modelled(token(8, workers)), rel=0.03)


def anchor(name: str) -> ModelAnchor:
    return next(anchor for anchor in model_anchors() if anchor.name == name)


def test_rows_of_the_report_half_are_refused() -> None:
    hidden = next(anchor for anchor in model_anchors() if anchor.half == REPORT)
    with pytest.raises(ValueError, match="not printed"):
        row_line(hidden, None)
    shown = next(anchor for anchor in model_anchors() if anchor.half == CALIBRATION)
    assert shown.name in row_line(shown, ModelTime(shown, 1.0, 0.5))


def test_aggregates_have_no_names_and_count_what_is_below_its_bound() -> None:
    chosen = [found for found in model_anchors() if found.half == REPORT][:3]
    times = [
        ModelTime(chosen[0], 2 * chosen[0].published_ms, 0.0),
        ModelTime(chosen[1], chosen[1].published_ms / 4, 2 * chosen[1].published_ms),
        ModelTime(chosen[2], chosen[2].published_ms, 0.0),
    ]
    text = aggregate(times)
    assert text == "  3 figures, mean factor 2.33, within 1.5: 33%, worst 4.00, 1 below the bound"


@pytest.mark.parametrize("family", sorted({anchor.family for anchor in model_anchors()}))
def test_a_figure_of_each_family_is_modelled_and_not_below_its_bound(family: str) -> None:
    chosen = (found for found in model_anchors() if found.family == family)
    cheapest = sorted(chosen, key=lambda found: found.workload.get("steps", 0))
    time = next(time for found in cheapest if (time := model_time(found)) is not None)
    assert 0 < time.bound_ms < min(time.modelled_ms, time.anchor.published_ms)
