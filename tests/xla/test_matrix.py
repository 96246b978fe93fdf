"""Every feature gives the same bits as the CPU: when it is learned, when it is replayed, and after both."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from neurontools.xla import api

Feature = Callable[[str], Any]
FEATURES: dict[str, Feature] = {}


# Cells of recurrent layers add their biases after the matrix product, as torch lets devices do.
TOLERANCES = {"recurrent": 1e-5}


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def data(*shape: int, dev: str, seed: int = 1, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, **options).to(dev)


def whole(*shape: int, dev: str, high: int = 10) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2)).to(dev)


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
def gradients(dev: str) -> Any:
    x = data(4, 3, dev=dev).requires_grad_()
    w = data(3, 2, dev=dev, seed=5).requires_grad_()
    y = ((x @ w).tanh() * x[:, :1]).sum() + x[1].pow(3).mean() + x.view(-1)[::2].exp().sum()
    y.backward()
    (gx,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    (ggx,) = torch.autograd.grad(gx.sum(), x)
    return [y, x.grad, w.grad, gx, ggx]


@feature
def hooks_and_accumulation(dev: str) -> Any:
    x = data(3, dev=dev).requires_grad_()
    x.register_hook(lambda grad: grad * 2)
    for _ in range(3):
        (x * x).sum().backward()
    return x.grad


@feature
def custom_function(dev: str) -> Any:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * (x > 0)

    x = data(4, dev=dev).requires_grad_()
    Clip.apply(x * 2).sum().backward()
    return x.grad


@feature
def losses(dev: str) -> Any:
    x = data(6, 4, dev=dev).requires_grad_()
    labels = whole(6, dev=dev, high=4)
    y = data(6, 4, dev=dev, seed=6)
    parts = [
        F.cross_entropy(x, labels),
        F.nll_loss(F.log_softmax(x, 1), labels),
        F.mse_loss(x, y),
        F.l1_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.binary_cross_entropy_with_logits(x, (y > 0).float()),
        F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"),
        F.cross_entropy(x, labels, label_smoothing=0.1),
    ]
    sum(parts).backward()
    return [*parts, x.grad]


@feature
def convolutions(dev: str) -> Any:
    x = data(2, 3, 8, 8, dev=dev).requires_grad_()
    w = data(4, 3, 3, 3, dev=dev, seed=7).requires_grad_()
    b = data(4, dev=dev, seed=8).requires_grad_()
    t = data(4, 2, 2, 2, dev=dev, seed=9).requires_grad_()
    y = F.conv2d(x, w, b, padding=1)
    z = F.conv_transpose2d(F.max_pool2d(F.relu(y), 2), t, stride=2)
    d = F.conv1d(x[:, :, 0], w[:, :, 0])
    g = F.conv2d(x, w[:3, :1], groups=3, stride=2)
    (z.sum() + d.pow(2).sum() + g.sum()).backward()
    return [y, z, d, g, x.grad, w.grad, b.grad, t.grad]


@feature
def pooling_and_resizing(dev: str) -> Any:
    x = data(2, 3, 8, 8, dev=dev)
    return [
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 2)),
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 5), mode="bilinear"),
        F.pixel_shuffle(x[:, :1].repeat(1, 4, 1, 1), 2),
        F.pad(x, (1, 1, 1, 1), mode="reflect"),
    ]


@feature
def normalisation(dev: str) -> Any:
    x = data(4, 6, 5, 5, dev=dev).requires_grad_()
    bn, gn, ln = nn.BatchNorm2d(6).to(dev), nn.GroupNorm(2, 6).to(dev), nn.LayerNorm([5]).to(dev)
    y = ln(gn(bn(x)))
    y.pow(2).sum().backward()
    out = [
        y,
        x.grad,
        bn.running_mean,
        bn.running_var,
        bn.num_batches_tracked,
        bn.weight.grad,
        gn.bias.grad,
        ln.weight.grad,
    ]
    return [*out, bn.eval()(x), F.normalize(x), F.rms_norm(x, [5])]


@feature
def activations(dev: str) -> Any:
    x = data(4, 5, dev=dev).requires_grad_()
    parts = [
        F.gelu(x),
        F.gelu(x, approximate="tanh"),
        F.silu(x),
        F.elu(x),
        F.leaky_relu(x, 0.1),
        F.softplus(x),
        F.hardtanh(x),
        F.softmax(x, 1),
        F.log_softmax(x, 0),
        F.glu(x[:, :4]),
        F.selu(x),
        F.mish(x),
        F.hardswish(x),
        F.logsigmoid(x),
    ]
    sum(part.sum() for part in parts).backward()
    return [*parts, x.grad]


@feature
def attention(dev: str) -> Any:
    q, k, v = (data(2, 2, 8, 16, dev=dev, seed=s).requires_grad_() for s in (1, 2, 3))
    mask = torch.ones(8, 8, dtype=torch.bool).tril().to(dev)
    outs = [
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    ]
    sum((out * out).sum() for out in outs).backward()
    return [*outs, q.grad, k.grad, v.grad]


@feature
def attention_without_gradients(dev: str) -> Any:
    q, k, v = (data(2, 2, 8, 16, dev=dev, seed=s) for s in (1, 2, 3))
    with torch.no_grad():
        return [
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(q[:, :, :1], k, v),
        ]


@feature
def embedding(dev: str) -> Any:
    layer = nn.Embedding(10, 4).to(dev)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(40.0).view(10, 4))
    layer(whole(3, 5, dev=dev)).pow(2).sum().backward()
    return [
        layer.weight.grad,
        F.one_hot(whole(4, dev=dev), 10),
        F.embedding_bag(whole(6, dev=dev), layer.weight, torch.tensor([0, 3]).to(dev)),
    ]


@feature
def multihead_and_encoder(dev: str) -> Any:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(dev)
    x = data(2, 5, 16, dev=dev).requires_grad_()
    y = layer(x)
    y.sum().backward()
    with torch.no_grad():
        z = layer.eval()(x)
    return [y, x.grad, z, *(parameter.grad for parameter in layer.parameters())]


@feature
def recurrent(dev: str) -> Any:
    torch.manual_seed(3)
    out = []
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        layer = kind(4, 5, num_layers=2, batch_first=True).to(dev)
        x = data(2, 3, 4, dev=dev).requires_grad_()
        y, state = layer(x)
        y.pow(2).sum().backward()
        out += [y, state, x.grad, *(parameter.grad for parameter in layer.parameters())]
    return out


@feature
def dropout(dev: str) -> Any:
    torch.manual_seed(5)
    x = data(64, 8, dev=dev).requires_grad_()
    y = F.dropout(x, 0.3)
    y.sum().backward()
    return [
        y,
        x.grad,
        F.dropout(x, 0.5, training=False),
        F.dropout(x, 1.0),
        F.dropout2d(data(2, 3, 4, 4, dev=dev), 0.5),
    ]


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
def modules(dev: str) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(dev)
    other = copy.deepcopy(model)
    other.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    third = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(dev)
    third.load_state_dict(torch.load(io.BytesIO(file.getvalue()), map_location="cpu"))
    x = data(2, 4, dev=dev)
    back = third.to("cpu")
    return [
        model(x),
        other(x),
        back(x.cpu()),
        next(back.parameters()).device.type,
        model.double()(x.double()),
    ]


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
def gradient_clipping(dev: str) -> Any:
    p = [nn.Parameter(data(3, 2, dev=dev)), nn.Parameter(data(4, dev=dev, seed=2))]
    sum((q * q).sum() for q in p).backward()
    norm = nn.utils.clip_grad_norm_(p, 0.5)
    return [norm, *(q.grad for q in p)]


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
def inference_mode(dev: str) -> Any:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(0.5), layer.bias.fill_(1)
    layer = layer.to(dev)
    with torch.inference_mode():
        y = layer(data(4, 3, dev=dev))
        y.mul_(2)
        total = y.sum().item()
    return [y.cpu(), total]


@feature
def checkpointing(dev: str) -> Any:
    x = data(4, 3, dev=dev).requires_grad_()
    y = torch.utils.checkpoint.checkpoint(lambda t: (t * t).tanh(), x, use_reentrant=False)
    y.sum().backward()
    return x.grad


@feature
def functional_transforms(dev: str) -> Any:
    x = data(3, dev=dev)
    return [
        torch.func.grad(lambda t: (t**3).sum())(x),
        torch.vmap(lambda t: t * 2 + 1)(data(4, 3, dev=dev)),
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
def autocast(dev: str) -> Any:
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4)), layer.bias.fill_(0.1)
    layer = layer.to(dev)
    x = data(5, 4, dev=dev)
    with torch.autocast(dev, dtype=torch.bfloat16):
        y = layer(x)
        loss = F.mse_loss(y.float(), torch.ones(5, 3, device=dev))
    loss.backward()
    return [y, loss, layer.weight.grad]


def flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def assert_same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    left, right = flat(got), flat(wanted)
    assert len(left) == len(right)
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype, position
            assert a.shape == b.shape, position
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert a == b, position


@pytest.mark.parametrize("name", FEATURES)
def test_gives_the_same_bits_as_the_cpu(name: str, machine: Any) -> None:
    function = FEATURES[name]
    torch.manual_seed(0)
    wanted = function("cpu")
    for _ in range(3):
        torch.manual_seed(0)
        got = function("xla")
        api.mark_step()
        assert_same(got, wanted, TOLERANCES.get(name, 0.0))
