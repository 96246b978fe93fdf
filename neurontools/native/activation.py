"""Makes the device `neuron` known to torch: its name, `torch.neuron`, eager execution, the distributed backend."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import os
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention import flex_attention
from torch.nn.parallel import _functions as parallel_functions
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from neurontools.cache.flags import FLAGS_VARIABLE
from neurontools.cache.location import URL_VARIABLE, resolve
from neurontools.native import addresses, device_functions, grouped_products, modules, saving
from neurontools.native.cores import check_instance, prefer_native_instance
from neurontools.native.fusion import AdaptiveFusion
from neurontools.native.selection import NEURON
from neurontools.runtime.host_activity import observers, report_step
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.debugging.compile_log import current_source
from neurontools.xla.device_name import device_name
from neurontools.xla.distributed import process_group, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.xla.accelerator import Accelerator

_BLOCKING = "NEURON_LAUNCH_BLOCKING"
_NO_CACHE = "TORCH_NEURONX_DISABLE_NEFF_CACHE"
_CACHE_DIRECTORY = "TORCH_NEURONX_NEFF_CACHE_DIR"
_OPTIMIZER_STEP = "optimizer step"
_FSDP = "torch.distributed.fsdp._init_utils"


def activate(open_accelerator: Callable[[], Accelerator] | None = None) -> None:
    """Make the device known to torch; once per process, further calls do nothing.

    Args:
        open_accelerator: opens the cores; those of the simulated machine by default.

    Raises:
        DeviceError: torch is not supported, or this process has the device `xla`.
    """
    if is_active():
        return
    prefer_native_instance(os.environ)
    if os.environ.get(_NO_CACHE) == "1":
        os.environ[FLAGS_VARIABLE] = f"{os.environ.get(FLAGS_VARIABLE, '')} --no_cache".lstrip()
    api.activate(open_accelerator or _open_accelerator, name=NEURON)
    workers.assign_core(os.environ)
    api.engine().set_fusion(AdaptiveFusion())
    if workers.local_world_size() > 1:
        api.engine().local_rank = workers.local_rank()
        # DistributedDataParallel's list of streams has one for each core, and a local rank may be beyond its end.
        parallel_functions._streams = defaultdict(lambda: None)
    device_functions.install(torch.get_device_module(NEURON))
    generate_methods_for_privateuse1_backend(for_storage=False)
    process_group.register()
    register_optimizer_step_post_hook(_end_step)
    start_workers = _with_own_core(distributed_c10d.init_process_group)
    distributed_c10d.init_process_group = torch.distributed.init_process_group = start_workers
    DeviceMesh.__init__ = _with_shards(DeviceMesh.__init__)
    saving.install()
    modules.install()
    addresses.install()
    grouped_products.install()
    for name in ("use_deterministic_algorithms", "set_deterministic_debug_mode"):
        setattr(torch, name, _with_execution_mode(getattr(torch, name)))
    torch.compile = _with_own_backend(torch.compile)
    inductor = torch._TorchCompileInductorWrapper
    inductor.__call__ = _refusing_device(inductor.__call__)
    torch.nn.DataParallel.__init__ = _refusing_copies(torch.nn.DataParallel.__init__)
    flex_attention._validate_device = _of_other_devices(flex_attention._validate_device)
    fake_tensor.run_fallback_kernel = _unless_on_device(fake_tensor.run_fallback_kernel)
    torch._tensor_str._tensor_str = _of_host_copies(torch._tensor_str._tensor_str)
    _choose_execution_mode()


def is_active() -> bool:
    """Return whether torch knows the device `neuron` in this process."""
    return api.is_active() and device_name() == NEURON


def _open_accelerator() -> Accelerator:
    from neurontools.xla.simulated_accelerator import SimulatedAccelerator

    directory = os.environ.get(_CACHE_DIRECTORY)
    if directory:
        os.environ.setdefault(URL_VARIABLE, resolve(url=directory).root)
    opened = SimulatedAccelerator.open()
    try:
        check_instance(opened.runtime.instance, os.environ)
    except BaseException:
        opened.close()
        raise
    return opened


def _end_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG001  torch's signature
    """Run what a training step has recorded. In compiled code, the graph's own end does that."""
    if torch.compiler.is_compiling():
        return
    parameter = optimizer.param_groups[0]["params"][0]
    if parameter.device.type == NEURON:
        start_ns = time.monotonic_ns()
        api.engine().sync(parameter.device.index, _OPTIMIZER_STEP)
        if observers:
            report_step(start_ns, _OPTIMIZER_STEP, current_source())


def _of_host_copies(write: Callable[..., str]) -> Callable[..., str]:
    """Return a function that writes the values of tensors from a copy on the CPU, as torch does for its lazy devices."""

    @functools.wraps(write)
    def write_copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        return write(tensor.cpu() if tensor.device.type == NEURON else tensor, *args, **kwargs)

    return write_copy


