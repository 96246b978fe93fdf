"""Networks of diffusion pipelines on the meta device: U-Net, the VAE's decoder, the transformer of PixArt."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.engine_model.sharded import empty

Tensor = torch.Tensor
_GROUPS = 32
_VAE_LEVELS = (512, 512, 256, 128)


class Layers:
    """Layers with weights of one data type.

    Args:
        dtype: of weights and activations.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.made: list[Tensor] = []
        self.again: list[Tensor] = []  # what the next layers take instead of new weights

    def numbers(self, *shape: int) -> Tensor:
        """Return a weight."""
        if self.again:
            return self.again.pop(0)
        self.made.append(empty(*shape, dtype=self.dtype))
        return self.made[-1]

    def linear(self, x: Tensor, width: int, *, bias: bool = True) -> Tensor:
        """Multiply with a weight and add a bias."""
        return F.linear(x, self.numbers(width, x.shape[-1]), self.numbers(width) if bias else None)

    def convolve(self, x: Tensor, width: int, size: int, stride: int = 1) -> Tensor:
        """Convolve with square kernels, padded so that a stride of 1 keeps the size."""
        kernel = self.numbers(width, x.shape[1], size, size)
        return F.conv2d(x, kernel, self.numbers(width), stride, size // 2)

    def group_norm(self, x: Tensor) -> Tensor:
        """Normalize groups of channels."""
        return F.group_norm(x, _GROUPS, self.numbers(x.shape[1]), self.numbers(x.shape[1]))

    def layer_norm(self, x: Tensor) -> Tensor:
        """Normalize rows."""
        return F.layer_norm(x, x.shape[-1:], self.numbers(x.shape[-1]), self.numbers(x.shape[-1]))

    def attend(
        self,
        x: Tensor,
        context: Tensor,
        heads: int,
        *,
        inner: int = 0,
        bias: bool = False,
        added: Tensor | None = None,
        turned: bool = False,
    ) -> Tensor:
        """Attend with scores written out, as the scripts of the benchmarks do; `turned`: keys times queries."""
        inner = inner or x.shape[-1]
        split = []
        for source in (x, context, context):
            y = self.linear(source, inner, bias=bias)
            y = y.view(*y.shape[:2], heads, -1).transpose(1, 2)
            split.append(y.reshape(-1, y.shape[2], y.shape[3]))
        rows, columns = (split[1], split[0]) if turned else split[:2]
        scores = torch.bmm(rows, columns.transpose(1, 2)) * rows.shape[-1] ** -0.5
        weights = torch.softmax(scores if added is None else scores + added, 1 if turned else -1)
        weights = weights.permute(0, 2, 1) if turned else weights
        mixed = torch.bmm(weights, split[2]).view(x.shape[0], heads, x.shape[1], -1).transpose(1, 2)
        return mixed.reshape(*x.shape[:2], inner)

    def residual(self, x: Tensor, width: int, time: Tensor | None) -> Tensor:
        """Convolve twice, with the time of the step between, and add the input."""
        y = self.convolve(F.silu(self.group_norm(x)), width, 3)
        if time is not None:
            y = y + self.linear(F.silu(time), width)[:, :, None, None]
        y = self.convolve(F.silu(self.group_norm(y)), width, 3)
        return y + (x if x.shape[1] == width else self.convolve(x, width, 1))

    def transformer(self, x: Tensor, text: Tensor, heads: int, count: int) -> Tensor:
        """Attend among the positions of an image and to a text."""
        batch, width, height, _ = x.shape
        y = self.group_norm(x).permute(0, 2, 3, 1).reshape(batch, -1, width)
        y = self.linear(y, width)
        for _ in range(count):
            normal = self.layer_norm(y)
            y = y + self.linear(self.attend(normal, normal, heads), width)
            y = y + self.linear(self.attend(self.layer_norm(y), text, heads, inner=width), width)
            wide, gate = self.linear(self.layer_norm(y), 8 * width).chunk(2, -1)
            y = y + self.linear(wide * F.gelu(gate), width)
        y = self.linear(y, width).view(batch, height, -1, width).permute(0, 3, 1, 2)
        return x + y


def unet(sizes: dict[str, Any], height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Run the U-Net for one image on one core; sizes are of the latents."""
    made, levels = Layers(dtype), sizes["levels"]
    time = made.linear(F.silu(made.linear(made.numbers(1, levels[0]), 4 * levels[0])), 4 * levels[0])
    text = made.numbers(1, 77, sizes["text_width"])
    x = made.convolve(made.numbers(1, sizes.get("channels", 4), height, width), levels[0], 3)
    kept = [x]
    last = len(levels) - 1

    def block(x: Tensor, level: int) -> Tensor:
        x = made.residual(x, levels[level], time)
        count = sizes["transformers"][level]
        return made.transformer(x, text, sizes["heads"][level], count) if count else x

    for level in range(len(levels)):
        for _ in range(2):
            x = block(x, level)
            kept.append(x)
        if level < last:
            x = made.convolve(x, levels[level], 3, 2)
            kept.append(x)
    x = made.residual(x, levels[last], time)
    x = made.transformer(x, text, sizes["heads"][last], max(1, sizes["transformers"][last]))
    x = made.residual(x, levels[last], time)
    for level in range(last, -1, -1):
        for _ in range(3):
            x = block(torch.cat((x, kept.pop()), 1), level)
        if level:
            x = made.convolve(F.interpolate(x, size=kept[-1].shape[2:]), levels[level], 3)
    return made.convolve(F.silu(made.group_norm(x)), 4, 3)


def decode_image(height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Run the VAE's decoder (stable diffusion's and PixArt's), norms in float32; sizes are of the latents."""
    made = Layers(dtype)
    x = made.convolve(made.numbers(1, 4, height, width), _VAE_LEVELS[0], 3)
    x = made.residual(x, _VAE_LEVELS[0], None)
    rows = made.group_norm(x).flatten(2).transpose(1, 2)
    mixed = made.linear(made.attend(rows, rows, 1, bias=True), _VAE_LEVELS[0])
    x = made.residual(x + mixed.transpose(1, 2).view(x.shape), _VAE_LEVELS[0], None)
    for level, channels in enumerate(_VAE_LEVELS):
        for _ in range(3):
            x = made.residual(x, channels, None)
        if level < len(_VAE_LEVELS) - 1:
            x = made.convolve(F.interpolate(x, scale_factor=2.0), channels, 3)
    return made.convolve(F.silu(made.group_norm(x)), 3, 3)


def encode_text(sizes: dict[str, int], length: int, dtype: torch.dtype) -> Tensor:
    """Run CLIP's text encoder."""
    made, width = Layers(dtype), sizes["width"]
    tokens = empty(1, length, dtype=torch.int64)
    x = F.embedding(tokens, made.numbers(sizes["vocabulary"], width)) + made.numbers(1, length, width)
    mask = made.numbers(1, length, length)
    for _ in range(sizes["layers"]):
        normal = made.layer_norm(x)
        x = x + made.linear(made.attend(normal, normal, sizes["heads"], bias=True, added=mask), width)
        x = x + made.linear(F.gelu(made.linear(made.layer_norm(x), sizes["inner"])), width)
    return made.layer_norm(x)


def pixart(sizes: dict[str, Any], height: int, width: int, dtype: torch.dtype, layers: int) -> Tensor:
    """Run PixArt's transformer for one image on one core; sizes are of the latents, patches of two by two."""
    made, inner = Layers(dtype), sizes["width"]
    kernel = made.numbers(inner, 4, 2, 2)
    x = F.conv2d(made.numbers(1, 4, height, width), kernel, made.numbers(inner), 2).flatten(2).transpose(1, 2)
    x = x + made.numbers(1, x.shape[1], inner)
    time = made.linear(F.silu(made.linear(made.numbers(1, 256), inner)), inner)
    scales = made.linear(F.silu(time), 6 * inner).view(1, 6, inner)
    text = made.linear(
        F.gelu(made.linear(made.numbers(1, sizes["text_length"], 4096), inner), approximate="tanh"), inner
    )
    mask = made.numbers(1, 1, sizes["text_length"])
    for _ in range(layers):
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = (scales + made.numbers(1, 6, inner)).chunk(6, 1)
        normal = _plain_norm(x) * (1 + scale) + shift
        mixed = made.attend(normal, normal, sizes["heads"], bias=True, turned=True)
        x = x + gate * made.linear(mixed, inner)
        x = x + made.linear(made.attend(x, text, sizes["heads"], bias=True, added=mask), inner)
        normal = _plain_norm(x) * (1 + scale_mlp) + shift_mlp
        x = x + gate_mlp * made.linear(F.gelu(made.linear(normal, sizes["inner"]), approximate="tanh"), inner)
    return made.linear(_plain_norm(x), 32)


def _plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])
