"""What-if: a changed graph is the graph that the changed program records, and its time is that of a compile."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.engine_model.builder import GraphBuilder, reshape, transpose
from benchmarks.engine_model.training import decoder_training, encoder_pretraining, vision_training
from benchmarks.engine_model.transformers import encoder
from neurontools.compiler.attention_forms import fuse_attention, write_out_attention
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.graph import Graph, Node, Symbol, graph_from_bytes, reads
from neurontools.compiler.neff import parse
from neurontools.compiler.resizing import ChangeError, batch_sizes, resize
from neurontools.compiler.what_if import Change, apply_change, read_prices, what_if
from neurontools.config.reader import FileError
from neurontools.machine.instances.catalogue import UnknownInstanceError, instance_type
from tests.compiler.graphs import custom_graph, graph_of, mlp, tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.compiler.neff import Neff

TRN1 = instance_type("trn1.2xlarge").device
GPT = {"layers": 2, "width": 64, "heads": 4, "vocabulary": 515, "batch": 4, "length": 32}
BERT = {"layers": 1, "width": 64, "heads": 4, "inner": 256, "vocabulary": 500, "batch": 4, "length": 32}
VIT = {"layers": 1, "width": 64, "heads": 4, "inner": 128, "patch": 16, "batch": 3}

gpt = functools.partial(decoder_training, **GPT, optimizer="adamw")
bert = functools.partial(encoder_pretraining, **BERT)
bert_inference = functools.partial(encoder, **BERT)
vit = functools.partial(vision_training, **VIT)


def shapes(graph: Graph) -> list[object]:
    return [
        (node.op, [view.shape for view in reads(node)], [view and view.shape for view in node.results])
        for node in graph.nodes
    ]


def neff_of(graph: Graph, *flags: str) -> Neff:
    return parse(compile_graph(graph, TRN1, ("--target=trn1", *flags), "gpt"))


@pytest.mark.parametrize(
    ("build", "old", "new"),
    [
        (gpt, 4, 8),
        (functools.partial(gpt, fused=False), 4, 8),
        (bert, 4, 6),
        (functools.partial(bert_inference, fused=True), 4, 1),
        (functools.partial(bert_inference, fused=False), 4, 12),
        (vit, 3, 9),
    ],
)
def test_another_batch_is_what_the_program_records_with_it(
    build: Callable[..., Graph], old: int, new: int
) -> None:
    graph = build()
    assert batch_sizes(graph) == (old,)
    changed = resize(graph, {old: new}, only_batch=True)
    assert shapes(changed) == shapes(build(batch=new))
    assert sum(slot.nbytes for slot in changed.slots) == pytest.approx(
        sum(slot.nbytes for slot in build(batch=new).slots), rel=0.001
    )
    assert graph_from_bytes(changed.to_bytes()) == changed


@pytest.mark.parametrize(
    ("build", "sizes", "changes"),
    [
        (gpt, {515: 640}, {"vocabulary": 640}),
        (functools.partial(gpt, width=260), {260: 256, 1040: 1024}, {"width": 256}),
        (functools.partial(gpt, width=260, fused=False), {260: 256, 1040: 1024}, {"width": 256}),
        (bert, {32: 48}, {"length": 48}),
        (bert, {256: 320}, {"inner": 320}),
    ],
)
def test_another_size_is_what_the_program_records_with_it(
    build: Callable[..., Graph], sizes: dict[int, int], changes: dict[str, int]
) -> None:
    assert shapes(resize(build(), sizes)) == shapes(build(**changes))


def test_another_data_type_is_what_the_program_records_with_it() -> None:
    cast = apply_change(gpt(), Change(dtype="bf16"))
    types = Counter(view.dtype for node in cast.nodes for view in reads(node))
    assert set(types) == {"bfloat16", "int64"}
    assert estimate(cast, TRN1).total_ns == pytest.approx(
        estimate(gpt(dtype="bfloat16"), TRN1).total_ns, rel=0.02
    )
    x, y = tensor(0, 4), tensor(1, 4)
    node = Node("aten._to_copy.default", (x,), (("dtype", Symbol("dtype", "float32")),), (y,))
    (changed,) = apply_change(graph_of(node, inputs=(0,)), Change(dtype="float16")).nodes
    assert changed.kwargs == (("dtype", Symbol("dtype", "float16")),)


@pytest.mark.parametrize(
    "build", [functools.partial(gpt, length=128), functools.partial(bert_inference, length=128)]
)
def test_attention_takes_the_time_of_its_other_form(build: Callable[..., Graph]) -> None:
    fused, written = build(fused=True), build(fused=False)
    for changed, wanted in ((write_out_attention(fused), written), (fuse_attention(written), fused)):
        assert estimate(graph_from_bytes(changed.to_bytes()), TRN1).total_ns == pytest.approx(
            estimate(wanted, TRN1).total_ns, rel=0.15
        )
    assert (
        Counter(node.op for node in write_out_attention(fused).nodes)["aten._softmax.default"]
        == Counter(node.op for node in written.nodes)["aten._softmax.default"]
    )


def test_keys_that_are_copied_turned_are_turned_back_for_the_fused_call() -> None:
    """torch copies k.transpose(-2, -1) to a stack of matrices before the product."""
    b = GraphBuilder("bfloat16")
    batch, heads, length, depth = 2, 3, 64, 16
    q, k, v = (b.input(batch, heads, length, depth) for _ in range(3))
    copies = (b.compute("clone.default", x, shape=x.shape) for x in (q, transpose(k), v))
    queries, keys, values = (reshape(copy, batch * heads, *copy.shape[2:]) for copy in copies)
    scores = b.compute("bmm.default", queries, keys, shape=(batch * heads, length, length))
    weights = b.compute("_softmax.default", scores, -1, False, shape=scores.shape)
    mixed = b.compute("bmm.default", weights, values, shape=(batch * heads, length, depth))
    (call,) = fuse_attention(b.finish(mixed)).nodes
    assert [view.shape[-2:] for view in reads(call)] == [(length, depth)] * 3


def test_fused_attention_drops_its_dropout() -> None:
    operators = Counter(node.op for node in fuse_attention(bert()).nodes)
    assert operators["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"] == BERT["layers"]
    assert "aten._softmax.default" not in operators


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(batch=(5, 8)), "no data of batch 5"),
        (Change(batch=(None, 1.3)), r"a batch of 5\.2 is not a whole number"),
        (Change(batch=(4, 0)), "a batch of 0"),
        (Change(sizes={7: 8}), "no input with a dimension of 7"),
        (Change(sizes={64: 66}), "used as 4 x 16, which 66 cannot be"),
        (Change(dtype="int3"), "unknown data type 'int3'"),
        (Change(attention="written-out"), "no fused attention"),
    ],
)
def test_a_change_that_cannot_be_applied_says_why(change: Change, words: str) -> None:
    with pytest.raises(ChangeError, match=words) as raised:
        apply_change(gpt(fused=False), change)
    assert raised.value.remedy


def test_attention_that_is_fused_already_cannot_be_fused() -> None:
    with pytest.raises(ChangeError, match="no attention that is written out"):
        apply_change(gpt(), Change(attention="fused"))


def test_sizes_that_belong_together_are_named() -> None:
    x, w, h, v = tensor(0, 4, 8), tensor(1, 8, 16), tensor(2, 4, 16), tensor(3, 16, 2)
    nodes = (
        Node("aten.mm.default", (x, w), (), (h,)),
        Node("aten.mm.default", (h, v), (), (tensor(4, 4, 2),), "train.py:7"),
    )
    graph = replace(graph_of(*nodes, inputs=(0, 1)), inputs=(0, 1))
    with pytest.raises(ChangeError, match=r"train\.py:7.* would multiply 24 columns by 16 rows"):
        resize(graph, {16: 24})


def test_no_batch_that_can_be_told_is_asked_for() -> None:
    x, y = tensor(0, 4, 8), tensor(1, 2, 8)
    graph = graph_of(Node("aten.cat.default", ((x, y),), (), (tensor(2, 6, 8),)), inputs=(0, 1))
    with pytest.raises(ChangeError, match=r"may be 2, 4"):
        apply_change(graph, Change(batch=(None, 2)))


def test_no_change_is_the_time_of_the_neff() -> None:
    neff = neff_of(gpt())
    (forecast,) = what_if(neff, Change())
    assert forecast.before_ns == forecast.after_ns == neff.cost.total_ns
    assert (forecast.instance, forecast.lnc, forecast.ratio) == ("trn1.2xlarge", 1, 1.0)


def test_a_change_is_the_time_of_a_compile_of_the_changed_graph() -> None:
    neff = neff_of(gpt(), "--auto-cast=matmult")
    (forecast,) = what_if(neff, Change(batch=(None, 2)))
    assert forecast.after_ns == neff_of(gpt(batch=8), "--auto-cast=matmult").cost.total_ns
    assert forecast.sample_ratio == forecast.after_ns / forecast.before_ns / 2


def test_instance_types_have_prices_and_their_own_core_sizes() -> None:
    names = ("trn1.2xlarge", "trn2.48xlarge", "inf2.xlarge")
    found = what_if(neff_of(gpt()), Change(), names, prices={"trn1.2xlarge": 3.6, "trn2.48xlarge": 64})
    assert [forecast.lnc for forecast in found] == [1, 2, 1]
    first, second, third = found
    assert first.price_per_million_steps == pytest.approx(3.6 / 3600e9 * first.after_ns * 1e6 / 2)
    assert second.price_per_million_steps == pytest.approx(64 / 3600e9 * second.after_ns * 1e6 / 64)
    assert third.price_per_million_steps is None
    assert third.after_ns == first.after_ns


def test_what_an_instance_type_lacks_is_said() -> None:
    neff = neff_of(gpt())
    (forecast,) = what_if(neff, Change(), ["trn1.2xlarge"], lnc=2)
    assert (forecast.before_ns, forecast.after_ns) == (None, None)
    assert forecast.problem == "it has no logical core size of 2, only 1"
    (forecast,) = what_if(neff, Change(batch=(4, 4_000_000)))
    assert forecast.before_ns
    assert "exceeds the high-bandwidth memory limit" in forecast.problem
    with pytest.raises(UnknownInstanceError):
        what_if(neff, Change(), ["trn9"])


def test_custom_operators_keep_their_times() -> None:
    graph, part = custom_graph()
    neff = parse(
        compile_graph(graph, TRN1, ("--target=trn1",), "custom", [replace(part, call_ns=((0, 777_000),))])
    )
    (forecast,) = what_if(neff, Change(dtype="bf16"))
    assert forecast.before_ns == neff.cost.total_ns
    assert forecast.after_ns is not None
    assert forecast.after_ns >= 777_000


def test_a_price_list_has_all_its_mistakes_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("trn1.2xlarge: 1.34\ntrn2.48xlarge: 40\n")
    assert read_prices(str(path)) == {"trn1.2xlarge": 1.34, "trn2.48xlarge": 40}
    path.write_text("trn1.2xlarge: cheap\ntrn9.large: 1\n")
    with pytest.raises(FileError, match="2 mistakes"):
        read_prices(str(path))
    path.write_text("{")
    with pytest.raises(FileError):
        read_prices(str(path))
    with pytest.raises(ChangeError, match="cannot read"):
        read_prices(str(tmp_path / "none"))


@pytest.mark.parametrize("rank", range(9))
@pytest.mark.parametrize("size", [0, 1, 2**41])
def test_tensors_of_any_rank_and_size(rank: int, size: int) -> None:
    side = [size] * min(rank, 1) + [1] * max(rank - 1, 0)
    x, y = tensor(0, *side, dtype="unheard_of"), tensor(1, *side)
    graph = graph_of(Node("aten.add.Tensor", (x, x), (), (y,)), inputs=(0,))
    assert apply_change(graph, Change(dtype="bf16")).nodes[0].results[0].dtype == "bfloat16"
    if rank and size > 1:
        assert resize(graph, {size: 6}).nodes[0].results[0].shape[0] == 6


def test_the_original_stays_as_it_is() -> None:
    graph = mlp()
    stored = graph.to_bytes()
    apply_change(graph, Change(dtype="bf16", sizes={8: 16}))
    graph.release_stored_form()
    assert graph.to_bytes() == stored
