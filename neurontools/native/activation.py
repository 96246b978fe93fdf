"""Makes the device `neuron` known to torch: its name, `torch.neuron`, eager execution, the distributed backend."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from neurontools import env
from neurontools.cache.flags import FLAGS_VARIABLE
from neurontools.cache.location import URL_VARIABLE, resolve
from neurontools.native import device_functions, modules, patches
from neurontools.native.cores import check_instance, core_count, prefer_native_instance
from neurontools.native.selection import NEURON
from neurontools.runtime.host_activity import observers, report_step
from neurontools.xla import api
from neurontools.xla.debugging.compile_log import current_source
from neurontools.xla.device_name import device_name
from neurontools.xla.distributed import process_group, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Accelerator

_NO_CACHE = "TORCH_NEURONX_DISABLE_NEFF_CACHE"
_CACHE_DIRECTORY = "TORCH_NEURONX_NEFF_CACHE_DIR"
_OPTIMIZER_STEP = "optimizer step"
_NO_FALLBACK = b"TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"
_LIMIT = 256
_LONGEST_LOOP = 192  # of the last 256 operators, so that at least a quarter of them is seen twice


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
    if not workers.has_own_core(os.environ):
        api.engine().count_cores = functools.partial(core_count, os.environ)
    patches.use_own_core()
    device_functions.install(torch.get_device_module(NEURON))
    generate_methods_for_privateuse1_backend(for_storage=False)
    process_group.register()
    register_optimizer_step_post_hook(_end_step)
    patches.install()
    modules.install()
    patches.replace(torch, "compile", _compile_for_device)
    patches.replace(DeviceMesh, "__init__", _create_mesh)
    patches.choose_execution_mode()


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


def _create_mesh(create: Callable[..., None], mesh: DeviceMesh, *args: Any, **kwargs: Any) -> None:
    """Create a mesh, and prepare random numbers and attention of DTensors, which all need a mesh."""
    create(mesh, *args, **kwargs)
    if mesh.device_type == NEURON:
        from neurontools.native import dtensor  # takes a second; programs with a mesh load what it needs too

        dtensor.install()


def _compile_for_device(compile_model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compile with the backend `neuron` by default, instead of inductor, which lacks the device.

    A graph of that backend has fixed shapes: TorchDynamo must not replace the second shape that it meets by a symbol.
    Source: AWS Neuron documentation, "torch.compile backend reference".
    """
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
    if not isinstance(optimizer, torch.optim.Optimizer):
        return compiled

    @functools.wraps(compiled)
    def step(*args: Any, **kwargs: Any) -> Any:
        outcome = compiled(*args, **kwargs)
        _end_step(optimizer, args, kwargs)  # torch calls no hooks in compiled code
        return outcome

    return step


class AdaptiveFusion:
    """Fuses 256 operators; in a loop as many more as complete a repetition, so that the next graph is the same again."""

    limit = _LIMIT
    counts_recorded = True

    @staticmethod
    def is_complete(operators: Sequence[Node]) -> bool:
        """Return whether the recorded operators are to run before the next one is recorded."""
        calls = [
            (call.op, *(view and (view.dtype, view.shape) for view in call.results))
            for call in operators[-_LIMIT:]
        ]
        period = next((length for length in range(1, _LONGEST_LOOP) if calls[length:] == calls[:-length]), 1)
        return len(operators) % period == 0

    @staticmethod
    def runs_on_host(call: Node) -> bool:
        """Return whether the compiler lacks a data type of a call, and the program does not forbid the CPU for it.

        Source: AWS Neuron documentation, "Best practices for TorchNeuron", "TorchNeuron environment variables".
        """
        if env.is_one(_NO_FALLBACK):
            return False
        return api.engine().accelerator.refusal(call) is not None
