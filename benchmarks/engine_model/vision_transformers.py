"""Graphs of the inference of vision transformers and CLIP."""

from __future__ import annotations

from benchmarks.engine_model.builder import GraphBuilder, expand, permute, reshape, select
from benchmarks.engine_model.layers import add, dropout, embedding, layer_norm, linear
from benchmarks.engine_model.transformers import pre_norm_layer
from neurontools.compiler.graph import Graph, View


def vision_transformer(
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    patch: int,
    image: int = 224,
    classes: int = 1000,
    batch: int,
    dtype: str = "float32",
    fused: bool = False,
) -> Graph:
    """The inference of a ViT image classifier."""
    b = GraphBuilder(dtype)
    hidden = patches(b, batch, width, patch, image, bias=True)
    for _ in range(layers):
        hidden = pre_norm_layer(b, hidden, heads, inner, fused=fused)
    return b.finish(linear(b, select(layer_norm(b, hidden), 1, 0), classes))


def clip(
    *,
    vision: dict[str, int],
    text: dict[str, int],
    patch: int,
    projection: int,
    texts: int,
    length: int,
    image: int = 224,
    batch: int,
    dtype: str = "float32",
    fused: bool = False,
) -> Graph:
    """The inference of CLIP: a tower for images, one for texts, and the similarities of all pairs.

    Args:
        vision: layers, width, heads and inner width of the image tower.
        text: the same of the text tower, with its vocabulary.
        patch: side of a patch.
        projection: width of the common space.
        texts: number of texts.
        length: of a text, padding included.
        image: side of the images.
        batch: images.
        dtype: data type of weights and activations.
        fused: whether attention is one call.
    """
    b = GraphBuilder(dtype)
    hidden = layer_norm(b, patches(b, batch, vision["width"], patch, image, bias=False))
    for _ in range(vision["layers"]):
        hidden = pre_norm_layer(
            b, hidden, vision["heads"], vision["inner"], fused=fused, activation="quick_gelu"
        )
    pictures = linear(b, layer_norm(b, select(hidden, 1, 0)), projection, bias=False)
    words = embedding(b, text["vocabulary"], text["width"], b.input(texts, length, dtype="int64"))
    places = embedding(b, 77, text["width"], b.input(1, length, dtype="int64"))
    hidden = add(b, words, places)
    causal = b.input(1, 1, length, length)
    for _ in range(text["layers"]):
        hidden = pre_norm_layer(
            b, hidden, text["heads"], text["inner"], mask=causal, fused=fused, activation="quick_gelu"
        )
    ends = select(layer_norm(b, hidden), 1, length - 1)
    sentences = linear(b, ends, projection, bias=False)
    pictures, sentences = (_unit_length(b, x) for x in (pictures, sentences))
    scores = b.compute("mm.default", sentences, permute(pictures, 1, 0), shape=(texts, batch))
    return b.finish(b.like("mul.Scalar", scores, 100.0))


def _unit_length(b: GraphBuilder, x: View) -> View:
    length = b.compute("linalg_vector_norm.default", x, 2, (-1,), True, shape=(x.shape[0], 1))
    return b.like("div.Tensor", x, expand(length, *x.shape))


def patches(b: GraphBuilder, batch: int, width: int, patch: int, image: int, *, bias: bool) -> View:
    """Return the patches of images as a sequence, behind a position of its own, with positions added."""
    side = image // patch
    pixels, kernel = b.input(batch, 3, image, image), b.parameter(width, 3, patch, patch)
    offset = b.parameter(width) if bias else None
    steps = ((patch, patch), (0, 0), (1, 1), False, (0, 0), 1)
    made = b.compute("convolution.default", pixels, kernel, offset, *steps, shape=(batch, width, side, side))
    sequence = permute(reshape(made, batch, width, side * side), 0, 2, 1)
    count = side * side + 1
    first = b.parameter(1, 1, width)
    joined = b.compute(
        "cat.default", (expand(first, batch, 1, width), sequence), 1, shape=(batch, count, width)
    )
    places = b.parameter(1, count, width)
    hidden = b.like("add.Tensor", joined, places)

    def backward() -> None:
        grad = b.gradient(hidden)
        strides = (count * width, 1, side * width, width)
        pictures = View(grad.slot, grad.dtype, made.shape, strides, width)
        results = (None, b.tensor(*kernel.shape), None if offset is None else b.tensor(width))
        extra = (None if offset is None else (width,), *steps, (False, True, bias))
        b.call("convolution_backward.default", pictures, pixels, kernel, *extra, results=results)
        for target, gradient in ((kernel, results[1]), (offset, results[2])):
            if target is not None and gradient is not None:
                b.contribute(target, gradient)
        b.contribute(places, b.compute("sum.dim_IntList", grad, (0,), True, shape=places.shape))

    b.on_backward(backward)
    return dropout(b, hidden)
