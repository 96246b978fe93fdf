from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from benchmarks.engine_model.anchors import BUILDERS, Anchor, anchors, read_file
from benchmarks.engine_model.judge import Verdict, geometric_error, mean_error, transfer_ns, worst
from benchmarks.engine_model.kernels import KERNELS
from benchmarks.engine_model.model_anchors import model_anchors
from benchmarks.engine_model.published import CALIBRATION, REPORT, half_of
from neurontools.compiler.graph import graph_from_bytes, reads
from neurontools.compiler.work import flops, products
from neurontools.machine.instances.catalogue import instance_type

ALL = {anchor.name: anchor for anchor in anchors()}
GRAPHS = [name for name, anchor in ALL.items() if anchor.parameters["builder"] not in KERNELS]
# Weights of the models, from their model cards and papers, in millions; CLIP's towers together.
MILLIONS = {
    "albert-base": 11.7,
    "bert-base": 110,
    "bert-large": 335,
    "distilbert-base": 66,
    "electra-base": 109,
    "roberta-base": 125,
    "roberta-large": 355,
    "gpt2": 124,
    "gpt2-medium": 355,
    "gpt2-large": 774,
    "resnet18": 11.7,
    "resnet34": 21.8,
    "resnet50": 25.6,
    "resnet101": 44.5,
    "resnet152": 60.2,
    "vgg11": 133,
    "vgg16": 138,
    "unet": 31,
    "vit-base": 86.6,
    "clip-base": 151,
    "clip-large": 428,
}
# Multiply-accumulates of an image of 224 x 224, from torchvision's list of models, in billions.
IMAGE_GMACS = {
    "resnet18": 1.81,
    "resnet34": 3.66,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "vgg11": 7.61,
    "vgg16": 15.47,
}


def first_of(model: str) -> Anchor:
    return next(anchor for anchor in ALL.values() if anchor.model == model)


def test_there_are_at_least_thirty_figures_with_a_source_each() -> None:
    assert len(ALL) == len(anchors()) >= 30
    for anchor in anchors():
        assert anchor.document.endswith((".csv", ".rst"))
        assert anchor.tag.startswith("v2.")
        assert anchor.row
        assert 0.1 < anchor.published_ms < 1000


def test_the_name_decides_the_half() -> None:
    for name, anchor in ALL.items():
        is_low = hashlib.sha256(name.encode()).hexdigest()[0] in "01234567"
        assert anchor.half == half_of(name) == (CALIBRATION if is_low else REPORT)
    sizes = Counter(anchor.half for anchor in anchors())
    assert min(sizes.values()) >= 15


def test_names_follow_from_the_workload() -> None:
    for anchor in anchors():
        if anchor.model not in {"matmul", "mamba"}:
            family = anchor.instance.split(".")[0]
            assert anchor.name.startswith(f"{anchor.model}-b{anchor.parameters['batch']}-")
            assert anchor.name.endswith(f"-{family}")


def test_every_model_is_used_and_every_instance_is_known() -> None:
    assert set(read_file()["models"]) == {anchor.model for anchor in anchors()}
    for anchor in anchors():
        assert instance_type(anchor.instance).device.core.name == "NeuronCore-v2"


def test_a_figure_left_out_has_a_reason() -> None:
    for row in read_file()["excluded"]:
        assert set(row) == {"figure", "document", "reason"}
        assert row["reason"]


def test_a_throughput_becomes_a_time_of_one_core() -> None:
    assert ALL["bert-base-b16-trn1"].published_ms == pytest.approx(16 * 2 / 3421.56625089 * 1e3)
    assert ALL["bert-base-b1-trn1"].published_ms == 0.94294548


@pytest.mark.parametrize("model", MILLIONS)
def test_a_model_has_as_many_weights_as_published(model: str) -> None:
    ((graph, _),) = first_of(model).graphs()
    weights = sum(graph.slots[slot].nbytes for slot in graph.outputs if slot in graph.inputs) / 4e6
    assert weights == pytest.approx(MILLIONS[model], rel=0.02)


@pytest.mark.parametrize("model", IMAGE_GMACS)
def test_a_network_does_as_much_arithmetic_as_published(model: str) -> None:
    anchor = first_of(model)
    ((graph, _),) = anchor.graphs()
    work = sum(flops(node) for node in graph.nodes if products(node))
    assert work / 2e9 / anchor.parameters["batch"] == pytest.approx(IMAGE_GMACS[model], rel=0.02)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_whole(name: str) -> None:
    for graph, share in ALL[name].graphs():
        assert 0 < share <= 1
        assert graph_from_bytes(graph.to_bytes()) == graph
        written: set[int] = set(graph.inputs)
        for node in graph.nodes:
            in_place = {view.slot for view in node.results if view is not None}
            assert {view.slot for view in reads(node)} <= written | in_place, node.op
            written |= in_place


def test_training_does_three_times_the_arithmetic_of_inference() -> None:
    training, _ = ALL["bert-large-pretraining-b16-trn1"].graphs()
    ((inference, _),) = ALL["bert-large-b4-trn1"].graphs()
    spent = [sum(flops(node) for node in graph.nodes if products(node)) for graph in (training[0], inference)]
    head = 2 * 16 * 128 * 1024 * (30522 + 1024)
    assert spent[0] == pytest.approx(3 * (4 * spent[1] + head), rel=0.01)


def test_every_weight_takes_one_gradient() -> None:
    ((graph, _), _) = ALL["bert-large-pretraining-b16-trn1"].graphs()
    added = [node for node in graph.nodes if node.op == "aten.add_.Tensor"]
    weights = 5 + 24 * 16 + 2 + 2 + 2 + 1 + 2
    assert len(added) == weights


def test_a_waiting_client_sees_transfers() -> None:
    waiting, busy = ALL["bert-base-b16-trn1"], ALL["resnet50-b8-inf2"]
    assert waiting.has_transfers
    assert not busy.has_transfers
    ((graph, _),) = waiting.graphs()
    hidden, pooled, tokens = 16 * 128 * 768 * 4, 16 * 768 * 4, 3 * 16 * 128 * 4 + 128 * 8
    assert transfer_ns(graph) == pytest.approx((hidden + pooled + tokens) / 16)


def test_pages_of_large_results_are_touched_for_the_first_time() -> None:
    (anchor,) = (row for row in model_anchors() if row.name == "xlm-roberta-base-lm-b1-trn1")
    sizes = {name: value for name, value in anchor.sizes.items() if name not in {"builder", "config"}}
    work = {name: anchor.workload[name] for name in ("batch", "length", "dtype")}
    graph = BUILDERS["encoder"](**sizes, **work)
    scores = 128 * 250002 * 4
    assert transfer_ns(graph) == pytest.approx(scores / 16 + scores / 4, rel=1e-3)


def test_errors_count_in_both_directions() -> None:
    anchor = ALL["bert-base-b1-trn1"]
    half, double = (Verdict(anchor, anchor.published_ms * factor) for factor in (0.5, 2.0))
    exact = Verdict(anchor, anchor.published_ms)
    assert half.error == double.error == 2
    assert mean_error([half, exact]) == 1.5
    assert geometric_error([half, exact]) == pytest.approx(2**0.5)
    assert worst([exact, double]) is double
