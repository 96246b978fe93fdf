"""Replacements of functions of torch that lack the device, whose storages hold no bytes, or that look for GPUs alone."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch.distributed import distributed_c10d
from torch.nn.attention import flex_attention
from torch.nn.parallel import _functions as parallel_functions

from neurontools.native.selection import NEURON
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import is_registered
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BLOCKING = "NEURON_LAUNCH_BLOCKING"
_FSDP = "torch.distributed.fsdp._init_utils"
_FIRST_ADDRESS = 1 << 40
_ADDRESS_RANGE = 1 << 40  # more than a device has
_addresses = itertools.count(_FIRST_ADDRESS, _ADDRESS_RANGE)
_GROUPED_PRODUCT = "_scaled_grouped_mm"
_registered: list[torch.library.Library] = []  # torch forgets the kernel with this object


def replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function or method of torch.

    Args:
        owner: its module or class.
        name: its name.
        replacement: takes the original function before the arguments of a call.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, call)


def register_on_device(operator: Any, run: Callable[..., Any]) -> None:
    """Register the device with one of torch's operators that call random operators.

    Args:
        operator: the operator.
        run: runs it on the device, whose index is the first argument.
    """
    kernels = operator.py_kernels
    otherwise = kernels[torch._C.DispatchKey.BackendSelect]

    def select(*args: Any, **kwargs: Any) -> Any:
        devices = [torch.device(kwargs["device"])] if kwargs.get("device") else []
        devices += [arg.device for arg in args if isinstance(arg, torch.Tensor)]
        device = next((device for device in devices if device.type == NEURON), None)
        return otherwise(*args, **kwargs) if device is None else run(device.index or 0, *args, **kwargs)

    kernels[torch._C.DispatchKey.BackendSelect] = select
    operator._dispatch_cache.clear()


def install() -> None:
    """Replace the functions, and give torch the product of experts for the CPU, unless it has one."""
    storage = torch.UntypedStorage
    replacements: list[tuple[Any, str, Callable[..., Any]]] = [
        (distributed_c10d, "init_process_group", _start_workers),
        (fake_tensor, "run_fallback_kernel", _run_fallback),
        (flex_attention, "_validate_device", _validate_device),
        (storage, "clone", _clone_storage),
        (storage, "copy_", _copy_storage),
        (storage, "data_ptr", _storage_address),
        (torch, "set_deterministic_debug_mode", _follow_determinism),
        (torch, "use_deterministic_algorithms", _follow_determinism),
        (torch.Tensor, "data_ptr", _tensor_address),
        (torch._TorchCompileInductorWrapper, "__call__", _compile_with_inductor),
        (torch._tensor_str, "_tensor_str", _format_tensor),
        (torch.nn.DataParallel, "__init__", _create_data_parallel),
    ]
    if not is_registered():
        replacements.append((storage, "nbytes", _storage_size))
    for owner, name, replacement in replacements:
        replace(owner, name, replacement)
    torch.distributed.init_process_group = distributed_c10d.init_process_group
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_GROUPED_PRODUCT}", "CPU"):
        library = torch.library.Library("aten", "IMPL")
        library.impl(_GROUPED_PRODUCT, _multiply_groups, "CPU")
        _registered.append(library)


def choose_execution_mode() -> None:
    """Run each operator at once where a program debugs or asks for determinism; fuse operators otherwise."""
    api.set_eager(os.environ.get(_BLOCKING) == "1" or torch.are_deterministic_algorithms_enabled())


def _follow_determinism(change: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    change(*args, **kwargs)
    choose_execution_mode()


def _format_tensor(write: Callable[..., str], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
    """Write the values of a copy on the CPU, as torch does for its own lazy devices."""
    return write(tensor.cpu() if tensor.device.type == NEURON else tensor, *args, **kwargs)


def _run_fallback(run: Callable[..., Any], mode: Any, operator: Any, values: Any, *args: Any) -> Any:
    """Refuse an operator without a rule for fake tensors, so that compiled code runs it eagerly.

    torch would run it with real tensors, which it cannot make on the device.
    """
    if any(mode.is_our_fake(value) and value.fake_device.type == NEURON for value in values):
        raise fake_tensor.UnsupportedOperatorException(operator)
    return run(mode, operator, values, *args)


def _compile_with_inductor(
    compile_graph: Callable[..., Any], backend: Any, model: Any, inputs: Sequence[Any], **options: Any
) -> Any:
    """Reject graphs on the device, for which inductor fails later with an error that names neither."""
    if any(isinstance(value, torch.Tensor) and value.device.type == NEURON for value in inputs):
        raise DeviceError("the backend inductor has no code for the device neuron", "use backend='neuron'")
    return compile_graph(backend, model, inputs, **options)


def _validate_device(check: Callable[..., None], query: torch.Tensor, *others: torch.Tensor) -> None:
    """Check tensors of other devices: the list of flex_attention lacks this one, which runs its operators.

    Source: AWS Neuron documentation, "Native PyTorch for AWS Trainium" (FlexAttention as a compiled component).
    """
    if query.device.type != NEURON:
        check(query, *others)


def _create_data_parallel(
    create: Callable[..., None], module: torch.nn.DataParallel, *args: Any, **kwargs: Any
) -> None:
    """Reject the device: DataParallel scatters tensors between GPUs only."""
    create(module, *args, **kwargs)
    if module.device_ids:
        raise DeviceError(
            f"torch.nn.DataParallel does not run on the device {NEURON}",
            "use DistributedDataParallel, with a worker for each core",
        )


def use_own_core() -> None:
    """Let a worker among several name its one core by its local rank, as on GPUs."""
    if workers.local_world_size() > 1:
        api.engine().local_rank = workers.local_rank()
        # DistributedDataParallel's list of streams has one for each core, and a local rank may be beyond its end.
        parallel_functions._streams = defaultdict(lambda: None)


def _start_workers(start: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Start torch.distributed with the local rank as `device_id`, which torch refuses on a worker's one core."""
    chosen = inspect.signature(start).bind(*args, **kwargs).arguments
    if NEURON in (chosen.get("backend") or NEURON) and not api.engine().is_open:
        workers.assign_rank(chosen.get("rank", -1), chosen.get("world_size", -1), os.environ)
        use_own_core()
    kwargs["device_id"] = _own_core(kwargs.get("device_id"))
    start(*args, **kwargs)
    fsdp: Any = sys.modules.get(_FSDP)  # importing it takes a second
    if fsdp is not None and not hasattr(fsdp._get_device_from_device_id, "__wrapped__"):
        replace(
            fsdp,
            "_get_device_from_device_id",
            lambda choose, *args, **kwargs: _own_core(choose(*args, **kwargs)),
        )


