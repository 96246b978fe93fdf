"""Runs samples of torch's own operator database on the device `neuron` and on the CPU; writes the differences as JSON.

python operator_checks.py DTYPE FILE
"""

import json
import sys

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "neuron"
SAMPLES = 2
TOLERANCES = {torch.float32: (1.3e-5, 1e-5), torch.bfloat16: (1.6e-2, 1e-2)}
UNINITIALIZED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
# Their samples share memory, or need arguments on the CPU: neither survives the move of each tensor by itself.
CANNOT_MOVE = {"as_strided_partial_views", "tensor_split", "to"}


def moved(value):
    """Return a sample's argument for the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(DEVICE).requires_grad_(value.requires_grad)
    return DEVICE if value in ("cpu", torch.device("cpu")) else value


def tensors(value):
    """Return the tensors in nested values."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def gradients(results, leaves):
    """Return the gradients of all results, None if the CPU has none."""
    used = [result for result in tensors(results) if result.requires_grad]
    if not used or not leaves:
        return None
    total = sum((result.abs() if result.is_complex() else result * 1.5).sum() for result in used)
    return torch.autograd.grad(total, leaves, allow_unused=True)


def compare(expected, found, what, tolerance, *, strides=False):
    """Check type, shape and values."""
    expected, found = tensors(expected), tensors(found)
    assert len(expected) == len(found), f"{what}: {len(found)} tensors instead of {len(expected)}"
    for one, other in zip(expected, found, strict=True):
        assert other.is_neuron, f"{what}: on {other.device}"
        assert (other.dtype, other.shape) == (one.dtype, one.shape), what
        if strides and one.numel():
            assert other.stride() == one.stride(), f"{what}: strides {other.stride()}, not {one.stride()}"
        relative, absolute = tolerance
        torch.testing.assert_close(
            other.detach().cpu(), one.detach(), rtol=relative, atol=absolute, equal_nan=True
        )


def check(op, sample, dtype):
    """Compare one call, and its backward pass."""
    call = (sample.input, sample.args, sample.kwargs)
    on_device = tree_map(moved, call)
    try:
        torch.manual_seed(7)
        expected = op(call[0], *call[1], **call[2])
    except Exception:
        return  # torch refuses it on the CPU too
    torch.manual_seed(7)
    found = op(on_device[0], *on_device[1], **on_device[2])
    if op.name in UNINITIALIZED:
        return
    tolerance = TOLERANCES.get(dtype, (0, 0))
    kept = all(a.stride() == b.stride() for a, b in zip(tensors(call), tensors(on_device), strict=True))
    compare(
        expected, found, "result", tolerance, strides=kept
    )  # a copy of an expanded tensor is not expanded
    if dtype.is_floating_point and op.supports_autograd:
        try:
            expected = gradients(expected, [leaf for leaf in tensors(call) if leaf.requires_grad])
        except RuntimeError:
            return
        if expected is not None:
            leaves = [leaf for leaf in tensors(on_device) if leaf.requires_grad]
            compare(expected, gradients(found, leaves), "gradient", tolerance)


def main(dtype, path):
    """Check every operator with the type."""
    failures, count = {}, 0
    for op in op_db:
        name = op.formatted_name
        if dtype not in op.supported_dtypes("cpu") or name in CANNOT_MOVE:
            continue
        count += 1
        needs_gradient = dtype.is_floating_point and op.supports_autograd
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=needs_gradient))
        for sample in samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]:
            try:
                check(op, sample, dtype)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    with open(path, "w") as file:
        json.dump({"count": count, "failures": failures}, file)


main(getattr(torch, sys.argv[1]), sys.argv[2])
