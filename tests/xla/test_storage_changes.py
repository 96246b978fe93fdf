"""Tensors that get another storage or form in place, and `out=`, on the first device and on others, whose storages differ."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("device", ["xla:0", "xla:1"])
def test_a_tensor_gets_another_storage(device):
    source = torch.arange(6.0).to(device)
    whole, part, window = (torch.zeros(3, device=device) for _ in range(3))
    whole.set_(source)
    part.set_(source.untyped_storage())
    window.set_(source.untyped_storage(), 1, (2, 2), (2, 1))
    source.add_(1)
    assert whole.tolist() == part.tolist() == [1, 2, 3, 4, 5, 6]
    assert window.tolist() == [[2, 3], [4, 5]]
    window.set_(source.untyped_storage(), 4, (3,), (1,))
    window[2:] = 9
    assert window.tolist() == [5, 6, 9]
    assert source.untyped_storage().nbytes() == 28


@pytest.mark.parametrize("device", ["xla:0", "xla:1"])
def test_a_form_that_is_none_is_refused(device):
    tensor = torch.arange(4.0).to(device)
    with pytest.raises(RuntimeError, match="unequal size length"):
        tensor.set_(tensor.untyped_storage(), 0, (2, 2), (1,))
    assert tensor.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("device", ["xla:0", "xla:1"])
def test_a_tensor_gets_another_form_in_place(device):
    tensor = torch.arange(6.0).to(device)
    tensor.unsqueeze_(0).t_()
    assert tensor.shape == (6, 1)
    tensor.squeeze_().as_strided_((2, 2), (1, 2), 1)
    assert tensor.tolist() == [[1, 3], [2, 4]]
    tensor.resize_(5)
    assert tensor.tolist() == [1, 2, 3, 4, 5]  # in the order of the storage, from the same place on
    result = torch.empty(0, device=device)
    assert torch.add(tensor[:2], 1, out=result).tolist() == result.tolist() == [2, 3]


def outcome(call, device):
    try:
        return call(device).cpu()
    except (RuntimeError, TypeError) as error:
        return type(error)


def out(dtype, device, *shape):
    return torch.empty(shape, dtype=dtype, device=device)


ROW = [1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.add(torch.tensor(ROW, device=d), 1, out=out(torch.float64, d, 3)),
        lambda d: torch.add(torch.tensor(ROW, device=d), 1, out=out(torch.int64, d, 3)),
        lambda d: torch.bitwise_and(torch.tensor([5, 6], device=d).int(), 4, out=out(torch.int64, d, 2)),
        lambda d: torch.index_select(
            torch.tensor(ROW, device=d), 0, torch.tensor([1], device=d), out=out(torch.float64, d, 1)
        ),
        lambda d: torch.any(torch.ones(2, 2, device=d), 0, out=out(torch.float32, d, 2)),
        lambda d: torch.any(torch.ones(2, 2, device=d), 0, out=out(torch.uint8, d, 2)),
        lambda d: torch.tril(torch.ones(2, 2, device=d), out=out(torch.float64, d, 2, 2)),
        lambda d: torch.softmax(torch.ones(2, 2, device=d), 0, out=out(torch.float64, d, 2, 2)),
        lambda d: torch.sum(torch.ones(2, 2, device=d), 0, out=out(torch.float64, d, 2)),
        lambda d: torch.mm(
            torch.ones(2, 2, device=d), torch.ones(2, 2, device=d), out=out(torch.float64, d, 2, 2)
        ),
    ],
)
def test_an_output_of_another_type_is_converted_or_refused_as_on_the_cpu(call):
    expected = outcome(call, "cpu")
    for _ in range(2):
        found = outcome(call, "xla")
        if isinstance(expected, type):
            assert found is expected
        else:
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


def test_an_operator_in_place_cannot_give_its_operand_another_shape():
    with pytest.raises(
        RuntimeError, match=r"output with shape \[2\] doesn't match the broadcast shape \[2, 2\]"
    ):
        torch.zeros(2, device="xla").addr_(torch.ones(2, device="xla"), torch.ones(2, device="xla"))
