"""Chooses a kernel for each operator, `out=` overloads and autocast included, and registers it with torch's dispatcher."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures and private API.

from __future__ import annotations

import functools
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.base.interrupts import InterruptHold, is_of_handler
from neurontools.xla import buffers, device_guard
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device import autocast_kernels, keep_from_compiler
from neurontools.xla.device_name import device_name
from neurontools.xla.execution import host_execution
from neurontools.xla.geometry import META, geometry_of, storage_of
from neurontools.xla.layers import (
    attention,
    gru_cell,
    install_jagged_attention,
    layer_kernels,
    lstm_cell,
    synchronized_norm_kernels,
)
from neurontools.xla.operators import Operator, find_overload, operator_of
from neurontools.xla.tensor_kernels import VIEWS, copy_kernels, storage_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.engine import DeviceEngine
    from neurontools.xla.operators import Kernel

_KEY = "PrivateUse1"
_RESIZE = torch.ops.aten._resize_output_.default
# These have decompositions in torch that devices without kernels would take; recorded whole they make shorter graphs.
_WHOLE = {
    "ones", "zeros", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm",
    "scalar_tensor", "tril_indices", "triu_indices", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_zeros", "new_ones", "new_full", "bernoulli", "clone", "repeat", "stack", "embedding",
    "select_backward", "slice_backward", "diagonal_backward", "constant_pad_nd", "masked_fill", "masked_scatter",
    "select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter", "index_put", "native_group_norm", "rsub", "binary_cross_entropy_with_logits",
}  # fmt: skip

_ABOUT_OUTPUTS = re.compile(r"type|cast|only support|memory location")
_accepted: set[tuple[Any, ...]] = set()  # overloads with the geometries of their tensors
_OF_FACTORIES = {"dtype", "layout", "device", "pin_memory"}

_MAKES_NESTED = (
    "_nested_tensor_from_tensor_list",
    "_nested_view_from_buffer",
    "_nested_view_from_buffer_copy",
    "_nested_tensor_from_mask",
    "_nested_from_padded",
)

_COMPOSITES: dict[str, Kernel] = {
    "scaled_dot_product_attention": attention,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_gru_cell": gru_cell,
}

_COMPOSITE_KEYS = (
    "CompositeExplicitAutogradNonFunctional",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
)


class Registry:
    """The kernels of the device, kept alive for as long as the process runs."""

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine
        self._everything = torch.library.Library("_", "IMPL")
        self._aten = torch.library.Library("aten", "IMPL")
        self._view_copies = buffers.define_copy()
        self._others: dict[str, Any] = {}
        self._late: dict[Any, Kernel] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Register every kernel but those that can wait for the first call."""
        specials = storage_kernels(self._engine) | copy_kernels(self._engine) | layer_kernels(self._engine)
        specials |= synchronized_norm_kernels()
        install_jagged_attention()
        for name, kernel in specials.items():
            self._register(self._aten, name, kernel)
        for qualified in torch._C._dispatch_get_all_op_names():
            name = qualified.removeprefix("aten::")
            if (
                name == qualified
                or name in specials
                or name in _MAKES_NESTED
                or _can_wait(qualified)
                or not _wanted(qualified, name)
            ):
                continue
            overload = find_overload(qualified)
            if overload is not None:
                self._register(self._aten, name, self._kernel(overload))
        self._register(self._aten, "record_stream", lambda *_: None)
        if not device_guard.is_registered():
            self._aten.impl("is_pinned", _is_pinned, "CPU")
            self._aten.impl("_pin_memory", _pin_memory, "CPU")
        keep_from_compiler(self._first_sight)
        self._everything.fallback(self._first_sight, _KEY)
        self._everything.fallback(_refuse_quantized, "QuantizedPrivateUse1")
        # Without a kernel, torch ends the process where autograd asks such a tensor for its size.
        self._everything.fallback(_refuse_nested, "NestedTensorPrivateUse1")
        for name in _MAKES_NESTED:
            self._register(self._aten, name, _refuse_nested)
        for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1"):
            self._everything.fallback(_refuse_sparse, key)
        self._everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        for name, kernel in autocast_kernels().items():
            self._register(self._aten, name, kernel, "AutocastPrivateUse1")
        for key in ("AutogradPrivateUse1", _KEY):
            for name, kernel in _COMPOSITES.items():
                self._register(self._aten, name, kernel, key)

    @staticmethod
    def _register(library: Any, name: Any, kernel: Kernel, key: str = _KEY) -> None:
        keep_from_compiler(kernel)
        library.impl(name, kernel, key)

    def _kernel(self, overload: Any) -> Kernel:
        if any(argument.is_out for argument in overload._schema.arguments):
            return out_kernel(overload, self._engine.kernel)
        return self._engine.kernel(operator_of(overload))

    def _first_sight(self, overload: Any, *args: Any, **kwargs: Any) -> Any:
        """Register a kernel for an operator that has none yet, such as a custom operator, and call it."""
        with InterruptHold(), self._lock:  # torch refuses a second registration
            kernel = self._late.get(overload)
            if kernel is None:
                kernel = self._late[overload] = self._kernel(overload)
                namespace = overload.namespace
                library = self._others.get(namespace)
                if library is None:
                    library = self._others[namespace] = torch.library.Library(namespace, "IMPL")
                self._register(library, overload, kernel)
        return kernel(*args, **kwargs)


