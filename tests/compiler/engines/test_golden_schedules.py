"""Schedules of small graphs of every family, number by number; WRITE_GOLDEN=1 writes them.

Compare a changed file with `git diff`: each number that moved must have a reason in docs/explanation/cost-model.md.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.engine_model.builder import GraphBuilder, dtype_symbol, permute, reshape, transpose
from benchmarks.engine_model.convolutional import resnet, unet
from benchmarks.engine_model.layers import attend_fused, attention, layer_norm, linear
from benchmarks.engine_model.optimizers import OPTIMIZERS
from benchmarks.engine_model.training import decoder_training, encoder_pretraining
from neurontools.compiler.engines.estimate import estimate
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.graph import Graph

GOLDEN = Path(__file__).parent / "golden"
CORES = {"inf1.xlarge": None, "trn1.2xlarge": "bf16", "trn2.48xlarge": None, "trn3.48xlarge": None}
"""Instance types, and what float32 products are cast to."""

Case = tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...], dict[str, Any]]
# An operator, the shapes of its tensors, that of its result, and what is special: other arguments after the tensors,
# data types of tensors that are not float32, tensors whose last dimensions are swapped, more results.
SINGLE: dict[str, Case] = {
    "mm": ("mm.default", ((130, 257), (257, 600)), (130, 600), {}),
    "mm_transposed": ("mm.default", ((130, 257), (600, 257)), (130, 600), {"turned": (1,)}),
    "mm_bfloat16": ("mm.default", ((512, 512), (512, 512)), (512, 512), {"types": {0: "bfloat16", 1: "bfloat16"}}),
    "mm_of_one_row": ("mm.default", ((1, 2048), (2048, 1000)), (1, 1000), {}),
    "addmm": ("addmm.default", ((640,), (70, 128), (128, 640)), (70, 640), {}),
    "bmm": ("bmm.default", ((6, 100, 64), (6, 64, 90)), (6, 100, 90), {}),
    "add": ("add.Tensor", ((300, 777), (300, 777)), (300, 777), {}),
    "add_bfloat16": ("add.Tensor", ((256, 512), (256, 512)), (256, 512), {"types": {0: "bfloat16", 1: "bfloat16"}}),
    "addcdiv": ("addcdiv.default", ((256, 300),) * 3, (256, 300), {}),
    "native_dropout": ("native_dropout.default", ((256, 300),), (256, 300), {"rest": (0.1, True)}),
    "relu": ("relu.default", ((1000, 64),), (1000, 64), {}),
    "gelu": ("gelu.default", ((1000, 64),), (1000, 64), {}),
    "lstm_cell": ("_thnn_fused_lstm_cell.default", ((64, 512),) * 3, (64, 128), {}),
    "softmax": ("_softmax.default", ((200, 1000),), (200, 1000), {"rest": (-1, False)}),
    "softmax_backward": ("_softmax_backward_data.default", ((200, 1000),) * 2, (200, 1000), {"rest": (-1,)}),
    "layer_norm": (
        "native_layer_norm.default", ((300, 700), (700,), (700,)), (300, 700), {"rest": (1e-5,)},
    ),
    "rms_norm": ("_fused_rms_norm.default", ((300, 512),), (300, 512), {}),
    "layer_norm_backward": (
        "native_layer_norm_backward.default", ((300, 700),) * 2, (300, 700), {},
    ),
    "batch_norm": ("native_batch_norm.default", ((4, 32, 14, 14), (32,), (32,)), (4, 32, 14, 14), {"rest": (False,)}),
    "batch_norm_training": (
        "native_batch_norm.default", ((4, 32, 14, 14), (32,), (32,)), (4, 32, 14, 14), {"rest": (True,)},
    ),
    "batch_norm_backward": ("native_batch_norm_backward.default", ((4, 32, 14, 14),) * 2, (4, 32, 14, 14), {}),
    "sum_of_all": ("sum.default", ((300, 900),), (), {}),
    "sum_of_columns": ("sum.dim_IntList", ((300, 900),), (1, 900), {"rest": ((0,), True)}),
    "sum_of_rows": ("sum.dim_IntList", ((300, 900),), (300, 1), {"rest": ((1,), True)}),
    "variance": ("var.correction", ((300, 900),), (300,), {"rest": ((1,),)}),
    "mse_loss": ("mse_loss.default", ((300, 900),) * 2, (), {}),
    "argmax": ("argmax.default", ((300, 900),), (300,), {"rest": (1,)}),
    "max_pool": ("max_pool2d_with_indices.default", ((2, 16, 32, 32),), (2, 16, 16, 16), {"rest": ((2, 3),)}),
    "adaptive_pool": ("_adaptive_avg_pool2d.default", ((2, 16, 32, 32),), (2, 16, 1, 1), {"rest": ((1, 1),)}),
    "cumsum": ("cumsum.default", ((200, 300),), (200, 300), {"rest": (1,)}),
    "top_k": ("topk.default", ((200, 1000),), (200, 20), {"rest": (20,)}),
    "sort": ("sort.default", ((200, 1000),), (200, 1000), {}),
    "nonzero": ("nonzero.default", ((200, 100),), (200, 2), {}),
    "embedding": ("embedding.default", ((5000, 300), (400,)), (400, 300), {"types": {1: "int64"}}),
    "gather": ("gather.default", ((400, 30), (400, 2)), (400, 2), {"types": {1: "int64"}}),
    "gather_few": ("gather.default", ((4000, 300), (40, 2)), (40, 2), {"types": {1: "int64"}}),
    "scatter_add": ("scatter_add.default", ((400, 30), (40, 30), (40, 30)), (400, 30), {"types": {1: "int64"}}),
    "embedding_backward": (
        "embedding_dense_backward.default", ((400, 300), (400,)), (5000, 300), {"types": {1: "int64"}},
    ),
    "clone_transposed": ("clone.default", ((700, 300),), (300, 700), {"turned": (0,)}),
    "cast": ("_to_copy.default", ((300, 700),), (300, 700), {"result": "bfloat16"}),
    "cat": ("cat.default", ((300, 100), (300, 200)), (300, 300), {}),
    "zeros": ("zeros_like.default", ((500, 500),), (500, 500), {}),
    "triangle": ("tril.default", ((300, 300),), (300, 300), {}),
    "unknown": ("not_an_operator.default", ((300, 300),), (300, 300), {}),
    "convolution": (
        "convolution.default", ((2, 3, 32, 32), (16, 3, 3, 3)), (2, 16, 30, 30), {"rest": (None, (1, 1), (0, 0))},
    ),
    "convolution_of_groups": (
        "convolution.default",
        ((2, 64, 28, 28), (64, 1, 3, 3)),
        (2, 64, 26, 26),
        {"rest": (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 64)},
    ),
    "convolution_backward": (
        "convolution_backward.default",
        ((2, 16, 30, 30), (2, 3, 32, 32), (16, 3, 3, 3)),
        (2, 3, 32, 32),
        {"rest": (None, (1, 1), (0, 0))},
    ),
}  # fmt: skip


def single(case: Case) -> Graph:
    op, shapes, result, special = case
    b = GraphBuilder()
    types = special.get("types", {})
    tensors = [b.input(*shape, dtype=types.get(index, "")) for index, shape in enumerate(shapes)]
    for index in special.get("turned", ()):
        tensors[index] = transpose(tensors[index])
    made = b.compute(op, *tensors, *special.get("rest", ()), shape=result, dtype=special.get("result", ""))
    return b.finish(made)


def _attended(*, causal: bool, training: bool) -> Graph:
    b = GraphBuilder("bfloat16", training=training)
    parts = [linear(b, b.input(2, 200, 128), 128) for _ in range(3)]
    mixed = attend_fused(b, parts[0], parts[1], parts[2], 4, None, causal=causal)
    if training:
        b.backward(mixed)
    return b.finish(mixed)


def _chain() -> Graph:
    """Values stay in SBUF and PSUM between calls, and change their layout."""
    b = GraphBuilder()
    x = b.input(300, 260)
    hidden = b.like("gelu.default", layer_norm(b, linear(b, x, 520)))
    turned = b.compute("clone.default", transpose(hidden), shape=(520, 300))
    product = b.compute("mm.default", turned, x, shape=(520, 260))
    total = b.like("add.Tensor", product, b.like("exp.default", product))
    return b.finish(b.compute("sum.dim_IntList", total, (0,), shape=(260,)))


def _spilled() -> Graph:
    """More than SBUF holds is alive at once."""
    b = GraphBuilder()
    x, weight = b.input(2048, 512), b.input(512, 2048)
    kept = [b.like("exp.default", b.compute("mm.default", x, weight, shape=(2048, 2048))) for _ in range(4)]
    total = kept[0]
    for other in reversed(kept):
        total = b.compute("mm.default", total, other, shape=(2048, 2048))
    return b.finish(total)


def _written() -> Graph:
    b = GraphBuilder()
    return b.finish(attention(b, b.input(2, 150, 128), 4, fused=False))


def _heads_moved() -> Graph:
    b = GraphBuilder()
    x = reshape(b.input(2, 64, 256), 2, 64, 4, 64)
    return b.finish(b.compute("clone.default", permute(x, 0, 2, 1, 3), shape=(2, 4, 64, 64)))


def _fused_layer() -> Graph:
    b = GraphBuilder()
    x = b.input(2, 100, 128)
    weights = [b.input(*shape) for shape in ((384, 128), (384,), (128, 128), (128,))]
    norms = [b.input(128) for _ in range(4)]
    inner = [b.input(*shape) for shape in ((512, 128), (512,), (128, 512), (128,))]
    made = b.compute(
        "_transformer_encoder_layer_fwd.default",
        x, 128, 4, *weights, True, False, 1e-5, *norms, *inner,
        shape=x.shape,
    )  # fmt: skip
    return b.finish(made)


def _optimized(name: str) -> Graph:
    b = GraphBuilder(training=True)
    made = linear(b, b.input(64, 300), 200)
    b.backward(made)
    OPTIMIZERS[name](b)
    return b.finish(made)


def _lowered_softmax() -> Graph:
    """A product in PSUM that a softmax reads, and the gradient with its type as an argument."""
    b = GraphBuilder()
    scores = b.compute("mm.default", b.input(200, 64), b.input(64, 700), shape=(200, 700))
    weights = b.like("_log_softmax.default", scores, -1, False)
    inner = b.like(
        "_log_softmax_backward_data.default", b.input(200, 700), weights, -1, dtype_symbol("float32")
    )
    return b.finish(inner)


MODELS: dict[str, Callable[[], Graph]] = {
    "attention": lambda: _attended(causal=False, training=False),
    "attention_causal": lambda: _attended(causal=True, training=False),
    "attention_training": lambda: _attended(causal=True, training=True),
    "attention_written": _written,
    "heads_moved": _heads_moved,
    "chain": _chain,
    "spilled": _spilled,
    "fused_layer": _fused_layer,
    "log_softmax_of_a_product": _lowered_softmax,
    **{f"optimizer_{name}": lambda name=name: _optimized(name) for name in OPTIMIZERS},  # type: ignore[misc]
    "gpt_training": lambda: decoder_training(
        layers=2, width=130, heads=2, vocabulary=1000, batch=3, length=70, optimizer="adamw"
    ),
    "bert_pretraining": lambda: encoder_pretraining(
        layers=1, width=128, heads=2, inner=300, vocabulary=500, batch=2, length=64
    ),
    "resnet18": lambda: resnet(depth=18, image=64, classes=10, batch=2),
    "unet": lambda: unet(image=64, batch=1),
}  # fmt: skip


def rows_of(cost: GraphCost) -> list[str]:
    return [
        f"  {row.operator:3} {row.engine.value:7} {row.opcode:19} start {row.start_ns} duration {row.duration_ns}"
        f" busy {row.busy_ns} tiles {row.tiles} flops {row.flops} read {row.read_bytes} write {row.write_bytes}"
        for row in cost.rows
    ]


def sums_of(cost: GraphCost) -> list[str]:
    """Return the totals of each engine and opcode, for graphs with too many rows to read."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    for row in cost.rows:
        numbers = {
            "groups": 1,
            "duration": row.duration_ns,
            "busy": row.busy_ns,
            "tiles": row.tiles,
            "flops": row.flops,
            "read": row.read_bytes,
            "write": row.write_bytes,
        }
        sums.setdefault((row.engine.value, row.opcode), Counter()).update(numbers)
    return [
        f"  {engine:7} {opcode:19} " + " ".join(f"{name} {number}" for name, number in total.items())
        for (engine, opcode), total in sorted(sums.items())
    ]


def shown(name: str, core: str, graph: Graph, rows: Callable[[GraphCost], list[str]]) -> list[str]:
    cost = estimate(graph, instance_type(core).device, matmul_dtype=CORES[core])
    sbuf = f"SBUF {cost.sbuf_peak_bytes} saved {cost.spill_save_bytes} reloaded {cost.spill_reload_bytes}"
    return [f"{name} on {core}: {cost.total_ns} ns, {sbuf}, unknown {list(cost.unknown)}", *rows(cost)]


def compare(name: str, made: list[str]) -> None:
    path, text = GOLDEN / f"{name}.txt", "\n".join(made) + "\n"
    if os.environ.get("WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("core", CORES)
def test_schedules_of_single_operators_stay_as_they_are(core: str) -> None:
    made = [line for name, case in SINGLE.items() for line in shown(name, core, single(case), rows_of)]
    compare(f"operators-{core}", made)


@pytest.mark.parametrize("core", CORES)
def test_schedules_of_models_stay_as_they_are(core: str) -> None:
    made = [line for name, make in MODELS.items() for line in shown(name, core, make(), sums_of)]
    compare(f"models-{core}", made)
