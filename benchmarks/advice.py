"""Signs and sizes of advice: what the engine model says of changes that people are told to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.engine_model.builder import GraphBuilder, transpose
from benchmarks.engine_model.training import decoder_training
from benchmarks.report import BenchmarkRow
from neurontools.compiler.engines.estimate import estimate
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from typing import Any

    from neurontools.compiler.graph import Graph

_SMALL = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "batch": 4, "length": 128}
_MINI = {"layers": 6, "width": 256, "heads": 4, "vocabulary": 50257, "batch": 8, "length": 256}


def main() -> list[BenchmarkRow]:
    """Return modelled time after a change / before it, with the sign that the hardware gives it."""
    rows = []
    for length, least in ((128, 1.01), (512, 1.1)):
        change = _ratio(gpt(_SMALL, length=length), gpt(_SMALL, length=length, fused=False))
        name = f"attention written out instead of fused, {length} positions"
        rows.append(BenchmarkRow.at_least(name, change, "x", least, "GPT-2 small, forward and backward"))
    bfloat = _ratio(gpt(_SMALL), gpt(_SMALL, dtype="bfloat16"))
    rows.append(BenchmarkRow.at_most("bfloat16 instead of float32", bfloat, "x", 0.7))
    batch = _ratio(gpt(_SMALL, batch=1), gpt(_SMALL, batch=8)) / 8
    rows.append(BenchmarkRow.at_most("batch 8 instead of 1, a sample", batch, "x", 0.95))
    width = _ratio(gpt(_MINI, width=260), gpt(_MINI, width=256))
    rows.append(BenchmarkRow.at_most("width 260 to 256", width, "x", 0.97, "third tile of 128 almost empty"))
    words = _ratio(gpt(_MINI), gpt(_MINI, vocabulary=50304))
    note = "393 tiles of 128 either way: nothing to win"
    rows += [
        BenchmarkRow.at_least("vocabulary 50257 to 50304", words, "x", 0.999, note),
        BenchmarkRow.at_most("vocabulary 50257 to 50304", words, "x", 1.005, note),
    ]
    return rows + _movements()


def _movements() -> list[BenchmarkRow]:
    pieces = _ratio(copies(1, 8192 * 512), copies(8192, 512))
    straight, turned = copy_of_square(4096, is_turned=False), copy_of_square(4096, is_turned=True)
    layout = _ratio(product(2048, is_turned=False), product(2048, is_turned=True))
    scan = _ratio(elementwise("mul.Tensor"), elementwise("cumsum.default"))
    search = _ratio(elementwise("mul.Tensor"), elementwise("sort.default"))
    return [
        BenchmarkRow.at_least("8,192 copies of 1 KiB instead of one of 8 MiB", pieces, "x", 1.5),
        BenchmarkRow.at_least("copy of a transposed matrix", _ratio(straight, turned), "x", 1, "4096 x 4096"),
        BenchmarkRow.at_most("product with a transposed operand", layout, "x", 1.25, "2048, float32"),
        BenchmarkRow.at_least("cumsum instead of a product", scan, "x", 1.0, "128 x 8192"),
        BenchmarkRow.at_least("sort instead of a product", search, "x", 3, "GpSimd, 128 x 8192"),
    ]


def gpt(base: dict[str, int], **changes: Any) -> Graph:
    """Return forward and backward of a GPT."""
    return decoder_training(**{**base, **changes})


def copies(count: int, elements: int) -> Graph:
    """Return copies of bfloat16 tensors."""
    b = GraphBuilder("bfloat16")
    return b.finish(*(b.compute("clone.default", b.input(elements), shape=(elements,)) for _ in range(count)))


def copy_of_square(side: int, *, is_turned: bool) -> Graph:
    """Return a copy of a matrix or of its transpose."""
    b = GraphBuilder()
    x = b.input(side, side)
    return b.finish(b.compute("clone.default", transpose(x) if is_turned else x, shape=(side, side)))


def product(side: int, *, is_turned: bool) -> Graph:
    """Return a matrix product with an operand as it is or transposed."""
    b = GraphBuilder()
    x, y = b.input(side, side), b.input(side, side)
    return b.finish(b.compute("mm.default", x, transpose(y) if is_turned else y, shape=(side, side)))


def elementwise(op: str) -> Graph:
    """Return one operator on 128 x 8192 elements."""
    b = GraphBuilder()
    return b.finish(b.like(op, b.input(128, 8192), 1))


def _ratio(before: Graph, after: Graph) -> float:
    device = instance_type("trn1.2xlarge").device
    return estimate(after, device).total_ns / estimate(before, device).total_ns