def is_recorded_whole(qualified: str) -> bool:
    """Return whether the device has a kernel for an operator, such as `aten::add.Tensor`: it is not taken apart."""
    return _can_wait(qualified) or _wanted(qualified, qualified.removeprefix("aten::"))


def _can_wait(qualified: str) -> bool:
    """Return whether the first call reaches the fallback, which registers the kernel: torch would take a composite first."""
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key) for key in _COMPOSITE_KEYS)


def _wanted(qualified: str, name: str) -> bool:
    plain = name.partition(".")[0]
    if plain in VIEWS:
        return False
    if plain.startswith("_foreach_") or plain in _WHOLE:
        return True
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU"))


def _refuse_quantized(overload: Any, *args: Any, **kwargs: Any) -> Any:
    raise DeviceError(
        f"the {device_name()} device does not support quantized tensors",
        "keep them on the CPU, or call dequantize() before",
    )


def _refuse_nested(*args: Any, **kwargs: Any) -> Any:
    raise DeviceError(
        f"the {device_name()} device does not support nested tensors of layout torch.strided",
        "make them with layout=torch.jagged",
    )


def _refuse_sparse(overload: Any, *args: Any, **kwargs: Any) -> Any:
    raise DeviceError(
        f"the {device_name()} device does not support sparse tensors",
        "keep them on the CPU, call to_dense() before, or set sparse=False",
    )


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return False


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return self.clone()


def out_kernel(overload: Any, record: Callable[[Operator], Kernel]) -> Kernel:
    """Return the kernel of an `out=` overload: the functional overload, then a copy into the outputs.

    Raises:
        DeviceError: when it is called and no functional overload fits.
    """
    schema = overload._schema
    names = [argument.name for argument in schema.arguments if argument.is_out]
    wanted = {argument.name: argument.type for argument in schema.arguments if not argument.is_out}
    functional = _functional(overload, wanted)
    if functional is None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise DeviceError(
                f"{overload} is not available on the {device_name()} device", "call it without out="
            )

        return refuse
    compute = record(operator_of(functional))
    extra = {argument.name for argument in functional._schema.arguments} - wanted.keys()

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs.pop(name, None) for name in names]
        if outputs[0] is None:
            outputs, args = list(args[-len(names) :]), args[: -len(names)]
        if "dtype" in extra:
            kwargs["dtype"] = outputs[0].dtype
        if "device" in extra:
            kwargs["device"] = outputs[0].device
        if _overlaps(outputs, (*args, *kwargs.values())):
            _check(overload, args, kwargs, dict(zip(names, outputs, strict=True)))
        results = compute(*args, **kwargs)
        results = results if isinstance(results, (list, tuple)) else (results,)
        if [output.dtype for output in outputs] != [result.dtype for result in results]:
            _check(overload, args, kwargs, dict(zip(names, outputs, strict=True)))
        for output, result in zip(outputs, results, strict=True):
            _put(output, result, args)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return kernel


