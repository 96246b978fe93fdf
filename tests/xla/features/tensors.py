"""What tensors can do: numbers in, numbers out."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.xla.features.feature import data, feature, whole


@feature
def arithmetic(dev: str) -> Any:
    x, y = data(4, 5, dev=dev), data(4, 5, dev=dev, seed=2)
    return [x + y, x - 2, 3 - x, x * 0.5, x / y, x / 3, 2 / x, -x, x**2, x**0.5, 2**x, x // 2, x % 2, x @ y.T]


@feature
def number_promotion(dev: str) -> Any:
    i = whole(3, dev=dev)
    return [
        i + 1,
        i + 1.5,
        i * True,
        i / 2,
        i // 2,
        i.to(torch.int32) + 1,
        i.half() * 2.5,
        i > 2,
        i == 2.0,
        (i > 2) + 1,
    ]


@feature
def zero_dim_cpu_operand(dev: str) -> Any:
    x = data(3, dev=dev)
    return [
        x * torch.tensor(2.0),
        x + torch.tensor(1, dtype=torch.int64),
        torch.tensor(3.0) - x,
        whole(3, dev=dev) * torch.tensor(0.5),
    ]


@feature
def comparisons(dev: str) -> Any:
    x, y = data(4, dev=dev), data(4, dev=dev, seed=2)
    return [
        x > y,
        x >= 0,
        x == x,
        (x != y).all(),
        (x < 0).any(),
        torch.equal(x, x),
        bool((x == x).all()),
        torch.allclose(x, y),
    ]


@feature
def iterated_sum(dev: str) -> Any:
    return sum(whole(8, dev=dev, high=2) == whole(8, dev=dev, high=2)) / 8


@feature
def reductions(dev: str) -> Any:
    x = data(4, 5, dev=dev)
    return [
        x.sum(),
        x.mean(0),
        x.max(1),
        x.min(),
        x.argmax(1),
        x.std(),
        x.var(0),
        x.norm(),
        x.prod(1),
        x.cumsum(1),
        x.logsumexp(1),
        x.median(),
        x.topk(2),
        x.sort(1),
        x.argsort(0),
    ]


@feature
def unary(dev: str) -> Any:
    x = data(4, 5, dev=dev)
    return [
        x.exp(),
        x.abs(),
        x.sigmoid(),
        x.tanh(),
        x.relu(),
        x.clamp(-1, 1),
        x.clamp(min=0.5),
        x.sign(),
        x.sin(),
        x.floor(),
        x.round(),
        x.abs().log(),
        x.abs().sqrt(),
        x.abs().rsqrt(),
        x.reciprocal(),
        x.erf(),
        x.isnan(),
        x.nan_to_num(),
    ]


@feature
def views(dev: str) -> Any:
    x = data(4, 6, dev=dev)
    return [
        x.view(3, 8),
        x.t(),
        x[1],
        x[:, 2:5],
        x[::2],
        x.reshape(-1),
        x.permute(1, 0),
        x.unsqueeze(1),
        x[None, :, 0],
        x.expand(2, 4, 6),
        x.flatten(),
        x.transpose(0, 1).contiguous(),
        x.narrow(1, 1, 2),
        x.chunk(2, 1),
        x.split(2),
        x.unbind(0),
        x.diagonal(),
        x.unfold(1, 3, 2),
        x.squeeze(),
        x.movedim(0, 1),
        x.T.reshape(2, 12),
        x.view(torch.int32),
    ]


@feature
def indexing(dev: str) -> Any:
    x, i = data(5, 4, dev=dev), whole(3, dev=dev, high=5)
    return [
        x[i],
        x[i, 1],
        x[:, [0, 2]],
        x[torch.tensor([1, 2])],
        x[x > 0],
        x[..., -1],
        x[2:4, 1:3],
        x.index_select(0, i),
        x.gather(1, whole(5, 2, dev=dev, high=4)),
        x.take(i),
        torch.where(x > 0, x, 0.0),
        torch.where(x > 0, x, x * 2),
        x.masked_fill(x > 0, -1.0),
        x.masked_select(x > 0),
        x.nonzero(),
        torch.where(x > 0),
    ]


@feature
def assignment(dev: str) -> Any:
    x = data(5, 4, dev=dev)
    x[0] = 1.0
    x[1:3, 1] = data(2, dev=dev, seed=3)
    x[:, 0] += 2
    x[x > 1] = 0.25
    x[torch.tensor([4], device=dev)] = -1.0
    x[3] = torch.arange(4.0)
    x[2, 2] = 7
    return x


@feature
def in_place_through_views(dev: str) -> Any:
    x = data(4, 4, dev=dev)
    row, column = x[1], x.t()[2]
    row.add_(1)
    column.mul_(2.0)
    x.view(-1)[3:7].zero_()
    x.diagonal().fill_(9)
    return [x, row, column]


@feature
def in_place(dev: str) -> Any:
    x = data(3, 4, dev=dev)
    kept = x
    x += 1
    x.mul_(2).sub_(0.5).clamp_(-2, 2).relu_()
    x.t_()
    x.unsqueeze_(0)
    x.squeeze_()
    return [x, kept, kept.shape]


@feature
def factories(dev: str) -> Any:
    x = data(2, 3, dev=dev)
    return [
        torch.zeros(2, 3, device=dev),
        torch.ones(2, device=dev, dtype=torch.int32),
        torch.full((2, 2), 1.5, device=dev),
        torch.arange(5, device=dev),
        torch.arange(0, 1, 0.25, device=dev),
        torch.linspace(0, 1, 5, device=dev),
        torch.eye(3, device=dev),
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.int64),
        torch.full_like(x, 2),
        x.new_zeros(2),
        x.new_full((2,), 3),
        x.new_tensor([1, 2]),
        torch.tensor([[1, 2], [3, 4]], device=dev),
        torch.as_tensor([1.0], device=dev),
        torch.tril(torch.ones(3, 3, device=dev)),
        torch.empty(0, device=dev),
    ]


@feature
def joining(dev: str) -> Any:
    x, y = data(2, 3, dev=dev), data(2, 3, dev=dev, seed=4)
    return [
        torch.cat([x, y]),
        torch.stack([x, y], 1),
        torch.cat([x, torch.empty(0, device=dev)]),
        F.pad(x, (1, 1)),
        x.repeat(2, 2),
        torch.hstack([x, y]),
        x.tile(2),
        x.repeat_interleave(2, 0),
        torch.roll(x, 1, 0),
        x.flip(0),
        torch.meshgrid(x[0], y[0], indexing="ij"),
        torch.einsum("ij,kj->ik", x, y),
        torch.outer(x[0], y[0]),
    ]


@feature
def conversions(dev: str) -> Any:
    x = data(3, dev=dev)
    return [
        x.double(),
        x.half(),
        x.bfloat16(),
        x.int(),
        x.bool(),
        x.to(torch.float64),
        x.long().float(),
        x.to(dev),
        x.type_as(x.double()),
        x.half().float(),
        x.cpu().to(dev),
    ]


@feature
def values(dev: str) -> Any:
    x = data(2, 2, dev=dev)
    return [
        x.sum().item(),
        x.tolist(),
        float(x[0, 0]),
        int(x.argmax()),
        len(x),
        x.cpu().numpy().tolist(),
        str(x.cpu()),
        bool(x[0, 0] > 0),
        f"{x[0, 0]:.4f}",
        x.numel(),
        x.dim(),
    ]


@feature
def out_arguments(dev: str) -> Any:
    x = data(3, 3, dev=dev)
    fits, grows = torch.empty(3, 3, device=dev), torch.empty(0, device=dev)
    torch.add(x, x, out=fits)
    torch.mm(x, x, out=grows)
    return [
        fits,
        grows,
        torch.arange(4, out=torch.empty(0, dtype=torch.int64, device=dev)),
        torch.linspace(0, 1, 3, out=torch.empty(0, device=dev)),
        torch.cat([x, x], out=torch.empty(0, device=dev)),
    ]


@feature
def copies(dev: str) -> Any:
    x = data(3, 2, dev=dev)
    y = torch.empty_like(x).copy_(x)
    host = torch.empty(3, 2)
    host.copy_(x * 2)
    z = torch.zeros(3, 2, device=dev)
    z.copy_(torch.ones(3, 2))
    z[1].copy_(torch.full((2,), 5.0))
    z.t().copy_(torch.arange(6.0).view(2, 3))
    return [y, host, z, x.clone(), x.detach(), x.t().clone(), copy.deepcopy(x), x.contiguous()]


@feature
def random_numbers(dev: str) -> Any:
    torch.manual_seed(7)
    return [
        torch.rand(4, device=dev),
        torch.randn(3, 2, device=dev),
        torch.randint(0, 9, (5,), device=dev),
        torch.randperm(6, device=dev),
        torch.empty(4, device=dev).uniform_(),
        torch.empty(4, device=dev).normal_(1, 2),
        torch.rand_like(data(3, dev=dev)),
        torch.bernoulli(torch.full((5,), 0.5, device=dev)),
        torch.multinomial(torch.ones(5, device=dev), 2),
        torch.normal(0.0, 1.0, (3,), device=dev),
        torch.empty(3, device=dev).exponential_(),
        nn.init.xavier_uniform_(torch.empty(3, 3, device=dev)),
    ]


@feature
def explicit_generator(dev: str) -> Any:
    generator = torch.Generator().manual_seed(11)
    return torch.empty(4, device=dev).normal_(generator=generator)


@feature
def saving_device_tensors(dev: str) -> Any:
    x = data(3, 2, dev=dev)
    file = io.BytesIO()
    torch.save({"x": x, "p": nn.Parameter(x)}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    return [loaded["x"], loaded["p"], loaded["x"].device.type == torch.device(dev).type]


@feature
def data_attribute(dev: str) -> Any:
    p = nn.Parameter(data(2, 2, dev=dev))
    p.data = p.data * 2
    p.data.add_(1)
    p.data = torch.ones(3, device=dev)
    return [p, p.shape]


@feature
def linear_algebra(dev: str) -> Any:
    a = data(3, 3, dev=dev)
    spd = a @ a.T + 3 * torch.eye(3, device=dev)
    return [
        torch.linalg.cholesky(spd),
        torch.linalg.inv(spd),
        torch.linalg.solve(spd, a),
        torch.linalg.norm(a),
        torch.det(spd),
        torch.bmm(a.expand(2, 3, 3), a.expand(2, 3, 3)),
        torch.baddbmm(a.expand(2, 3, 3), a.expand(2, 3, 3), a.expand(2, 3, 3)),
        torch.linalg.qr(a),
    ]


@feature
def dynamic_shapes(dev: str) -> Any:
    x = whole(8, dev=dev)
    return [
        x.unique(),
        x.nonzero(),
        torch.unique(x, return_counts=True),
        torch.bincount(x),
        x.repeat_interleave(whole(8, dev=dev, high=3)),
    ]


@feature
def scatter(dev: str) -> Any:
    x, i = data(4, 3, dev=dev), whole(4, 3, dev=dev, high=4)
    return [
        torch.zeros(4, 3, device=dev).scatter_(0, i, x),
        torch.zeros(4, 3, device=dev).scatter_add_(0, i, x),
        x.index_add(0, whole(2, dev=dev, high=4), data(2, 3, dev=dev)),
        x.scatter_reduce(0, i, x, "amax"),
        x.index_copy(0, torch.tensor([1, 0]).to(dev), data(2, 3, dev=dev)),
        torch.zeros(5, device=dev).index_put_((i[:, 0],), x[:, 0], accumulate=True),
    ]


@feature
def scatter_into_views(dev: str) -> Any:
    x, diagonal, corner = (data(*shape, dev=dev).requires_grad_() for shape in ((3, 4), (3,), (2, 2)))
    placed = torch.diagonal_scatter(x, diagonal) + torch.as_strided_scatter(x, corner, (2, 2), (1, 4))
    (placed * data(3, 4, dev=dev, seed=2)).sum().backward()
    return [placed, x.grad, diagonal.grad, corner.grad]


@feature
def integers_and_bits(dev: str) -> Any:
    x = whole(6, dev=dev)
    return [
        x & 3,
        x | 1,
        x ^ x,
        ~(x > 2),
        x << 1,
        x >> 1,
        x.float().int() // 3,
        x.remainder(3),
        x.bitwise_not(),
        torch.logical_and(x > 1, x < 5),
    ]


@feature
def zero_sizes(dev: str) -> Any:
    x = torch.empty(0, 3, device=dev)
    return [
        x.sum(),
        x + 1,
        torch.cat([x, torch.ones(2, 3, device=dev)]),
        x @ torch.ones(3, 2, device=dev),
        x.t(),
    ]


@feature
def conjugate_views(dev: str) -> Any:
    x = torch.complex(torch.arange(6.0).view(2, 3), torch.ones(2, 3)).to(dev)
    conjugate = x.conj()
    found = [
        conjugate.clone().cpu(),
        conjugate.clone(),
        conjugate.mT @ x,
        (x @ conjugate.mT).sum(),
        conjugate[0, 1].item(),
    ]
    found += [x.conj().imag, -x.conj().imag, x.conj().imag.clone(), x.conj().resolve_conj(), conjugate.conj()]
    x.mul_(2j)
    found.append(conjugate + 0)
    conjugate.copy_(x[0].clone())
    conjugate[1].add_(torch.ones(3, dtype=x.dtype, device=dev))
    target = torch.zeros(2, 3, dtype=x.dtype)
    target.copy_(conjugate)
    conjugate[0].copy_(torch.full((3,), 3 + 2j))
    conjugate[1, :1].conj_physical_()
    negative = x.conj().imag
    negative.neg_()
    negative[0].copy_(torch.ones(3))
    found.append(torch.vdot(conjugate[0], x[1]))
    return [*found, target, x]


@feature
def random_numbers_of_no_generator(dev: str) -> Any:
    half = torch.full((5,), 0.5, device=dev)
    none: dict[str, Any] = {"generator": None}
    return [
        torch.randn(2, device=dev, **none),
        torch.rand((2, 3), device=dev, **none),
        torch.randint(0, 5, (4,), device=dev, **none),
        torch.randint(5, (4,), device=dev, **none),
        torch.randperm(9, device=dev, **none),
        torch.ops.aten.rand_like.generator(half, **none),
        torch.normal(half, half, **none),
        torch.normal(0.0, 1.0, (3,), device=dev, **none),
        torch.bernoulli(half, **none),
        torch.multinomial(half, 2, **none),
        half.clone().uniform_(**none),
        half.clone().exponential_(**none),
        torch.randn(3, out=torch.empty(0, device=dev), **none),
        torch.randn(3, device=dev),
    ]


def _gradient_under_autocast(dev: str, **options: Any) -> Any:
    layer = torch.nn.Linear(6, 6)
    rows = torch.linspace(-1, 1, 24).view(4, 6).to(dev)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 36).view(6, 6).sin())
        layer.bias.fill_(0.3)
    layer.to(dev)
    with torch.autocast(dev, torch.bfloat16, **options):
        with torch.no_grad():
            layer(rows)
        with torch.autocast(dev, torch.bfloat16, **options):
            inner = layer(layer(rows))
        with torch.autocast(dev, enabled=False):
            outside = layer(rows)
        result = layer(inner)
    (result.float().sum() + outside.sum()).backward()
    return layer.weight.grad, layer.bias.grad


@feature
def weights_cast_once_by_autocast(dev: str) -> Any:
    return _gradient_under_autocast(dev)


@feature
def weights_cast_at_each_use_by_autocast(dev: str) -> Any:
    return _gradient_under_autocast(dev, cache_enabled=False)
