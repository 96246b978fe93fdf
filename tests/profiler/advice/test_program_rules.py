"""Rules about one graph: a graph with the fault, one without, and the gain against the graph that is really changed."""

from __future__ import annotations

import functools
import hashlib

import pytest

from benchmarks.engine_model.builder import GraphBuilder, permute, select
from benchmarks.engine_model.layers import activate, linear
from benchmarks.engine_model.transformers import encoder
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node
from neurontools.compiler.neff import NativePart, parse
from neurontools.compiler.resizing import batch_sizes
from neurontools.profiler.advice.rules_graph import (
    attention,
    batch,
    data_types,
    kernels,
    layouts,
    overlap,
    small_copies,
    spills,
    widths,
)
from neurontools.profiler.advice.subject import ProfiledProgram
from neurontools.profiler.analysis.programs import path_of_neff
from tests.compiler.graphs import graph_of, tensor
from tests.profiler.advice.programs import TRN1, advice_of, gpt, located, perceptron, program, reason_of

LINES = {"softmax": "/home/ada/model.py:41"} | dict.fromkeys(
    ("bmm", "clone", "div.", "add."), "/home/ada/model.py:40"
)
bert = functools.partial(
    encoder, layers=2, width=768, heads=12, inner=3072, vocabulary=512, length=128, dtype="bfloat16"
)


def changed_ns(graph: Graph, *flags: str) -> int:
    return program(graph, *flags).total_ns


def test_a_width_beside_a_multiple_of_128_is_rounded_and_gains_what_the_changed_model_gains() -> None:
    subject = program(located(gpt(width=260), LINES))
    found = advice_of(widths, subject)
    assert "write 256 instead of 260, 1024 instead of 1040 (4 x 260)" in found.change
    assert found.gain.ns == pytest.approx(subject.total_ns - changed_ns(gpt(width=256)), rel=0.01)
    assert found.gain.share > 0.05
    assert found.evidence[0].source == "/home/ada/model.py:7"
    assert "the last of 3 tiles of 128 holds 4" in found.evidence[0].text


def test_widths_on_the_array_are_left_alone() -> None:
    assert reason_of(widths, program(gpt())) == "every width of a weight is a multiple of 128, or less"


def test_the_vocabulary_of_gpt_2_is_left_alone_because_it_fills_as_many_tiles() -> None:
    reason = reason_of(widths, program(gpt(vocabulary=50257, layers=1)))
    assert reason.startswith("50257 -> 50304: 393 tiles of 128 either way, ")


def test_a_width_far_from_a_multiple_is_another_model() -> None:
    reason = reason_of(widths, program(perceptron(256, 192)))
    assert reason == "192: 128 would be another model, and 256 too"


def test_written_out_attention_is_replaced_by_one_call_and_gains_what_that_gains() -> None:
    subject = program(located(gpt(fused=False, layers=3, length=512), LINES))
    found = advice_of(attention, subject)
    real = subject.total_ns - changed_ns(gpt(layers=3, length=512))
    assert found.gain.ns == pytest.approx(real, rel=0.1)
    assert found.change.startswith(
        "replace model.py, lines 40 to 41, by torch.nn.functional.scaled_dot_product"
    )
    assert (found.evidence[0].source, found.evidence[0].count) == ("/home/ada/model.py:41", 3)


def test_fused_attention_is_left_alone() -> None:
    assert reason_of(attention, program(gpt())) == "attention is fused already"
    assert reason_of(attention, program(perceptron(256, 256))) == "no attention in this graph"


def test_float32_products_of_training_are_cast_by_a_flag_and_gain_what_the_flag_gains() -> None:
    graph = gpt(dtype="float32")
    subject = program(graph)
    found = advice_of(data_types, subject)
    cast = changed_ns(graph, "--auto-cast=matmult", "--auto-cast-type=bf16")
    assert found.gain.ns == subject.total_ns - cast > 0.1 * subject.total_ns
    assert 'NEURON_CC_FLAGS="--auto-cast=matmult --auto-cast-type=bf16"' in found.change
    assert "or write model.to(torch.bfloat16)" in found.change


def test_float32_inference_moves_to_bfloat16_and_gains_what_the_changed_model_gains() -> None:
    subject = program(perceptron(1024, 1024, dtype="float32"))
    found = advice_of(data_types, subject)
    assert found.change.startswith("write model.to(torch.bfloat16)")
    assert found.gain.ns == pytest.approx(subject.total_ns - changed_ns(perceptron(1024, 1024)), rel=0.02)


