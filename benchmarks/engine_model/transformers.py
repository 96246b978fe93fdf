"""Graphs of the inference of language models: encoders (BERT and relatives) and decoders (GPT-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.engine_model.builder import GraphBuilder, reshape, select
from benchmarks.engine_model.layers import (
    activate,
    add,
    attention,
    dropout,
    embedding,
    layer_norm,
    linear,
)

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph, View


def matmul(*, m: int, k: int, n: int, dtype: str = "bfloat16") -> Graph:
    """One matrix product."""
    b = GraphBuilder(dtype)
    return b.finish(b.compute("mm.default", b.input(m, k), b.input(k, n), shape=(m, n)))


def encoder(
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    vocabulary: int,
    positions: int = 512,
    sentences: int = 2,
    pooler: bool = True,
    embedding_width: int = 0,
    classes: int = 0,
    word_scores: bool = False,
    batch: int,
    length: int,
    dtype: str = "float32",
    fused: bool = False,
) -> Graph:
    """The inference of a BERT-style encoder, which returns its last hidden states or scores.

    Args:
        layers: number of layers.
        width: of the hidden states.
        heads: attention heads of a layer.
        inner: width between the two linear layers of a block.
        vocabulary: rows of the word embedding.
        positions: rows of the position embedding.
        sentences: rows of the sentence embedding, 0 for none.
        pooler: whether the first position goes through a linear layer and tanh.
        embedding_width: of the embeddings if they differ (ALBERT, whose layers also share their weights).
        classes: of sequences, whose scores are returned alone; 0 for none.
        word_scores: whether the scores of all words at all positions are returned alone.
        batch: sequences.
        length: of a sequence.
        dtype: data type of weights and activations.
        fused: whether attention is one call.
    """
    b = GraphBuilder(dtype)
    hidden, mask = embed(b, batch, length, embedding_width or width, vocabulary, positions, sentences)
    if embedding_width:
        hidden = linear(b, hidden, width)
    kept = len(b.parameters)
    for layer in range(layers):
        with b.reusing(b.parameters[kept:] if embedding_width and layer else []):
            hidden = post_norm_layer(b, hidden, heads, inner, mask=mask, fused=fused)
    outputs = [hidden]
    if pooler:
        outputs.append(activate(b, linear(b, select(hidden, 1, 0), width), "tanh"))
    if classes:
        outputs = [linear(b, outputs[1], classes)]
    if word_scores:
        changed = layer_norm(b, activate(b, linear(b, hidden, width), "gelu"))
        outputs = [linear(b, changed, vocabulary, weight=b.parameters[0])]
    return b.finish(*outputs)


def embed(
    b: GraphBuilder, batch: int, length: int, width: int, vocabulary: int, positions: int, sentences: int
) -> tuple[View, View]:
    """Return the embedded words of sequences, normalized, and the mask of their padding."""
    words = b.input(batch, length, dtype="int32")
    seen = b.input(batch, length, dtype="int32")
    floats = b.compute("_to_copy.default", reshape(seen, batch, 1, 1, length), shape=(batch, 1, 1, length))
    mask = b.like("mul.Scalar", b.like("rsub.Scalar", floats, 1.0), -3.4e38)
    hidden = embedding(b, vocabulary, width, words)
    if sentences:
        kinds = b.input(batch, length, dtype="int32")
        hidden = add(b, hidden, embedding(b, sentences, width, kinds))
    places = embedding(b, positions, width, b.input(1, length, dtype="int64"))
    return dropout(b, layer_norm(b, add(b, hidden, places))), mask


def post_norm_layer(
    b: GraphBuilder, x: View, heads: int, inner: int, *, mask: View | None, fused: bool
) -> View:
    """One layer of BERT: each half is added to its input and then normalized."""
    mixed = dropout(b, attention(b, x, heads, fused=fused, mask=mask))
    x = layer_norm(b, add(b, mixed, x))
    turned = dropout(b, linear(b, activate(b, linear(b, x, inner), "gelu"), x.shape[-1]))
    return layer_norm(b, add(b, turned, x))


def pre_norm_layer(
    b: GraphBuilder,
    x: View,
    heads: int,
    inner: int,
    *,
    mask: View | None = None,
    fused: bool = False,
    causal: bool = False,
    activation: str = "gelu",
) -> View:
    """One layer of GPT or ViT: the input of each half is normalized."""
    mixed = attention(b, layer_norm(b, x), heads, fused=fused, mask=mask, causal=causal)
    x = add(b, x, dropout(b, mixed))
    turned = linear(b, activate(b, linear(b, layer_norm(b, x), inner), activation), x.shape[-1])
    return add(b, x, dropout(b, turned))


def decoder(
    *,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    positions: int = 1024,
    batch: int,
    length: int,
    dtype: str = "float32",
    fused: bool = False,
    activation: str = "gelu_new",
) -> Graph:
    """The inference of a GPT-2 style decoder, which returns its last hidden states."""
    b = GraphBuilder(dtype)
    hidden = decode(b, layers, width, heads, vocabulary, positions, batch, length, fused, activation)[0]
    return b.finish(hidden)


def decode(
    b: GraphBuilder, layers: int, width: int, heads: int, vocabulary: int, positions: int,
    batch: int, length: int, fused: bool, activation: str,
) -> tuple[View, View]:  # fmt: skip
    """Return the last hidden states of a decoder and its table of words."""
    table = b.parameter(vocabulary, width)
    words = embedding(b, vocabulary, width, b.input(batch, length, dtype="int64"), weight=table)
    places = embedding(b, positions, width, b.input(1, length, dtype="int64"))
    hidden = dropout(b, add(b, words, places))
    mask = None if fused else b.input(1, 1, length, length)
    for _ in range(layers):
        hidden = pre_norm_layer(
            b, hidden, heads, 4 * width, mask=mask, fused=fused, causal=True, activation=activation
        )
    return layer_norm(b, hidden), table
