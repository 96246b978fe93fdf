"""Turns torch's PrivateUse1 into the device: name, guard, hooks, device module. All private API is used here."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import itertools
import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from neurontools.errors import NeuronToolsError
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.autocast import keep_lowered_leaves
from neurontools.xla.device_guard import is_registered, register_guard
from neurontools.xla.device_name import XLA, device_name
from neurontools.xla.rng import Generator

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from neurontools.xla.device_guard import GuardedDevices

_NEEDED = (
    "create_empty_tensor",
    "register_python_privateuseone_device_guard",
    "register_python_privateuseone_hook",
    "DeviceGuard",
    "PrivateUse1Hooks",
)
_UNNAMED = "privateuseone"
_BEFORE_TORCHS_OWN = 19  # its own function for PrivateUse1, 23, makes bare storages
_FRAMES = torch._C._dynamo.eval_frame
_LEAVE_ALONE = _FRAMES._FrameExecStrategy(_FRAMES._FrameAction.SKIP, _FRAMES._FrameAction.SKIP)
_log = logging.getLogger("neurontools.xla")


def check_torch() -> None:
    """Check that this torch has what a device in Python needs.

    Raises:
        DeviceError: a private function is missing, or PrivateUse1 has another name.
    """
    missing = [
        name for name in _NEEDED if not hasattr(getattr(getattr(torch, "_C", None), "_acc", None), name)
    ]
    if missing:
        raise DeviceError(
            f"torch {torch.__version__} lacks {', '.join(missing)}, which the device is built on",
            "install torch 2.13",
        )


def rename() -> None:
    """Give PrivateUse1 the name of the device.

    Raises:
        DeviceError: another device has taken it in this process.
    """
    name, current = device_name(), torch._C._get_privateuse1_backend_name()
    if current not in {_UNNAMED, name}:
        raise DeviceError(
            f"torch's PrivateUse1 device is already called {current!r} in this process, so it cannot be {name!r}",
            "use one of the two packages per process",
        )
    if current == _UNNAMED:
        torch.utils.rename_privateuse1_backend(name)


def install_guard(devices: Callable[[], GuardedDevices]) -> None:
    """Register the device guard: the one in C++, or torch's in Python where that cannot be compiled.

    Args:
        devices: returns what the guard asks.
    """
    try:
        register_guard(os.path.dirname(torch.__file__), devices)
    except NeuronToolsError as error:
        # torch's own guard calls Python where an exception is on its way already: the process ends with SIGABRT.
        _log.warning(
            "no device guard in C++ (%s; %s): an exception or Ctrl-C in a backward pass aborts the process, and "
            "torch.accelerator can neither synchronize nor select a device",
            error.message,
            error.remedy,
        )
        acc = torch._C._acc
        acc.register_python_privateuseone_device_guard(_python_guard(acc))


def install(module: ModuleType) -> None:
    """Register hooks and the module `torch.xla`."""
    acc = torch._C._acc
    torch._register_device_module(device_name(), module)
    if not is_registered():
        acc.register_python_privateuseone_hook(_hooks(acc))
    torch.Generator = Generator
    torch.accelerator.empty_host_cache = lambda: None  # torch follows a null pointer
    torch.serialization.register_package(_BEFORE_TORCHS_OWN, lambda _: None, _restore)
    _default_to_bfloat16()
    keep_lowered_leaves()
    if device_name() == XLA:
        torch.Tensor.is_xla = property(lambda tensor: tensor.device.type == XLA)
    # A device's backward pass would otherwise hop to a thread per device: three times the cost on small models.
    torch.autograd.set_multithreading_enabled(False)


def _restore(storage: Any, location: str) -> Any:
    """Upload a storage that torch.load maps to this device, None for another one."""
    if location.partition(":")[0] != device_name():
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).to(location).untyped_storage()


def keep_from_compiler(function: Any) -> None:
    """Keep `torch.compile` away from a function that torch calls, and from all that this function calls.

    TorchDynamo compiles every Python frame that runs while compiled code does, kernels of this device included.
    """
    _FRAMES.set_code_exec_strategy(function.__code__, _LEAVE_ALONE)


def self_test() -> None:
    """Create a device tensor and check it, so that an unsupported torch fails here with a reason.

    Raises:
        DeviceError: tensors of this device do not behave as the engine needs it.
    """
    tensor = torch._C._acc.create_empty_tensor((2, 3), torch.float32)
    marker = object()
    tensor.untyped_storage()._neuron_buffer = marker
    meta = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    view = torch.ops.aten.as_strided.default.redispatch(meta, tensor, [3], [1], 0)
    del tensor
    storage = view.untyped_storage()
    if view.device.type != device_name() or getattr(storage, "_neuron_buffer", None) is not marker:
        raise DeviceError(
            f"torch {torch.__version__} does not keep views on the {device_name()} device",
            "install torch 2.13",
        )
    del storage._neuron_buffer


def _default_to_bfloat16() -> None:
    """Make bfloat16 the type of `torch.autocast` on the device: torch keeps float16 for devices, anew in every thread."""
    autocast = torch.amp.autocast_mode.autocast
    start = autocast.__init__

    @functools.wraps(start)
    def start_in_bfloat16(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if dtype is None and device_type == device_name():
            dtype = torch.bfloat16
        start(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = start_in_bfloat16
    torch.set_autocast_dtype(device_name(), torch.bfloat16)


def _hooks(acc: Any) -> Any:
    answers = dict.fromkeys(("is_available", "is_built", "has_primary_context"), lambda *_: True)
    return type("Hooks", (acc.PrivateUse1Hooks,), answers)()


def _python_guard(acc: Any) -> Any:
    # torch asks for the type some eighty times in a small training step: this answers without a Python frame.
    device_type = itertools.repeat(torch._C._autograd.DeviceType.PrivateUse1)
    return type("Guard", (acc.DeviceGuard,), {"type_": device_type.__next__})()
