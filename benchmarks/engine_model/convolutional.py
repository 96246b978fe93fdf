"""Graphs of the inference of convolutional networks: ResNet, VGG, U-Net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.engine_model.builder import GraphBuilder, reshape
from benchmarks.engine_model.layers import linear

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph, View

_RESNETS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_FIRST_WITH_BOTTLENECK = 50
_VGGS = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}


def convolve(b: GraphBuilder, x: View, width: int, size: int, *, stride: int = 1, bias: bool = False) -> View:
    """Convolve with square kernels, padded so that a stride of 1 keeps the size."""
    batch, inner, height, _ = x.shape
    kernel = b.parameter(width, inner, size, size)
    offset = b.parameter(width) if bias else None
    pad = size // 2
    side = (height + 2 * pad - size) // stride + 1
    steps = ((stride, stride), (pad, pad), (1, 1), False, (0, 0), 1)
    return b.compute("convolution.default", x, kernel, offset, *steps, shape=(batch, width, side, side))


def batch_norm(b: GraphBuilder, x: View) -> View:
    """Normalize by stored statistics."""
    width = x.shape[1]
    weight, bias, mean, variance = (b.parameter(width) for _ in range(4))
    y = b.tensor(*x.shape)
    results = (y, b.tensor(0), b.tensor(0))
    operands = (x, weight, bias, mean, variance, False, 0.1, 1e-5)
    b.call("native_batch_norm.default", *operands, results=results)
    return y


def relu(b: GraphBuilder, x: View) -> View:
    """Set negative elements to zero, in place."""
    b.call("relu_.default", x, results=(x,))
    return x


def max_pool(b: GraphBuilder, x: View, size: int, stride: int, pad: int) -> View:
    """Return the largest element of each window."""
    batch, width, height, _ = x.shape
    side = (height + 2 * pad - size) // stride + 1
    y = b.tensor(batch, width, side, side)
    places = b.tensor(*y.shape, dtype="int64")
    windows = ((size, size), (stride, stride), (pad, pad))
    b.call("max_pool2d_with_indices.default", x, *windows, results=(y, places))
    return y


def resnet(*, depth: int, image: int = 224, classes: int = 1000, batch: int, dtype: str = "float32") -> Graph:
    """The inference of torchvision's ResNet."""
    b = GraphBuilder(dtype)
    x = relu(b, batch_norm(b, convolve(b, b.input(batch, 3, image, image), 64, 7, stride=2)))
    x = max_pool(b, x, 3, 2, 1)
    for stage, count in enumerate(_RESNETS[depth]):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = residual_block(b, x, 64 * 2**stage, stride, is_bottleneck=depth >= _FIRST_WITH_BOTTLENECK)
    pooled = b.compute("mean.dim", x, (-1, -2), True, shape=(batch, x.shape[1], 1, 1))
    return b.finish(linear(b, reshape(pooled, batch, x.shape[1]), classes))


def residual_block(b: GraphBuilder, x: View, width: int, stride: int, *, is_bottleneck: bool) -> View:
    """Convolve two or three times and add the input."""
    out = 4 * width if is_bottleneck else width
    if is_bottleneck:
        y = relu(b, batch_norm(b, convolve(b, x, width, 1)))
        y = relu(b, batch_norm(b, convolve(b, y, width, 3, stride=stride)))
        y = batch_norm(b, convolve(b, y, out, 1))
    else:
        y = relu(b, batch_norm(b, convolve(b, x, width, 3, stride=stride)))
        y = batch_norm(b, convolve(b, y, out, 3))
    if stride != 1 or x.shape[1] != out:
        x = batch_norm(b, convolve(b, x, out, 1, stride=stride))
    b.call("add_.Tensor", y, x, results=(y,))
    return relu(b, y)


def vgg(*, depth: int, image: int = 224, classes: int = 1000, batch: int, dtype: str = "float32") -> Graph:
    """The inference of torchvision's VGG without batch normalization."""
    b = GraphBuilder(dtype)
    x = b.input(batch, 3, image, image)
    for widths in _VGGS[depth]:
        for width in widths:
            x = relu(b, convolve(b, x, width, 3, bias=True))
        x = max_pool(b, x, 2, 2, 0)
    pooled = b.compute("_adaptive_avg_pool2d.default", x, (7, 7), shape=(batch, 512, 7, 7))
    hidden = reshape(pooled, batch, 512 * 49)
    hidden = relu(b, linear(b, hidden, 4096))
    hidden = relu(b, linear(b, hidden, 4096))
    return b.finish(linear(b, hidden, classes))


def unet(*, image: int = 224, classes: int = 2, batch: int, dtype: str = "float32") -> Graph:
    """The inference of the U-Net of the Carvana challenge (milesial/Pytorch-UNet), with transposed convolutions."""
    b = GraphBuilder(dtype)
    x = _convolve_twice(b, b.input(batch, 3, image, image), 64)
    kept = []
    for width in (128, 256, 512, 1024):
        kept.append(x)
        x = _convolve_twice(b, max_pool(b, x, 2, 2, 0), width)
    for width in (512, 256, 128, 64):
        wider = _double(b, x, width)
        side = wider.shape[2]
        joined = b.compute("cat.default", (kept.pop(), wider), 1, shape=(batch, 2 * width, side, side))
        x = _convolve_twice(b, joined, width)
    return b.finish(convolve(b, x, classes, 1, bias=True))


def _convolve_twice(b: GraphBuilder, x: View, width: int) -> View:
    for _ in range(2):
        x = relu(b, batch_norm(b, convolve(b, x, width, 3)))
    return x


def _double(b: GraphBuilder, x: View, width: int) -> View:
    batch, inner, height, _ = x.shape
    kernel, offset, side = b.parameter(inner, width, 2, 2), b.parameter(width), 2 * height
    steps = ((2, 2), (0, 0), (1, 1), True, (0, 0), 1)
    made = b.compute("convolution.default", x, kernel, offset, *steps, shape=(batch, width, side, side))
    # The padding to the other half's size is none here, which torch records as a copy.
    return b.compute("constant_pad_nd.default", made, (0, 0, 0, 0), shape=made.shape)