def _overlaps(outputs: list[torch.Tensor], inputs: Any) -> bool:
    """Return whether an output shares its storage with another tensor of the call, or elements with itself."""
    storages = {storage_of(output) for output in outputs}
    if len(storages) < len(outputs) or any(0 in output.stride() for output in outputs):
        return True
    for value in inputs:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor) and storage_of(item) in storages:
                return True
    return False


def _check(overload: Any, args: Any, kwargs: Any, outputs: dict[str, torch.Tensor]) -> None:
    """Let torch refuse outputs of types that it does not convert the results to, and memory that it would read and write.

    It does so in a call on the CPU with zeros of the same types, shapes and places in memory.

    Raises:
        RuntimeError: torch refuses them.
    """
    known = {argument.name: str(argument.type) for argument in overload._schema.arguments}
    args = [
        torch.tensor(value) if kind == "Tensor" and not isinstance(value, torch.Tensor) else value
        for value, kind in zip(args, known.values(), strict=False)
    ]  # torch hands numbers to overloads for tensors
    named = {name: value for name, value in {**kwargs, **outputs}.items() if name in known}
    tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
    places = list(dict.fromkeys(map(storage_of, tensors)))
    key = (overload, *((geometry_of(tensor), places.index(storage_of(tensor))) for tensor in tensors))
    if key in _accepted:
        return
    host_args, host_kwargs = tree_map(functools.partial(_zeros_on_host, {}, {}), (args, named))
    try:
        with host_execution(), torch.random.fork_rng(devices=()), warnings.catch_warnings(action="ignore"):
            overload(*host_args, **host_kwargs)
    except (RuntimeError, TypeError) as error:
        if _ABOUT_OUTPUTS.search(str(error)) or is_of_handler(error):
            raise
    _accepted.add(key)


def _zeros_on_host(
    storages: dict[int, torch.UntypedStorage], copies: dict[int, torch.Tensor], value: Any
) -> Any:
    """Return a CPU tensor of zeros for a tensor: the same one for the same tensor, in the same memory for views of one."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) not in copies:
        storage = storages.get(storage_of(value))
        if storage is None:
            nbytes = value.untyped_storage().nbytes()
            storage = storages[storage_of(value)] = torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()
        dtype, *view = geometry_of(value)
        copies[id(value)] = torch.empty(0, dtype=dtype).set_(storage, view[2], view[0], view[1])
    return copies[id(value)]


def _put(output: torch.Tensor, result: torch.Tensor, operands: Any) -> None:
    if output.shape != result.shape:
        if any(output is operand for operand in operands):  # an operator in place
            raise RuntimeError(
                f"output with shape {list(output.shape)} doesn't match the broadcast shape {list(result.shape)}"
            )
        _RESIZE.redispatch(
            META, output, result.shape, output.device
        )  # warns, and resizes with the device's kernel
        if output.stride() != result.stride():
            output.as_strided_(result.shape, result.stride())
    output.copy_(result)


def _functional(overload: Any, wanted: dict[str, Any]) -> Any:
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        if any(argument.is_out or argument.alias_info is not None for argument in arguments):
            continue
        types = {argument.name: argument.type for argument in arguments}
        if wanted.items() <= types.items() and types.keys() - wanted.keys() <= _OF_FACTORIES:
            return candidate
    return None
