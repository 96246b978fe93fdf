"""Names of the real packages: which the shims lack and what to use instead, and which have limits."""

# ruff: noqa: ARG002
# Stand-ins take the arguments of the real names.

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from neurontools.base.text import suggest
from neurontools.errors import NeuronToolsError
from neurontools.native.names import missing_name_error

if TYPE_CHECKING:
    from collections.abc import Callable

_TORCHVISION = "pip install torchvision"
_PROFILE = "neuron-run --profile DIR"
_STABLEHLO = "neuron-packager info, which shows the graph of a NEFF"
_DEVICE = "torch_xla.device"
_PROFILER = "torch_neuronx.experimental.profiler"
_CUSTOM_OPERATORS = "torch_neuronx.xla_impl.custom_op"
_TRACE = "torch_neuronx.trace"
_ACCEPTED = "accepted, without effect"
UNSUPPORTED: dict[str, dict[str, str]] = {
    "torch_xla": {
        "set_custom_compile_options": "NEURON_CC_FLAGS",
        "save_as_stablehlo": _STABLEHLO,
        "save_torch_model_as_stablehlo": _STABLEHLO,
        "tpu": "torch_xla.runtime",
    },
    "libneuronxla": {
        "supported_clients": "torch_xla.runtime",
    },
    "torch_xla.core.functions": {"SyncBatchNorm": "all_reduce"},
    "torch_xla.core.xla_model": {
        "CoalescingBuckets": "all_gather_bucketized, reduce_scatter_bucketized",
        "DeviceContext": _DEVICE,
        "MemoryInfo": "get_memory_info",
        "get_stablehlo": _STABLEHLO,
        "get_stablehlo_bytecode": _STABLEHLO,
        "recv": "collective_permute",
        "send": "collective_permute",
    },
    "torch_xla.debug.profiler": {
        "get_tracer_marked_step": "torch_xla.debug.metrics.counter_value('MarkStep')",
        "set_tracer_marked_step": "torch_xla.sync",
        "start_server": "start_trace",
        "trace": "start_trace",
        "trace_detached": "start_trace",
    },
    "torch_xla.distributed.parallel_loader": {
        "PerDeviceLoader": "MpDeviceLoader",
        "PerDeviceQueue": "MpDeviceLoader",
    },
    "torch_xla.distributed.spmd": {
        **dict.fromkeys(("HybridMesh", "ShardingType"), "Mesh"),
        **dict.fromkeys(
            (
                *("XLAShard", "XLAShardedTensor", "annotate_custom_sharding", "auto_policy", "shard_as"),
                *("disable_manual_sharding", "enable_manual_sharding", "mark_sharding_with_gradients"),
                *("wrap_if_sharded", "xla_distribute_module", "xla_distribute_tensor"),
            ),
            "mark_sharding",
        ),
        **dict.fromkeys(
            ("XLAPatchedLinear", "apply_backward_optimization_barrier", "xla_patched_nn_linear_forward"),
            "torch.nn.Linear",
        ),
    },
    "torch_xla.distributed.xla_backend": {
        "new_xla_process_group": "torch.distributed.new_group",
    },
    "torch_xla.distributed.xla_multiprocessing": {"create_optimized_replica_groups": ""},
    "torch_xla.utils.checkpoint": {
        "CheckpointFunction": "checkpoint",
        "get_device_states": "torch_xla.core.xla_model.get_rng_state",
        "set_device_states": "torch_xla.core.xla_model.set_rng_state",
    },
    "torch_xla.utils.utils": {"Cleaner": "weakref.finalize", "DataWrapper": "a dataclass of tensors"},
    "torch_neuronx": {
        "parallel_compile": "neuron_parallel_compile",
        "profiler": _PROFILER,
    },
    "neuronxcc.nki.nccl": dict.fromkeys(
        ("all_gather", "all_reduce", "collective_permute", "reduce_scatter"), "nki.collectives"
    ),
    "torchvision": dict.fromkeys(("io", "models", "ops", "utils"), _TORCHVISION),
    "torchvision.transforms": dict.fromkeys(("InterpolationMode", "functional", "v2"), _TORCHVISION),
    "torchvision.datasets": dict.fromkeys(("CIFAR10", "FashionMNIST", "ImageFolder"), _TORCHVISION),
}
"""By module."""
UNSUPPORTED_MODULES: dict[str, str] = {
    "torch_neuronx.parallel_compile": "neuron_parallel_compile",
    "torch_neuronx.distributed": "torch_xla.distributed",
    "libneuronxla.neuron_cc_wrapper": "neuron_parallel_compile",
    "neuronxcc": _TRACE,
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla.core.xla_builder": "torch_xla.compile",
    "torch_xla.core.xla_op_registry": "torch_neuronx.xla_impl.custom_op",
    "torch_xla.debug.graph_saver": _STABLEHLO,
    "torch_xla.debug.metrics_compare_utils": "torch_xla.debug.metrics",
    "torch_xla.debug.metrics_saver": "torch_xla.debug.metrics.metrics_report",
    "torch_xla.debug.model_comparator": "torch.testing.assert_close",
    "torch_xla.distributed.data_parallel": "torch_xla.launch",
    "torch_xla.distributed.spmd.api": "torch_xla.distributed.spmd",
    "torch_xla.distributed.spmd.xla_sharding": "torch_xla.distributed.spmd",
    "torch_xla.experimental.distributed_checkpoint": "torch_xla.utils.serialization",
    "torch_xla.experimental.gradient_accumulation": "torch_xla.compile",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.experimental.scan": "torch_xla.compile",
    "torch_xla.experimental.scan_layers": "torch_xla.compile",
    "torch_xla.stablehlo": _STABLEHLO,
    "torch_xla.utils.closures": "torch_xla.core.xla_model.add_step_closure",
    "torch_xla.utils.dlpack": "Tensor.cpu",
    "torch_xla.utils.keyd_queue": "queue.Queue",
    "torchvision.io": _TORCHVISION,
    "torchvision.models": _TORCHVISION,
    "torchvision.ops": _TORCHVISION,
    "torchvision.utils": _TORCHVISION,
}
"""Modules and packages that the shims lack; a package stands for its modules too."""
IMPORT_ONLY: dict[str, str] = {
    "neuronxcc.nki": "neuronxcc.nki.jit",
    "nkilib": _CUSTOM_OPERATORS,
    "torch.classes.neuron": _TRACE,
    "torch_neuronx.xla_impl.bucket_trace": "torch_neuronx.bucket_model_trace",
}
"""Modules and names that can be imported, but not used; a module stands for its names and modules too."""
LIMITS: dict[str, dict[str, str]] = {
    "torch_neuronx": {
        "BucketModelConfig": "without `shared_state_buffer`",
        "nki_op": "registers a custom operator of torch, whose function may call kernels of NKI",
        "PartitionerConfig": _ACCEPTED,
    },
    "libneuronxla": {"register_hlo_snapshot_callback": _ACCEPTED},
    "torch_xla": {
        "compile": "`custom_compile_options` is refused; `full_graph` raises after the read",
        "sync": "graphs run synchronously, so `wait` changes nothing",
    },
    "torch_xla.core.xla_model": {
        "add_step_closure": "`run_async` closures run synchronously",
        "get_ordinal": "removed in torch_xla 2.7",
        "optimization_barrier_": _ACCEPTED,
        "xrt_world_size": "removed in torch_xla 2.7",
    },
    "torch_xla.distributed.parallel_loader": {
        "MpDeviceLoader": "batches are read when they are needed: prefetch sizes have no effect",
        "ParallelLoader": "one device",
    },
    "torch_xla.distributed.spmd": dict.fromkeys(
        ("Mesh", "ShardingSpec", "get_1d_mesh", "mark_sharding"), "meshes of one device"
    ),
    "torch_xla.runtime": {
        "initialize_cache": "sets `NEURON_COMPILE_CACHE_URL`; `readonly` is refused",
        "set_device_type": "NEURON alone",
        "use_spmd": "without `auto`",
    },
    "torch_xla.utils.checkpoint": {"checkpoint": "torch's implementation"},
    "torch_xla.utils.utils": {
        "for_each_instance_rewrite": "containers keep their types",
    },
}
"""Notes on supported names, by module."""
_DECORATORS = frozenset({"baremetal", "benchmark", "jit", "nki_jit", "profile"})
"""Names that are called without a function to get a decorator."""
_OF_KERNELS = frozenset({"neuronxcc", "nki", "nkilib"})
"""Packages whose classes are options of kernels: libraries make such objects as defaults of their own options."""

