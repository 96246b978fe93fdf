"""What networks are made of: gradients, losses, layers, modules, transforms."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.xla.features.feature import data, feature, whole


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
def dropout_twice_differentiated(dev: str) -> Any:
    torch.manual_seed(5)
    x = data(16, 8, dev=dev).requires_grad_()
    (first,) = torch.autograd.grad(F.dropout(x, 0.25).pow(3).sum(), x, create_graph=True)
    first.sum().backward()
    mask = data(16, 8, dev=dev) > 0
    return [first, x.grad, torch.ops.aten.native_dropout_backward(x.detach(), mask, 2.0)]


@feature
def encoder_with_padding(dev: str) -> Any:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=dev != "cpu").to(dev).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]]).to(dev)
    with torch.no_grad():
        return encoder(data(2, 3, 16, dev=dev), src_key_padding_mask=padding)


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
def gradient_clipping(dev: str) -> Any:
    p = [nn.Parameter(data(3, 2, dev=dev)), nn.Parameter(data(4, dev=dev, seed=2))]
    sum((q * q).sum() for q in p).backward()
    norm = nn.utils.clip_grad_norm_(p, 0.5)
    return [norm, *(q.grad for q in p)]


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
        torch.func.jacrev(torch.func.jacrev(lambda t: (t.sin() * t).sum()))(x),
    ]


@feature
def transforms_of_attention(dev: str) -> Any:
    query, key, value = (data(2, 3, 8, 4, dev=dev, seed=seed) for seed in range(3))

    def total(query: Any, key: Any, value: Any) -> Any:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).pow(2).sum()

    gradient = torch.func.grad(total, argnums=(0, 1, 2))
    return [gradient(query, key, value), torch.vmap(gradient)(query, key, value)]


@feature
def gradients_of_each_sample(dev: str) -> Any:
    torch.manual_seed(3)
    layers = nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)
    model = nn.Sequential(*layers).to(dev)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(parameters: Any, sample: Any, label: Any) -> Any:
        scores = torch.func.functional_call(model, parameters, (sample[None],))
        return F.cross_entropy(scores, label[None])

    per_sample = torch.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    return per_sample(parameters, data(6, 4, dev=dev), whole(6, dev=dev, high=3))


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


@feature
def jagged_attention(dev: str) -> Any:
    parts = [torch.arange(8.0).view(2, 4).to(dev) / 8, torch.arange(12.0).view(3, 4).to(dev) / 12]
    rows = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    heads = rows.unflatten(-1, [2, 2]).transpose(1, 2)
    result = F.scaled_dot_product_attention(heads, heads, heads).values()
    whole = F.scaled_dot_product_attention(*[rows.detach().unsqueeze(1)] * 3).values()
    result.sum().backward()
    return result, whole, rows.grad.values()