def test_products_in_bfloat16_are_left_alone() -> None:
    assert reason_of(data_types, program(gpt())) == "no matrix product in float32"
    cast = program(gpt(dtype="float32"), "--auto-cast=matmult")
    assert "--auto-cast decides" in reason_of(data_types, cast)


def test_a_small_batch_grows_and_gains_what_the_larger_batch_gains_for_the_same_samples() -> None:
    subject = program(gpt(batch=2, length=64))
    found = advice_of(batch, subject)
    assert found.title == "Use a batch of 16 instead of 2"
    real = subject.total_ns - changed_ns(gpt(batch=16, length=64)) / 8
    assert found.gain.ns == pytest.approx(real, rel=0.01)


def test_a_large_batch_is_left_alone() -> None:
    reason = reason_of(batch, program(gpt(batch=32)))
    assert reason.startswith("32 -> 64: ")
    assert reason.endswith(" for the same samples")
    reason = reason_of(batch, program(gpt(batch=1)))
    assert reason.endswith(" 1: capture the program with a batch of 2, and ask again")


def test_a_batch_that_no_memory_has_room_for_is_left_alone() -> None:
    reason = reason_of(batch, program(perceptron(1 << 22, 256, layers=4)))
    assert "exceeds" in reason


def test_values_that_leave_sbuf_are_kept_there_by_smaller_batches() -> None:
    subject = program(perceptron(8192, 512, dtype="float32"))
    found = advice_of(spills, subject)
    small = changed_ns(perceptron(4096, 512, dtype="float32"))
    assert found.title == "Run 2 batches of 4096 instead of one of 8192, so that values stay in SBUF"
    assert found.gain.ns == pytest.approx(subject.total_ns - 2 * small, rel=0.01)
    assert found.evidence[0].text == "80.0 MiB spilled to HBM, 80.0 MiB reloaded"


def test_values_that_fit_sbuf_are_left_alone() -> None:
    assert reason_of(spills, program(perceptron(1024, 512))) == "no value left SBUF for lack of room"


def test_engines_in_a_chain_overlap_with_two_halves_of_the_batch() -> None:
    subject = program(bert(batch=16))
    found = advice_of(overlap, subject)
    first, second, *_ = (each.name for each in path_of_neff(subject.neff).engines)
    assert found.title == (
        f"Work on two halves of the batch in turn, so that {first} and {second} engines overlap"
    )
    assert found.gain.share > 0.03
    assert sum(line.share or 0 for line in found.evidence) <= 1.001


