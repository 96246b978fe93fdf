"""Graphs of training steps: forward, backward, gradient accumulation and the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.engine_model.builder import GraphBuilder, select
from benchmarks.engine_model.layers import activate, add, cross_entropy, layer_norm, linear
from benchmarks.engine_model.optimizers import OPTIMIZERS
from benchmarks.engine_model.transformers import decode, embed, post_norm_layer, pre_norm_layer
from benchmarks.engine_model.vision_transformers import patches

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph, View


def decoder_training(
    *,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    batch: int,
    length: int,
    dtype: str = "float32",
    fused: bool = True,
    optimizer: str = "",
) -> Graph:
    """One training step of a GPT: forward, backward, and the optimizer if one is named."""
    b = GraphBuilder(dtype, training=True)
    hidden, table = decode(b, layers, width, heads, vocabulary, length, batch, length, fused, "gelu")
    scores = linear(b, hidden, vocabulary, bias=False, weight=table)
    loss = cross_entropy(b, scores, b.input(batch * length, dtype="int64"))
    b.backward(loss)
    if optimizer:
        OPTIMIZERS[optimizer](b)
    return b.finish(loss)


def encoder_pretraining(
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    vocabulary: int,
    batch: int,
    length: int,
    dtype: str = "bfloat16",
) -> Graph:
    """Forward and backward of BERT's pretraining (both heads), with gradients added to those of the step so far."""
    b = GraphBuilder(dtype, training=True, has_dropout=True)
    hidden, mask = embed(b, batch, length, width, vocabulary, 512, 2)
    table = b.parameters[0]
    for _ in range(layers):
        hidden = post_norm_layer(b, hidden, heads, inner, mask=mask, fused=False)
    pooled = activate(b, linear(b, select_first(b, hidden), width), "tanh")
    changed = layer_norm(b, activate(b, linear(b, hidden, width), "gelu"))
    scores = linear(b, changed, vocabulary, weight=table)
    words = cross_entropy(b, scores, b.input(batch * length, dtype="int64"))
    order = cross_entropy(b, linear(b, pooled, 2), b.input(batch, dtype="int64"))
    b.backward(add(b, words, order))
    accumulate(b)
    return b.finish()


def vision_training(
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    patch: int,
    image: int = 224,
    classes: int = 10,
    batch: int,
    dtype: str = "bfloat16",
    optimizer: str = "adamw",
) -> Graph:
    """One training step of a ViT image classifier."""
    b = GraphBuilder(dtype, training=True)
    hidden = patches(b, batch, width, patch, image, bias=True)
    for _ in range(layers):
        hidden = pre_norm_layer(b, hidden, heads, inner, fused=False)
    scores = linear(b, select_first(b, layer_norm(b, hidden)), classes)
    loss = cross_entropy(b, scores, b.input(batch, dtype="int64"))
    b.backward(loss)
    OPTIMIZERS[optimizer](b)
    return b.finish(loss)


def select_first(b: GraphBuilder, x: View) -> View:
    """Return the first position of each sequence; its gradient is padded with zeros."""
    batch, length, width = x.shape
    first = select(x, 1, 0)
    # The linear layer sees a whole buffer, so that gradients can be kept by buffer.
    taken = b.compute("clone.default", first, shape=first.shape)

    def backward() -> None:
        sizes = (batch, length, width)
        padded = b.compute("select_backward.default", b.gradient(taken), sizes, 1, 0, shape=sizes)
        b.contribute(x, padded)

    b.on_backward(backward)
    return taken


def accumulate(b: GraphBuilder) -> None:
    """Add each gradient to the sum that earlier micro-batches left."""
    for weight in b.parameters:
        if weight.slot in b.gradients:
            total = b.input(*weight.shape)
            b.call("add_.Tensor", total, b.gradient(weight), results=(total,))


def optimizer_step(*, name: str, layers: int, width: int, inner: int, vocabulary: int, dtype: str) -> Graph:
    """The optimizer's step on the weights of an encoder."""
    b = GraphBuilder(dtype, training=True)
    shapes = [(vocabulary, width), (512, width), (2, width), (width,), (width,)]
    block = [(width, width)] * 4 + [(inner, width), (width, inner), (inner,)] + [(width,)] * 9
    for shape in shapes + layers * block + [(width, width), (width,)] * 2:
        weight = b.parameter(*shape)
        b.gradients[weight.slot] = b.input(*shape)
    OPTIMIZERS[name](b)
    return b.finish()