def _unless_on_device(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses what torch cannot run with fake tensors, so that compiled code runs it eagerly.

    Torch would run it with real tensors, which it cannot make on the device.
    """

    @functools.wraps(run)
    def run_or_refuse(mode: Any, operator: Any, values: Any, *args: Any) -> Any:
        if any(mode.is_our_fake(value) and value.fake_device.type == NEURON for value in values):
            raise fake_tensor.UnsupportedOperatorException(operator)
        return run(mode, operator, values, *args)

    return run_or_refuse


def _with_own_backend(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile with the backend `neuron` as its default, instead of inductor, which lacks the device.

    A graph of that backend has fixed shapes: TorchDynamo must not replace the second shape that it meets by a symbol.
    Source: AWS Neuron documentation, "torch.compile backend reference".
    """

    @functools.wraps(compile_model)
    def compile_for_device(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo import config as dynamo_config  # takes a second; torch.compile needs it too
        from torch._dynamo.backends.registry import get_default_backend

        if get_default_backend() == "inductor":
            kwargs.setdefault("backend", NEURON)
        if kwargs.get("backend") == NEURON:
            dynamo_config.record_runtime_overhead = False  # calls in each step, for two regions in profiles
            if kwargs.get("dynamic") is None:
                kwargs["dynamic"] = False
        compiled = compile_model(*args, **kwargs)
        optimizer = getattr(args[0], "__self__", None) if args else None
        return (
            _ending_steps(compiled, optimizer) if isinstance(optimizer, torch.optim.Optimizer) else compiled
        )

    return compile_for_device


def _refusing_device(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return the backend inductor with an error for graphs on the device, for which it would look up code in vain."""

    @functools.wraps(compile_graph)
    def compile_for_others(self: Any, model: Any, inputs: Sequence[Any], **options: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and value.device.type == NEURON for value in inputs):
            raise DeviceError(
                "the backend inductor has no code for the device neuron", "use backend='neuron'"
            )
        return compile_graph(self, model, inputs, **options)

    return compile_for_others


def _of_other_devices(check: Callable[..., None]) -> Callable[..., None]:
    """Return the check of flex_attention against its list of devices, for others: its operators run on this one.

    Source: AWS Neuron documentation, "Native PyTorch for AWS Trainium" (FlexAttention as a compiled component).
    """

    @functools.wraps(check)
    def check_others(query: torch.Tensor, *others: torch.Tensor) -> None:
        if query.device.type != NEURON:
            check(query, *others)

    return check_others


def _refusing_copies(create: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of DataParallel that refuses the device: torch scatters tensors between GPUs only."""

    @functools.wraps(create)
    def create_elsewhere(module: torch.nn.DataParallel, *args: Any, **kwargs: Any) -> None:
        create(module, *args, **kwargs)
        if module.device_ids:
            raise DeviceError(
                f"torch.nn.DataParallel does not run on the device {NEURON}",
                "use DistributedDataParallel, with a worker for each core",
            )

    return create_elsewhere


def _with_own_core(start: Callable[..., None]) -> Callable[..., None]:
    """Return an init_process_group that takes the local rank as `device_id`, which torch refuses on a worker's one core."""

    @functools.wraps(start)
    def start_on_own_core(*args: Any, **kwargs: Any) -> None:
        kwargs["device_id"] = _own_core(kwargs.get("device_id"))
        start(*args, **kwargs)
        fsdp: Any = sys.modules.get(_FSDP)  # importing it takes a second
        if fsdp is not None and not hasattr(fsdp._get_device_from_device_id, "__wrapped__"):
            fsdp._get_device_from_device_id = _returning_own_core(fsdp._get_device_from_device_id)

    return start_on_own_core


def _returning_own_core(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return FSDP's function for its `device_id`, with the name of the device that tensors have."""

    @functools.wraps(choose)
    def choose_own_core(*args: Any, **kwargs: Any) -> Any:
        return _own_core(choose(*args, **kwargs))

    return choose_own_core


def _own_core(device: Any) -> Any:
    """Return a device by the index that its tensors have: a worker may name it by its local rank."""
    if isinstance(device, torch.device) and device.type == NEURON and device.index is not None:
        return torch.device(NEURON, api.engine().position_of(device.index))
    return device


def _with_shards(create: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of meshes that prepares random numbers and attention of DTensors, which all need a mesh."""

    @functools.wraps(create)
    def create_with_shards(mesh: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        create(mesh, *args, **kwargs)
        if mesh.device_type == NEURON:
            # They take a second; programs with a mesh need what they load too.
            from neurontools.native import shard_attention, shard_random

            shard_random.install()
            shard_attention.install()

    return create_with_shards


def _ending_steps(compiled: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Return a compiled `optimizer.step` that ends a training step: torch calls no hooks in compiled code."""

    @functools.wraps(compiled)
    def step(*args: Any, **kwargs: Any) -> Any:
        outcome = compiled(*args, **kwargs)
        _end_step(optimizer, args, kwargs)
        return outcome

    return step


def _with_execution_mode(change: Callable[..., None]) -> Callable[..., None]:
    """Return a function of torch that changes determinism, followed by the execution mode that goes with it."""

    @functools.wraps(change)
    def change_and_follow(*args: Any, **kwargs: Any) -> None:
        change(*args, **kwargs)
        _choose_execution_mode()

    return change_and_follow


def _choose_execution_mode() -> None:
    """Run each operator at once where a program debugs or asks for determinism; fuse operators otherwise."""
    api.set_eager(os.environ.get(_BLOCKING) == "1" or torch.are_deterministic_algorithms_enabled())
