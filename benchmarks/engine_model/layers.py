"""Layers of networks as calls of a graph, with their backward passes, in the forms that the lazy device records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.engine_model.builder import (
    dtype_symbol,
    expand,
    permute,
    reshape,
    select,
    transpose,
)

if TYPE_CHECKING:
    from benchmarks.engine_model.builder import GraphBuilder
    from neurontools.compiler.graph import View

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def linear(b: GraphBuilder, x: View, width: int, *, bias: bool = True, weight: View | None = None) -> View:
    """Multiply with a weight of `width` rows and add a bias."""
    inner = x.shape[-1]
    kernel = weight or b.parameter(width, inner)
    offset = b.parameter(width) if bias else None
    rows = reshape(x, math.prod(x.shape[:-1]), inner)
    out = (rows.shape[0], width)
    if offset is not None:
        y = b.compute("addmm.default", offset, rows, transpose(kernel), shape=out)
    else:
        y = b.compute("mm.default", rows, transpose(kernel), shape=out)

    def backward() -> None:
        grad = b.gradient(y)
        if b.wants_gradient(x):
            b.contribute(x, b.compute("mm.default", grad, kernel, shape=rows.shape))
        b.contribute(kernel, b.compute("mm.default", transpose(grad), rows, shape=kernel.shape))
        if offset is not None:
            total = b.compute("sum.dim_IntList", grad, (0,), True, shape=(1, width))
            b.contribute(offset, reshape(total, width))

    b.on_backward(backward)
    return reshape(y, *x.shape[:-1], width)


def layer_norm(b: GraphBuilder, x: View) -> View:
    """Normalize the last dimension."""
    width = x.shape[-1]
    weight, bias = b.parameter(width), b.parameter(width)
    y, mean, scale = b.tensor(*x.shape), b.tensor(*x.shape[:-1], 1), b.tensor(*x.shape[:-1], 1)
    b.call("native_layer_norm.default", x, (width,), weight, bias, 1e-12, results=(y, mean, scale))

    def backward() -> None:
        made = (b.tensor(*x.shape), b.tensor(width), b.tensor(width))
        operands = (b.gradient(y), x, (width,), mean, scale, weight, bias, (True, True, True))
        b.call("native_layer_norm_backward.default", *operands, results=made)
        for target, gradient in zip((x, weight, bias), made, strict=True):
            b.contribute(target, gradient)

    b.on_backward(backward)
    return y


def add(b: GraphBuilder, x: View, y: View) -> View:
    """Add two tensors of one shape, or a smaller one to each row of the first."""
    total = b.like("add.Tensor", x, y)

    def backward() -> None:
        grad = b.gradient(total)
        b.contribute(x, grad)
        if math.prod(y.shape) == math.prod(x.shape):
            b.contribute(y, grad)
        elif b.wants_gradient(y):
            b.contribute(y, b.compute("sum.dim_IntList", grad, (0,), True, shape=(1, *grad.shape[1:])))

    b.on_backward(backward)
    return total


def dropout(b: GraphBuilder, x: View) -> View:
    """Drop a tenth of the elements, if the graph has dropout."""
    if not b.has_dropout:
        return x
    noise = b.tensor(*x.shape)
    b.call("bernoulli_.float", noise, 0.9, results=(noise,))
    b.call("div_.Scalar", noise, 0.9, results=(noise,))
    y = b.like("mul.Tensor", x, noise)
    mask = b.compute("ne.Scalar", noise, 0, shape=x.shape, dtype="bool")

    def backward() -> None:
        scale = b.tensor(*x.shape)
        b.call("_to_copy.default", mask, results=(scale,), dtype=dtype_symbol(b.dtype))
        b.call("div_.Scalar", scale, 0.9, results=(scale,))
        b.contribute(x, b.like("mul.Tensor", b.gradient(y), scale))

    b.on_backward(backward)
    return y


def activate(b: GraphBuilder, x: View, name: str) -> View:
    """Apply gelu, tanh or relu, or for inference gelu_new (GPT-2's, written out) or quick_gelu (CLIP's)."""
    if name == "gelu_new":
        return _gelu_new(b, x)
    if name == "quick_gelu":
        gate = b.like("sigmoid.default", b.like("mul.Scalar", x, 1.702))
        return b.like("mul.Tensor", x, gate)
    y = b.like(f"{name}.default", x)

    def backward() -> None:
        kept = x if name == "gelu" else y
        form = {"gelu": "gelu_backward", "tanh": "tanh_backward", "relu": "threshold_backward"}[name]
        b.contribute(x, b.like(f"{form}.default", b.gradient(y), kept))

    b.on_backward(backward)
    return y


def _gelu_new(b: GraphBuilder, x: View) -> View:
    half = b.like("mul.Scalar", x, 0.5)
    cubed = b.like("mul.Scalar", b.like("pow.Tensor_Scalar", x, 3.0), 0.044715)
    inner = b.like("mul.Scalar", b.like("add.Tensor", x, cubed), math.sqrt(2 / math.pi))
    return b.like("mul.Tensor", half, b.like("add.Scalar", b.like("tanh.default", inner), 1.0))


def embedding(b: GraphBuilder, rows: int, width: int, indices: View, *, weight: View | None = None) -> View:
    """Gather rows of a table."""
    table = weight or b.parameter(rows, width)
    y = b.compute("embedding.default", table, indices, shape=(*indices.shape, width))

    def backward() -> None:
        grad = b.gradient(y)
        made = b.compute(
            "embedding_dense_backward.default", grad, indices, rows, -1, False, shape=(rows, width)
        )
        b.contribute(table, made)

    b.on_backward(backward)
    return y


def attention(
    b: GraphBuilder, x: View, heads: int, *, fused: bool, mask: View | None = None, causal: bool = False
) -> View:
    """Project to queries, keys and values, attend, and project back."""
    batch, length, width = x.shape
    query, key, value = (linear(b, x, width) for _ in range(3))
    if fused:
        mixed = attend_fused(b, query, key, value, heads, mask, causal=causal and mask is None)
    else:
        mixed = attend_written(b, query, key, value, heads, mask)
    return linear(b, reshape(mixed, batch, length, width), width)


def split_heads(x: View, heads: int) -> View:
    """Return batch x heads x length x depth of a tensor of batch x length x width, without moving it."""
    batch, length, width = x.shape
    return permute(reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)


def attend_fused(
    b: GraphBuilder, query: View, key: View, value: View, heads: int, mask: View | None, *, causal: bool
) -> View:
    """Attend with the fused kernel; the result is batch x length x width."""
    batch, length, _ = query.shape
    operands = tuple(split_heads(x, heads) for x in (query, key, value))
    mixed = b.tensor(*query.shape)
    lse = b.tensor(batch, length, heads, dtype="float32")
    results = (split_heads(mixed, heads), permute(lse, 0, 2, 1))
    extra = {} if mask is None else {"attn_mask": expand(mask, batch, 1, length, key.shape[1])}
    b.call(f"{_FLASH}.default", *operands, 0.0, causal, results=results, **extra)

    def backward() -> None:
        grad = split_heads(b.gradient(mixed), heads)
        made = tuple(b.tensor(*x.shape) for x in (query, key, value))
        shown = tuple(split_heads(x, heads) for x in made)
        b.call(f"{_FLASH}_backward.default", grad, *operands, *results, 0.0, causal, results=shown, **extra)
        for target, gradient in zip((query, key, value), made, strict=True):
            b.contribute(target, gradient)

    b.on_backward(backward)
    return mixed


def attend_written(
    b: GraphBuilder, query: View, key: View, value: View, heads: int, mask: View | None
) -> View:
    """Attend with two products, scaling, mask, softmax and dropout; the result is batch x length x width."""
    batch, length, width = query.shape
    depth, keys, count = width // heads, key.shape[1], batch * heads
    left, right, values = (_stack_heads(b, x, heads) for x in (query, key, value))
    raw = b.compute("bmm.default", left, transpose(right), shape=(count, length, keys))
    scores = b.like("div.Scalar", raw, math.sqrt(depth))
    if mask is not None:
        scores = b.like("add.Tensor", scores, expand(mask, batch, heads, length, keys))
    weights = b.like("_softmax.default", scores, -1, False)
    dropped = dropout(b, weights)
    mixed = b.compute("bmm.default", dropped, values, shape=(count, length, depth))
    out = b.compute(
        "clone.default",
        permute(reshape(mixed, batch, heads, length, depth), 0, 2, 1, 3),
        shape=(batch, length, heads, depth),
    )

    def backward_scores() -> None:
        grad = b.gradient(weights)
        inner = b.like("_softmax_backward_data.default", grad, weights, -1, dtype_symbol(b.dtype))
        scaled = b.like("div.Scalar", inner, math.sqrt(depth))
        grads = (
            b.compute("bmm.default", scaled, right, shape=left.shape),
            b.compute("bmm.default", transpose(scaled), left, shape=right.shape),
        )
        for target, gradient in zip((query, key), grads, strict=True):
            b.contribute(target, _unstack_heads(b, gradient, batch, heads))

    def backward_mix() -> None:
        grad = _stack_heads(b, b.gradient(reshape(out, batch, length, width)), heads)
        b.contribute(dropped, b.compute("bmm.default", grad, transpose(values), shape=dropped.shape))
        grad_values = b.compute("bmm.default", transpose(dropped), grad, shape=values.shape)
        b.contribute(value, _unstack_heads(b, grad_values, batch, heads))

    # Dropout has put its own step on the tape in between: the step of the scores comes before it there.
    if b.training:
        b.insert_backward(backward_scores, int(b.has_dropout))
    b.on_backward(backward_mix)
    return reshape(out, batch, length, width)


def _stack_heads(b: GraphBuilder, x: View, heads: int) -> View:
    split = split_heads(x, heads)
    batch, _, length, depth = split.shape
    if batch == 1:
        return select(split, 0, 0)
    return reshape(b.compute("clone.default", split, shape=split.shape), batch * heads, length, depth)


def _unstack_heads(b: GraphBuilder, x: View, batch: int, heads: int) -> View:
    _, length, depth = x.shape
    moved = permute(reshape(x, batch, heads, length, depth), 0, 2, 1, 3)
    made = b.compute("clone.default", moved, shape=(batch, length, heads, depth))
    return reshape(made, batch, length, heads * depth)


def cross_entropy(b: GraphBuilder, scores: View, labels: View) -> View:
    """Return the mean loss of rows of scores."""
    flat = reshape(scores, math.prod(scores.shape[:-1]), scores.shape[-1])
    likelihoods = b.like("_log_softmax.default", flat, 1, False)
    loss, weight = b.tensor(), b.tensor()
    b.call("nll_loss_forward.default", likelihoods, labels, None, 1, -100, results=(loss, weight))

    def backward() -> None:
        operands = (b.gradient(loss), likelihoods, labels, None, 1, -100, weight)
        grad = b.compute("nll_loss_backward.default", *operands, shape=flat.shape)
        inner = b.like("_log_softmax_backward_data.default", grad, likelihoods, 1, dtype_symbol(b.dtype))
        b.contribute(scores, inner)

    b.on_backward(backward)
    return loss
