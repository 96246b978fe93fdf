"""`view` of tensors whose memory does not allow it: the device xla has no strides, as in torch_xla."""

from __future__ import annotations

import pytest
import torch

from neurontools.xla import buffers

pytestmark = pytest.mark.usefixtures("machine")

BASE = torch.arange(24.0).view(2, 3, 4)
CASES = {
    "transposed": lambda x: x.transpose(1, 2).view(2, -1),
    "permuted": lambda x: x.permute(2, 0, 1).view(-1),
    "sliced": lambda x: x[:, 1:, 1:3].view(8),
    "stepped": lambda x: x[:, ::2].view(2, 8),
    "expanded": lambda x: x[:1].expand(5, 3, 4).view(15, 4),
    "unflattened": lambda x: x.transpose(1, 2).unflatten(1, (2, 2)).view(4, 6),
    "viewed twice": lambda x: x.transpose(0, 2).view(-1).view(4, 6).t().view(3, 8),
    "in a computation": lambda x: (x.transpose(0, 1) * 2).transpose(0, 1).view(-1) @ x.view(-1),
}


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
@pytest.mark.parametrize("device", ["xla:0", "xla:1"])
def test_a_view_never_fails_for_its_memory(function, device, monkeypatch):
    result = function(BASE.to(device)).cpu()
    monkeypatch.setattr(torch.Tensor, "view", torch.Tensor.reshape)
    torch.testing.assert_close(result, function(BASE), rtol=0, atol=0)


def test_views_by_other_functions():
    tensor = BASE.to("xla").transpose(1, 2)
    wanted = BASE.transpose(1, 2).contiguous()
    assert torch.equal(tensor.view_as(torch.empty(24, device="xla")).cpu(), wanted.view(-1))
    assert torch.equal(tensor.view(torch.int32).view(-1).cpu(), wanted.view(torch.int32).view(-1))


def test_gradients_of_such_a_view():
    leaf = BASE.clone().to("xla").requires_grad_()
    leaf.transpose(0, 1).view(3, -1).pow(2).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), 2 * BASE)

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            context.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(context, gradient):
            x, weight = context.saved_tensors
            flat = gradient.view(-1, gradient.shape[-1])
            return gradient @ weight, flat.t() @ x.view(-1, x.shape[-1])

    x, weight = BASE.to("xla"), torch.ones(5, 4).to("xla").requires_grad_()
    Linear.apply(x, weight).transpose(0, 1).mul(2).sum().backward()
    torch.testing.assert_close(weight.grad.cpu(), 2 * BASE.sum((0, 1)).expand(5, 4))


def test_tensors_are_contiguous_without_strides():
    for tensor in (
        BASE.to("xla").transpose(0, 1),
        BASE.to("xla")[:, 1],
        torch.nn.Parameter(BASE.to("xla").mT),
    ):
        assert tensor.is_contiguous()
        assert tensor.is_contiguous(memory_format=torch.contiguous_format)
    assert torch.equal(
        BASE.to("xla").transpose(0, 1).contiguous().view(-1).cpu(), BASE.transpose(0, 1).reshape(-1)
    )
    assert (BASE.is_contiguous(), BASE.transpose(0, 1).is_contiguous()) == (True, False)


def test_a_shape_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="invalid for input of size 24"):
        BASE.to("xla").transpose(0, 1).view(5)


def test_an_in_place_operator_on_such_a_copy_is_reported_once(caplog):
    original = BASE.to("xla")
    for _ in range(2):
        original.transpose(0, 1).view(-1).add_(1)
    original.view(-1).add_(1)  # a true view
    torch.testing.assert_close(original.cpu(), BASE + 1)
    (message,) = caplog.messages
    assert "test_view_copies.py" in message
    assert "call contiguous() before view()" in message


def test_the_kernel_without_cpp_copies_too():
    tensor = BASE.to("xla").transpose(0, 1)
    torch.testing.assert_close(buffers.view(tensor, (3, 8)).cpu(), BASE.transpose(0, 1).reshape(3, 8))
    with pytest.raises(RuntimeError, match="invalid for input"):
        buffers.view(tensor, (5,))