_NKI = ("nki", "neuronxcc.nki")


def missing_name(module: str, name: str, caller: FrameType | None = None) -> NoReturn:
    """Raise the error of a name that a shim module lacks; called by the module's `__getattr__`.

    Raises:
        ImportError: `from module import name`, which would replace the text of an AttributeError.
        AttributeError: any other use.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    raise missing_name_error(module, name, _hint(module, name), caller or sys._getframe(2))  # noqa: SLF001


def missing_names(module: str) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a shim module, which raises the errors of `missing_name`."""

    def missing(name: str) -> NoReturn:
        missing_name(module, name, sys._getframe(1))  # noqa: SLF001

    return missing


def explain_module(name: str) -> None:
    """Raise the error of a module that the shims lack, if they know what replaces it.

    Raises:
        ModuleNotFoundError: the module belongs to the real package.
    """
    for known in (name, name.rpartition(".")[0]):
        if known in UNSUPPORTED_MODULES:
            raise ModuleNotFoundError(
                f"No module named {name!r}: not simulated; {_instead(UNSUPPORTED_MODULES[known])}", name=name
            )


def _hint(module: str, name: str) -> str:
    if module.removeprefix(f"{__package__}.").startswith(_NKI):
        from neurontools.nki.generations import foreign_name

        foreign = foreign_name(name, in_first="neuronxcc" in module)
        if foreign:
            return f": it belongs to {foreign[0]}; here: {foreign[1]}"
    if name in UNSUPPORTED.get(module, {}):
        return f": not simulated; {_instead(UNSUPPORTED[module][name])}"
    loaded = sys.modules.get(module)
    near = suggest(name, [known for known in vars(loaded or object) if not known.startswith("_")])
    return f": not simulated; nearest supported name: {near}" if near else ""