def in_halves(rows: int, width: int, layers: int) -> Graph:
    """Write a perceptron that runs each line on one half of its rows and then on the other."""
    b = GraphBuilder("bfloat16")
    halves = [b.input(rows // 2, width), b.input(rows // 2, width)]
    for _ in range(layers):
        first = linear(b, halves[0], width)
        with b.reusing(b.parameters[-2:]):
            halves = [activate(b, half, "gelu") for half in (first, linear(b, halves[1], width))]
    return b.finish(*halves)


def test_two_halves_in_turn_gain_what_the_program_written_that_way_gains() -> None:
    subject = program(perceptron(2048, 1024, layers=4))
    found = advice_of(overlap, subject)
    real = subject.total_ns - changed_ns(in_halves(2048, 1024, layers=4))
    assert found.gain.ns == pytest.approx(real, rel=0.05)


def test_engines_overlap_no_better_with_halves_of_a_small_batch() -> None:
    assert "two halves of the batch in turn: " in reason_of(overlap, program(bert(batch=2)))
    assert "the graph sums over the batch" in reason_of(overlap, program(gpt()))


def copies(count: int, elements: int) -> Graph:
    b = GraphBuilder("bfloat16")
    return b.finish(*(b.compute("clone.default", b.input(elements), shape=(elements,)) for _ in range(count)))


def test_many_small_copies_become_one_and_gain_what_one_copy_gains() -> None:
    subject = program(located(copies(1024, 512), {"clone": "/home/ada/model.py:12"}))
    found = advice_of(small_copies, subject)
    assert found.gain.ns == pytest.approx(subject.total_ns - changed_ns(copies(1, 1024 * 512)), rel=0.02)
    assert found.title == "Copy once instead of 1024 times"
    assert found.change.startswith("at model.py:12, keep the tensors as parts of one of 524,288 elements")


def test_a_few_copies_or_large_ones_are_left_alone() -> None:
    for graph in (copies(4, 512), copies(16, 1 << 20)):
        assert reason_of(small_copies, program(graph)) == "no line makes 8 copies of 64.0 KiB or less"


def test_small_copies_of_scattered_parts_cannot_be_one() -> None:
    b = GraphBuilder("bfloat16")
    x = b.input(64, 64)
    columns = (select(x, 1, column) for column in range(64))
    graph = b.finish(*(b.compute("clone.default", column, shape=(64,)) for column in columns))
    assert "parts of larger tensors" in reason_of(small_copies, program(graph))


def images(*, is_turned: bool) -> Graph:
    """Add one to images, which lie with channels last if they are turned."""
    b = GraphBuilder("bfloat16")
    if is_turned:
        x = permute(b.input(16, 224, 224, 3), 0, 3, 1, 2)
        x = b.compute("clone.default", x, shape=(16, 3, 224, 224))
    else:
        x = b.input(16, 3, 224, 224)
    return b.finish(b.like("relu.default", x))


def test_data_in_another_order_of_dimensions_is_stored_in_the_order_of_its_reader() -> None:
    subject = program(located(images(is_turned=True), {"clone": "/home/ada/model.py:5"}))
    found = advice_of(layouts, subject)
    assert found.gain.ns == pytest.approx(subject.total_ns - changed_ns(images(is_turned=False)), rel=0.01)
    assert found.gain.is_bound
    assert found.change.startswith("at model.py:5, a permuted tensor is copied to 16x3x224x224")
    assert "permute it before .to(device)" in found.change


def test_data_in_the_order_of_its_reader_is_left_alone() -> None:
    assert "no copy changes the order" in reason_of(layouts, program(images(is_turned=False)))
    assert "no copy changes the order" in reason_of(layouts, program(bert(batch=2, fused=False)))


def relu_neff(call_ns: int) -> bytes:
    """A program that calls a custom operator, measured at a time."""
    library = b"\x7fELF"
    part = NativePart("librelu.so", hashlib.sha256(library).hexdigest(), library, call_ns=((0, call_ns),))
    x, y = tensor(0, 64, 64), tensor(1, 64, 64)
    node = Node("my_ops.relu_forward.default", (x,), (), (y,), "/home/ada/train.py:31")
    graph = graph_of(node, inputs=(0,), libraries=(part.digest,))
    return compile_graph(graph, TRN1, ("--target=trn1",), "relu", (part,))


def relu_kernel(call_ns: int) -> ProfiledProgram:
    return ProfiledProgram(parse(relu_neff(call_ns)), "relu")


def test_a_kernel_that_accesses_elements_copies_pieces_instead() -> None:
    """The documented sample touches each element of its input and output three times in all, 200 ns each."""
    subject = relu_kernel(1_000 + 64 * 64 * 3 * 200)
    found = advice_of(kernels, subject)
    through_tcm = relu_kernel(round(1_000 + 8 * 500 + 2 * 64 * 64 * 4 * (0.6 - 500 / 4096)))
    assert found.gain.ns == pytest.approx(subject.total_ns - through_tcm.total_ns, rel=0.01)
    assert "my_ops::relu_forward" in found.title
    assert "called at train.py:31" in found.change


def test_a_kernel_that_copies_pieces_is_left_alone() -> None:
    assert reason_of(kernels, relu_kernel(30_000)).startswith("my_ops::relu_forward takes 30.00 us")
    assert reason_of(kernels, program(gpt())) == "no custom operator in this graph"


def test_a_larger_batch_gives_a_kernel_more_to_do() -> None:
    """Its time grows with its elements, so only the launches are shared by more samples."""
    subject = relu_kernel(1_000 + 64 * 64 * 3 * 200)
    assert reason_of(batch, subject).startswith("64 -> 128: ")
    trial = subject.trial_of_batch(64, 512)
    assert trial.gain is not None
    assert trial.gain.ns < 50_000


def training_step(rows: int) -> Graph:
    """Forward and backward of a linear layer: the gradient of its weight has the data as its right operand."""
    b = GraphBuilder("bfloat16")
    x, weight = b.input(rows, 256), b.input(256, 256)
    y = b.compute("mm.default", x, weight, shape=(rows, 256))
    gradient = b.compute("mm.default", permute(y, 1, 0), x, shape=(256, 256))
    return b.finish(gradient)


def test_data_stays_data_where_the_gradient_of_a_weight_reads_it_on_the_right() -> None:
    subject = program(training_step(64))
    assert batch_sizes(subject.graph) == (64,)
    found = advice_of(batch, subject)
    assert found.title == "Use a batch of 512 instead of 64"
    assert found.gain.ns == pytest.approx(subject.total_ns - changed_ns(training_step(512)) / 8, rel=0.01)