def _own_core(device: Any) -> Any:
    """Return a device by the index that its tensors have: a worker may name it by its local rank."""
    if isinstance(device, torch.device) and device.type == NEURON and device.index is not None:
        return torch.device(NEURON, api.engine().position_of(device.index))
    return device


# Storages hold no bytes, so torch says 0 of all addresses and refuses copies. Programs compare addresses to find tensors
# that share memory, as safetensors does, and copy storages when they copy optimizers.


def _storage_address(read: Callable[..., int], storage: torch.UntypedStorage) -> int:
    if storage.device.type != NEURON:
        return read(storage)
    if not _size_of(storage):
        return 0
    if not hasattr(storage, "_neuron_address"):
        storage._neuron_address = next(_addresses)
    return int(storage._neuron_address)


def _tensor_address(read: Callable[..., int], tensor: torch.Tensor) -> int:
    if tensor.device.type != NEURON:
        return read(tensor)
    address = tensor.untyped_storage().data_ptr()
    return address and int(address + tensor.storage_offset() * tensor.element_size())


def _storage_size(read: Callable[..., int], storage: torch.UntypedStorage) -> int:
    return _size_of(storage) if storage.device.type == NEURON else read(storage)


def _size_of(storage: torch.UntypedStorage) -> int:
    buffer = getattr(storage, "_neuron_buffer", None)  # a DTensor has none: its parts do
    return 0 if buffer is None else storage.nbytes() if is_registered() else int(buffer.nbytes)


def _clone_storage(clone: Callable[..., Any], storage: torch.UntypedStorage) -> Any:
    return _bytes(storage).clone().untyped_storage() if storage.device.type == NEURON else clone(storage)


def _copy_storage(
    copy: Callable[..., Any], storage: torch.UntypedStorage, source: Any, *args: Any, **kwargs: Any
) -> Any:
    if NEURON not in {storage.device.type, source.device.type}:
        return copy(storage, source, *args, **kwargs)
    _bytes(storage).copy_(_bytes(source))
    return storage


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    nbytes = _size_of(storage) if storage.device.type == NEURON else storage.nbytes()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (nbytes,), (1,))


def _multiply_groups(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scale: torch.Tensor,
    right_scale: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,  # noqa: ARG001  torch's signature
) -> torch.Tensor:
    """Multiply matrices group by group; each row of `left` and each column of `right` has a scale.

    torch has this product of experts with scaled operands for GPUs only.
    Source: AWS Neuron documentation, "Native PyTorch for AWS Trainium" (operations of mixtures of experts).

    Args:
        left: [G, M, K], or [M, K] whose rows are in groups, or whose columns are if `right` is a matrix too.
        right: [G, K, N], or [K, N] whose columns or rows are in groups.
        left_scale: [G, M], [M], or [G * M] if both are matrices.
        right_scale: [G, N], [N], or [G * N] if both are matrices.
        offs: where each group ends, [G].
        bias: added to the product.
        scale_result: multiplies the result.
        out_dtype: of the result; bfloat16 by default.
        use_fast_accum: sums are always in float32.
    """
    if left.dim() == right.dim() == 2:
        product = torch._grouped_mm(left.float(), right.float(), offs=offs)
        groups, rows, columns = product.shape
        product *= left_scale.view(groups, rows, 1) * right_scale.view(groups, 1, columns)
    else:
        scaled = left.float() * left_scale.unsqueeze(-1), right.float() * right_scale.unsqueeze(-2)
        product = torch._grouped_mm(*scaled, offs=offs)
    if bias is not None:
        product = product + bias
    if scale_result is not None:
        product = product * scale_result
    return product.to(out_dtype or torch.bfloat16)