def _instead(nearest: str) -> str:
    return f"nearest supported name: {nearest}" if nearest else "nothing here replaces it"


class NotSimulatedError(NeuronToolsError, NotImplementedError):
    """A program uses a name that can only be imported."""


def find_import_only(name: str) -> ModuleSpec | None:
    """Return the spec of a module that can only be imported, None for other modules."""
    return ModuleSpec(name, _Loader(), is_package=True) if nearest_name(name) is not None else None


def nearest_name(name: str) -> str | None:
    """Return what replaces a module, by the closest package above it that is known; None for other modules."""
    known = name
    while known and known not in IMPORT_ONLY:
        known = known.rpartition(".")[0]
    return IMPORT_ONLY.get(known)


def stand_in(module: str, name: str) -> StandIn | None:
    """Return the stand-in for a name of a simulated module that can only be imported, None for other names."""
    nearest = IMPORT_ONLY.get(f"{module}.{name}")
    return None if nearest is None else StandIn(f"{module}.{name}", nearest)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ImportOnlyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class ImportOnlyModule(ModuleType):
    """A module that has every name, each of them a `StandIn`."""

    __import_only__ = True

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        is_configuration = self.__name__.partition(".")[0] in _OF_KERNELS and name[0].isupper()
        return StandIn(f"{self.__name__}.{name}", nearest_name(self.__name__) or "", is_configuration)


class StandIn(str):  # noqa: SLOT000 # attributes of their own
    """A name that can be imported, decorate a function, and stand in an annotation. A call raises `NotSimulatedError`.

    Members of enumerations are such names too: options of libraries, which compare, copy, pickle and write them.

    Args:
        name: what the error says.
        nearest: what to use instead.
        is_configuration: whether a call makes options of a kernel, which no kernel reads.
    """

    _nearest: str
    _is_configuration: bool

    def __new__(cls, name: str, nearest: str = "", is_configuration: bool = False) -> Self:
        """Return the stand-in for a name."""
        made = super().__new__(cls, name)
        made._nearest, made._is_configuration = nearest, is_configuration
        return made

    @property
    def _name(self) -> str:
        return str.__str__(self)

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same name; libraries compare a text with the last part, such as `HI_LO`."""
        name = self._name
        if isinstance(other, StandIn):
            return name == other._name
        return other in (name, name.rpartition(".")[2])

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return f"<{self._name}, import only>"

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("_"):
            raise AttributeError(f"{self._name} has no attribute {name!r}", name=name)
        return StandIn(f"{self._name}.{name}", self._nearest)

    def __call__(self, *args: Any, **options: Any) -> StandIn:
        """Return a stand-in for the decorated function, for the decorator, or for options.

        Raises:
            NotSimulatedError: any other call.
        """
        if len(args) == 1 and isinstance(args[0], FunctionType | StandIn):
            return StandIn(_name_of(args[0]), self._nearest)
        if self._is_configuration:
            return StandIn(self._name, self._nearest)
        if not args and self._name.rpartition(".")[2] in _DECORATORS:
            return self
        raise self._refusal()

    def __getitem__(self, key: Any) -> StandIn:
        """Return this: `kernel[grid]`, and `tensor[shape]` in annotations."""
        return self

    def __or__(self, other: Any) -> StandIn:
        """Return this: `name | None` in annotations."""
        return self

    __ror__ = __or__

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __iter__(self) -> NoReturn:
        raise self._refusal()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> NotSimulatedError:
        return NotSimulatedError(f"{self._name} is not simulated; nearest supported name: {self._nearest}")


def _name_of(decorated: FunctionType | StandIn) -> str:
    return decorated.__qualname__ if isinstance(decorated, FunctionType) else str(decorated)
