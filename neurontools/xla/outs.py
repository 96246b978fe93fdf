"""Operators with `out=` arguments: the functional overload, then a copy into the outputs."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures, torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.buffers import META
from neurontools.xla.engine import DeviceError
from neurontools.xla.operators import Operator, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.kernels import Kernel


def out_kernel(overload: Any, record: Callable[[Operator], Kernel]) -> Kernel:
    """Return the kernel of an `out=` overload: the functional overload, then a copy into the outputs.

    Raises:
        DeviceError: when it is called and no functional overload fits.
    """
    schema = overload._schema
    names = [argument.name for argument in schema.arguments if argument.is_out]
    wanted = [argument.name for argument in schema.arguments if not argument.is_out]
    functional = _functional(overload, wanted)
    if functional is None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise DeviceError(f"{overload} is not available on the xla device", "call it without out=")

        return refuse
    compute = record(operator_of(functional))
    extra = {argument.name for argument in functional._schema.arguments} - set(wanted)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs.pop(name, None) for name in names]
        if outputs[0] is None:
            outputs, args = list(args[-len(names) :]), args[: -len(names)]
        if "dtype" in extra:
            kwargs["dtype"] = outputs[0].dtype
        if "device" in extra:
            kwargs["device"] = outputs[0].device
        results = compute(*args, **kwargs)
        results = results if isinstance(results, (list, tuple)) else (results,)
        for output, result in zip(outputs, results, strict=True):
            _put(output, result)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return kernel


def _put(output: torch.Tensor, result: torch.Tensor) -> None:
    if output.shape == result.shape:
        output.copy_(result)
    else:
        torch.ops.aten.set_.source_Tensor.redispatch(META, output, result.to(output.dtype))


def _functional(overload: Any, wanted: list[str]) -> Any:
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        names = [argument.name for argument in arguments]
        if any(argument.is_out or argument.alias_info is not None for argument in arguments):
            continue
        if set(wanted) <= set(names) <= {*wanted, "dtype", "layout", "device", "pin_memory"}:
            return candidate
    return None
