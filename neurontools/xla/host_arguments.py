"""Arguments of recorded functions that are on the CPU: copies on the device, and numbers that programs compute with."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neurontools.xla.buffers import NEVER, DeviceBuffer
from neurontools.xla.device_name import device_name
from neurontools.xla.geometry import intern_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.xla.recorder import Recorder


class HostCopy(NamedTuple):
    """A copy on the device of an argument on the CPU, and the version that it had."""

    original: torch.Tensor
    copy: torch.Tensor
    version: int


def copy_to_device(args: list[Any], positions: Iterable[int]) -> list[HostCopy]:
    """Replace arguments on the CPU by copies on the device of the others, and return those."""
    devices = (arg.device for arg in args if isinstance(arg, torch.Tensor))
    device = next((device for device in devices if device.type == device_name()), device_name())
    copies = []
    with torch.inference_mode(mode=False):  # where tensors have no versions
        for position in positions:
            original, args[position] = args[position], args[position].to(device)
            copies.append(HostCopy(original, args[position], args[position]._version))
    return copies


def write_back(copies: Iterable[HostCopy]) -> None:
    """Change arguments as their copies have changed."""
    for original, copy, version in copies:
        if copy._version != version:
            original.copy_(copy)


def buffers_with_numbers(args: Sequence[Any]) -> list[DeviceBuffer]:
    """Return the buffers of arguments, where numbers on the CPU are their own contents.

    The list is empty if there are other arguments, none on the device, or numbers that share memory.
    """
    if not all(isinstance(arg, torch.Tensor) for arg in args):  # a mesh, a token for the order of operators
        return []
    found = [getattr(arg.untyped_storage(), "_neuron_buffer", None) for arg in args]
    recorder: Any = next((buffer.recorder for buffer in found if buffer is not None), None)
    numbers = [
        arg.untyped_storage()._cdata for arg, buffer in zip(args, found, strict=True) if buffer is None
    ]
    if recorder is None or recorder.numerics is not None or len(set(numbers)) != len(numbers):
        return []
    buffers = [
        _number(recorder, arg) if buffer is None else buffer
        for arg, buffer in zip(args, found, strict=True)
        if buffer is not None or (arg.device.type == "cpu" and not arg.dim())
    ]
    return buffers if len(buffers) == len(args) else []


def _number(recorder: Recorder, number: torch.Tensor) -> DeviceBuffer:
    nbytes = number.itemsize
    buffer = DeviceBuffer(recorder, NEVER, 0, nbytes, intern_layout(nbytes, (number.dtype, (), (), 0)))
    buffer.host = number.detach()
    return buffer
