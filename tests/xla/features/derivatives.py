"""Derivatives in forward mode, whose tangents torch lays out by the sizes of storages."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, linearize, vmap

from tests.xla.features.feature import feature


def matrices(dev: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = torch.arange(12.0).view(4, 3).to(dev) / 8
    square = rows[:3].contiguous()
    return rows, square, square @ square.t() + torch.eye(3, device=dev)


@feature
def tangents(dev: str) -> Any:
    rows, square, _ = matrices(dev)
    weight = torch.linspace(-1, 1, 16).view(2, 2, 2, 2).to(dev)
    images = torch.arange(32.0).view(1, 2, 4, 4).to(dev)
    last = images.to(memory_format=torch.channels_last)
    return [
        jvp(torch.sin, (rows[0],), (rows[1],)),
        jvp(torch.sin, (square,), (square.t(),)),
        jvp(torch.sin, (square,), (rows[0].expand(3, 3),)),
        jvp(lambda a, b: a * b + a.sum(), (square, square[0]), (square.t(), square[1])),
        jvp(lambda x: F.linear(x, square, square[0]), (rows,), (rows.flip(0),)),
        jvp(F.linear, (rows, square, square[0]), (rows + 1, square.t(), square[:, 1])),
        jvp(lambda x: F.conv2d(x, weight).relu(), (last,), (images,)),
        jvp(lambda x: x.clone().mul_(square).add_(1), (square,), (square.t(),)),
        jvp(lambda x: torch.zeros(3, 3, device=dev).copy_(x), (square,), (square.t(),)),
        vmap(lambda tangent: jvp(torch.square, (rows[0],), (tangent,))[1])(rows),
    ]


@feature
def derivatives_in_forward_mode(dev: str) -> Any:
    rows, square, _ = matrices(dev)
    output, tangent = linearize(lambda x: torch.sin(square @ x), rows[0])
    return [
        jacfwd(lambda x: torch.sin(square @ x))(rows[0]),
        vmap(jacfwd(lambda x: square @ x))(rows),
        hessian(lambda x: (square @ x).pow(2).sum())(rows[0]),
        jacfwd(jacfwd(lambda x: (square @ x).pow(3).sum()))(rows[0]),
        grad(lambda x: jvp(lambda v: (square @ v).sin().sum(), (x,), (rows[1],))[1])(rows[0]),
        jacfwd(lambda x: torch.where(x > 0.1, x * x, x))(rows[0]),
        output,
        tangent(rows[1]),
    ]


@feature
def dual_numbers(dev: str) -> Any:
    rows, square, _ = matrices(dev)
    with forward_ad.dual_level():
        vector = forward_ad.make_dual(rows[0], rows[1])
        matrix = forward_ad.make_dual(square, square.t())
        product = forward_ad.unpack_dual(matrix @ vector)
        return [*product, forward_ad.unpack_dual(matrix).tangent.stride()]


@feature
def derivatives_of_decompositions(dev: str) -> Any:
    _, square, positive = matrices(dev)
    symmetric = square + square.t()
    return [
        jvp(torch.linalg.inv, (positive,), (square,)),
        jvp(torch.linalg.solve, (positive, square), (square.t(), square)),
        jvp(torch.linalg.cholesky, (positive,), (symmetric,)),
        jvp(torch.linalg.det, (positive,), (square.t(),)),
    ]


@feature
def zeros_without_memory(dev: str) -> Any:
    zeros = torch._efficientzerotensor(3, device=dev)
    on_host = torch._efficientzerotensor(3)
    return [
        torch.ones(3, device=dev).copy_(zeros),
        torch.ones(3, device=dev).copy_(on_host),
        on_host.to(dev) + 1,
        zeros.clone() + zeros * 2,
        zeros.expand(2, 3).sum(0),
    ]
