"""torch_neuronx.trace: a function compiled ahead of time into a TorchScript module.

Source: AWS Neuron documentation, "PyTorch NeuronX Tracing API for Inference".
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from neurontools.base.files import write_atomic
from neurontools.compat import traced_model, traced_results
from neurontools.compat.traced_model import Signature, TracedModelError
from neurontools.compiler.work import written
from neurontools.xla.device_name import device_name
from neurontools.xla.graph_values import dtype_name
from neurontools.xla.neff_checks import unlisted_operators
from neurontools.xla.neff_executable import ExportedGraph, compile_exported, export_graph

if TYPE_CHECKING:
    from neurontools.compiler.graph import View

Function = Callable[..., Any]
_log = logging.getLogger("neurontools.xla")


def trace(
    func: Function,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Mapping[torch.Tensor, int] | None = None,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> torch.jit.ScriptModule:
    """Compile a function for fixed shapes and return it as a TorchScript module of one operator.

    Args:
        func: a module or function of tensors.
        example_inputs: a tensor, or a tuple of what `func` takes: tensors, and containers of tensors.
        input_output_aliases: parameters or buffers that hold state, each with the position of the result that is its next
            value. Such results are returned too.
        compiler_workdir: directory that gets the NEFF, `graph.neff`.
        compiler_args: flags of the compiler.
        partitioner_config: a `PartitionerConfig`; without effect, as all operators run on the device.
        inline_weights_to_neff: whether weights belong to the NEFF; otherwise `replace_weights` can change them.
        cpu_backend: whether the model is only compiled, for the `--target` among the flags, and not loaded.

    Raises:
        TracedModelError: positional extra arguments, or an invalid partitioner, were given.
        CompileError: the shape of a tensor depends on values, or the compiler refuses the graph or a flag.
    """
    if _ or not isinstance(partitioner_config, PartitionerConfig | None):
        raise TracedModelError(
            "torch_neuronx.trace takes keyword arguments after example_inputs, and a PartitionerConfig or None as "
            "partitioner_config",
            "name the arguments",
        )
    flags = shlex.split(compiler_args) if isinstance(compiler_args, str) else list(compiler_args or ())
    if cpu_backend and not any(flag.startswith("--target") for flag in flags):
        raise TracedModelError("cpu_backend needs a --target", "compiler_args='--target trn1'")
    recording = Recording(func, example_inputs)
    exported = recording.export()
    neff = compile_exported(exported.graph, flags)
    for operator in unlisted_operators(exported.graph):
        _log.warning(
            "the traced model calls %s, so only this process can run it: others refuse its NEFF", operator
        )
    if compiler_workdir is not None:
        os.makedirs(compiler_workdir, exist_ok=True)
        write_atomic(os.path.join(compiler_workdir, "graph.neff"), neff)
    module = recording.build(neff, exported, input_output_aliases or {}, inline_weights_to_neff)
    if not cpu_backend:
        traced_model.start_loading(module)
    return module


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionerConfig:
    """Which part of a model runs on the CPU, on real machines: operators without support. Here no operator does.

    Source: AWS Neuron documentation, "PyTorch NeuronX Tracing API for Inference".

    Args:
        trace_kwargs: arguments of `trace` for each part.
        model_support_percentage_threshold: the smallest part of supported operators, from 0 to 1.
        min_subgraph_size: fewest operators of a part; -1 for no limit.
        max_subgraph_count: most parts; -1 for no limit.
        ops_to_partition: names of further operators for the CPU.
        analyze_parameters: arguments of `analyze`.
    """

    trace_kwargs: Mapping[str, Any] | None = None
    model_support_percentage_threshold: float = 0.5
    min_subgraph_size: int = -1
    max_subgraph_count: int = -1
    ops_to_partition: Collection[str] | None = None
    analyze_parameters: Mapping[str, Any] | None = None


class NeuronModule(torch.nn.Module):  # type: ignore[misc]
    """What TorchScript stores of a traced model.

    Args:
        neff: bytes of the NEFF.
        signature: its border.
        weights: contents of its weights. Those that hold state become parameters, in the order of the aliases: programs
            read and write the state there.
        separated: whether the weights are not part of the NEFF.

    `rebuild` makes the function's result from the graph's results.
    """

    rebuild: Callable[[list[torch.Tensor]], Any]

    def __init__(
        self, neff: bytes, signature: Signature, weights: Sequence[torch.Tensor], separated: bool
    ) -> None:
        super().__init__()
        self.register_buffer("neff", torch.frombuffer(bytearray(neff), dtype=torch.uint8))
        stored = torch.frombuffer(bytearray(signature.to_bytes()), dtype=torch.uint8)
        self.register_buffer("signature", stored)
        self.register_buffer("settings", torch.tensor([0, 0, 0, int(separated)]))
        state = [position for position, _ in signature.aliases]
        for position in state:
            held = torch.nn.Parameter(weights[position], requires_grad=False)
            self.register_parameter(f"weight_{position}", held)
        for position, weight in enumerate(weights):
            if position not in state:
                self.register_buffer(f"weight_{position}", weight)
        self._count = len(weights)

    def forward(self, *inputs: Any) -> Any:
        """Run the NEFF on CPU tensors."""
        weights = [getattr(self, f"weight_{position}") for position in range(self._count)]
        leaves = tree_flatten(inputs)[0]
        results = torch.ops.neuron.forward_v2(self.neff, self.signature, self.settings, weights, leaves)
        return self.rebuild(list(results))


class Recording:
    """One function on the way to a traced module.

    Args:
        func: a module or function of tensors.
        example_inputs: a tensor, or a tuple of what `func` takes.
        names: the names of the arguments, if `func` takes them by name.
        finds_state: whether parameters and buffers that the function changes hold state.
    """

    structure: Any

    def __init__(
        self, func: Function, example_inputs: Any, names: Sequence[str] = (), *, finds_state: bool = False
    ) -> None:
        self._func = func
        self._names = names
        self._finds_state = finds_state
        self._examples = (
            tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
        )
        self.arguments, self._arguments_spec = tree_flatten(self._examples)
        for argument in self.arguments:
            if not isinstance(argument, torch.Tensor):
                raise TracedModelError(
                    f"example_inputs contain a {type(argument).__name__}: traced functions take tensors",
                    "set other arguments in a wrapper of the function",
                )
        self.arguments = [argument.detach().cpu() for argument in self.arguments]
        self.sources = _named_tensors(func)
        self.weights: dict[int, torch.Tensor] = {}
        self._replaced: dict[int, torch.Tensor] = {}
        self._values: list[Any] | None = None

    def export(self) -> ExportedGraph:
        """Record the function; if it reads values, once more with those that it reads on the CPU."""
        try:
            return self._export()
        except _ValueNeeded:
            self._read_on_cpu()
            return self._export()

    def _export(self) -> ExportedGraph:
        self.weights = {id(tensor): tensor.detach().to(device_name()) for tensor in self.sources.values()}
        return export_graph(self._run, self.arguments, list(self.weights.values()))

    def _run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the function on the device and return its results, flat."""
        arguments = tree_unflatten(list(tensors), self._arguments_spec)
        outcome = self._call(arguments, self.weights, _OnDevice(dict(self.weights), self._values))
        results, self.structure = traced_results.take_apart(outcome)
        return [*results, *self._replaced.values()]

    def _read_on_cpu(self) -> None:
        """Call the function on the CPU and keep the values that it reads."""
        reading = _ReadValues()
        arguments = tree_map(lambda leaf: leaf.detach().clone(), self._examples)
        self._call(arguments, {id(t): t.detach().clone() for t in self.sources.values()}, reading)
        self._values = reading.values

    def _call(
        self, arguments: Sequence[Any], weights: dict[int, torch.Tensor], mode: TorchFunctionMode
    ) -> Any:
        with torch.no_grad(), _traced_code(), _with_tensors(self._func, weights):
            with mode:
                if self._names:
                    outcome = self._func(**dict(zip(self._names, arguments, strict=True)))
                else:
                    outcome = self._func(*arguments)
            if self._finds_state:
                self._replaced = self._replaced_tensors()
            return outcome

    def _replaced_tensors(self) -> dict[int, torch.Tensor]:
        """Return what the function has put in the place of parameters and buffers, by the id of the original."""
        now = _named_tensors(self._func)
        return {
            id(source): now[name]
            for name, source in self.sources.items()
            if now.get(name) is not None and now[name] is not self.weights.get(id(source))
        }

    def build(
        self,
        neff: bytes,
        exported: ExportedGraph,
        aliases: Mapping[torch.Tensor, int],
        inline: bool,
    ) -> torch.jit.ScriptModule:
        """Return the TorchScript module."""
        signature, weights = self.border(exported, aliases)
        copies = [weight.detach().cpu().clone() for weight in weights]
        return self._script(NeuronModule(neff, signature, copies, not inline), signature)

    def border(
        self, exported: ExportedGraph, aliases: Mapping[torch.Tensor, int]
    ) -> tuple[Signature, list[torch.Tensor]]:
        """Return the border of the recorded graph, and its weights: the function's own, and constants on the host.

        Raises:
            TracedModelError: an alias names a tensor or a result that does not exist.
        """
        names = self._names_of_weights()
        weights: list[torch.Tensor] = []
        weight_names: list[str] = []
        sources = []
        for given in exported.inputs:
            if given.value is None:
                sources.append(given.argument)
                continue
            sources.append(-1 - len(weights))
            name = names.get(id(given.origin), "")
            weight_names.append(name)
            weights.append(self.sources[name] if name else given.value)
        results = exported.results
        state = {**aliases}
        if self._finds_state:
            changed, results = self._state(exported)
            state.update(changed)
        for name in self._names_of_state(state):
            if name not in weight_names:  # its first use is a result: the graph does not read it
                weight_names.append(name)
                weights.append(self.sources[name])
        signature = Signature(
            arguments=tuple((dtype_name(t.dtype), tuple(t.shape)) for t in self.arguments),
            inputs=tuple(given.geometry for given in exported.inputs),
            sources=tuple(sources),
            scalars=exported.scalars,
            results=results,
            weights=tuple(weight_names),
            aliases=self._aliases(state, weight_names, results),
        )
        return signature, weights

    def _state(self, exported: ExportedGraph) -> tuple[dict[torch.Tensor, int], tuple[View, ...]]:
        """Return the tensors that the function changes with the results that are their next values, and all results."""
        sources = {id(source): source for source in self.sources.values()}
        of_weight = {id(self.weights[number]): source for number, source in sources.items()}
        first = len(exported.results) - len(self._replaced)
        state = {sources[number]: first + place for place, number in enumerate(self._replaced)}
        changed = {view.slot for node in exported.graph.nodes for view in written(node)}
        results = list(exported.results)
        for given in exported.inputs:
            source = of_weight.get(id(given.origin))
            if source is not None and source not in state and given.geometry.slot in changed:
                state[source] = len(results)
                results.append(given.geometry)
        return state, tuple(results)

    def _script(self, module: NeuronModule, signature: Signature) -> torch.jit.ScriptModule:
        is_traceable = traced_results.is_traceable(self.structure)
        module.rebuild = partial(traced_results.put_together, self.structure) if is_traceable else list
        examples = [torch.zeros(view.shape, dtype=getattr(torch, view.dtype)) for view in signature.results]
        script = _script(module, self._examples, examples)
        return script if is_traceable else traced_results.with_structure(script, self.structure)

    def _names_of_weights(self) -> dict[int, str]:
        """Return the first name of each weight by the id of its device tensor."""
        names: dict[int, str] = {}
        for name, source in self.sources.items():
            names.setdefault(id(self.weights[id(source)]), name)
        return names

    def _names_of_state(self, aliases: Mapping[torch.Tensor, int]) -> list[str]:
        """Return the names of the tensors that hold state, in the order of the aliases."""
        names: dict[int, str] = {}
        for name, source in self.sources.items():
            names.setdefault(id(source), name)
        if any(id(tensor) not in names for tensor in aliases):
            raise TracedModelError(
                "input_output_aliases names a tensor that the traced module does not use",
                "register it as a parameter or buffer of the module",
            )
        return [names[id(tensor)] for tensor in aliases]

    def _aliases(
        self, aliases: Mapping[torch.Tensor, int], names: Sequence[str], results: Sequence[View]
    ) -> tuple[tuple[int, int], ...]:
        found = []
        for name, (tensor, result) in zip(self._names_of_state(aliases), aliases.items(), strict=True):
            given = next(iter(results[result : result + 1]), None)
            wanted = (dtype_name(tensor.dtype), tuple(tensor.shape))
            if given is None or (given.dtype, given.shape) != wanted:
                has = "no such result" if given is None else f"a {given.dtype}{list(given.shape)}"
                raise TracedModelError(
                    f"input_output_aliases gives {name!r}, {wanted[0]}{list(wanted[1])}, the position {result}: {has}",
                    "count the function's results from 0, those of nested containers too",
                )
            found.append((names.index(name), int(result)))
        return tuple(found)


_READS = frozenset(
    {
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy),
        *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__),
        *(torch.is_nonzero, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose),
    }
)
"""Functions that give a program the values of tensors."""


class _ValueNeeded(Exception):  # noqa: N818 # never leaves this module
    """The function reads a value while it is recorded."""


class _ReadValues(TorchFunctionMode):  # type: ignore[misc]
    """Collects the values that a function reads, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _READS:
            self.values.append(result)
        return result


class _OnDevice(TorchFunctionMode):  # type: ignore[misc]
    """Runs a function for the recording.

    CPU tensors that meet device tensors in a call, such as weights of a closure, move to the device. Reading a value
    gives what the same read gave on the CPU, so control flow is that of the example inputs.

    Args:
        moved: device tensors by the id of the CPU tensors that they are copies of.
        values: what the function reads, in order; None when that is not known yet.
    """

    def __init__(self, moved: dict[int, torch.Tensor], values: list[Any] | None) -> None:
        super().__init__()
        self._moved = moved
        self._kept: list[torch.Tensor] = []
        self._values = None if values is None else iter(values)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            if self._values is None:
                raise _ValueNeeded
            return next(self._values)
        options = dict(kwargs or {})
        leaves = tree_flatten((args, options))[0]
        if any(isinstance(leaf, torch.Tensor) and leaf.device.type == device_name() for leaf in leaves):
            args, options = tree_map(self._move, (tuple(args), options))
        return func(*args, **options)

    def _move(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu" or leaf.dim() == 0:
            return leaf
        if id(leaf) not in self._moved:
            self._kept.append(leaf)  # keeps its id
            self._moved[id(leaf)] = leaf.detach().to(device_name())
        return self._moved[id(leaf)]


@contextmanager
def _traced_code() -> Iterator[None]:
    """Run code as code that is traced: libraries ask torch.jit.is_tracing before they look at values."""
    asks, fast = torch.jit.is_tracing, torch.backends.mha.get_fastpath_enabled()
    rounding = {name: getattr(torch, name) for name in ("ceil", "floor", "round")}
    torch.jit.is_tracing = _is_asked_by_library
    for name, function in rounding.items():  # of sizes, which are tensors where torch.jit.trace runs
        setattr(torch, name, partial(_rounded, function, getattr(math, name, round)))
    torch.backends.mha.set_fastpath_enabled(value=False)  # its kernels take whole layers, as nested tensors
    try:
        yield
    finally:
        torch.jit.is_tracing = asks
        for name, function in rounding.items():
            setattr(torch, name, function)
        torch.backends.mha.set_fastpath_enabled(value=fast)


def _rounded(of_tensor: Function, of_number: Function, value: Any, *args: Any, **options: Any) -> Any:
    return of_number(value) if isinstance(value, int | float) else of_tensor(value, *args, **options)


def _is_asked_by_library() -> bool:
    # torch itself would take the paths of its own tracer, which does not run here.
    asking: str = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001
    return asking.partition(".")[0] != "torch"


@contextmanager
def _with_tensors(func: Function, tensors: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Give a module other parameters and buffers, by the id of its own; afterwards all its attributes are as before.

    A parameter or a submodule may have several names, and `forward` may fill buffers that are None.
    """
    parts = list(func.modules()) if isinstance(func, torch.nn.Module) else []
    before = [(vars(part), dict(vars(part))) for part in parts]
    try:
        for part in parts:
            for table in ("_parameters", "_buffers"):
                own = vars(part)[table]
                vars(part)[table] = {name: tensors.get(id(tensor), tensor) for name, tensor in own.items()}
        yield
    finally:
        for attributes, kept in before:
            attributes.clear()
            attributes.update(kept)


def _named_tensors(func: Function) -> dict[str, torch.Tensor]:
    if not isinstance(func, torch.nn.Module):
        return {}
    return {
        **dict(func.named_parameters(remove_duplicate=False)),
        **dict(func.named_buffers(remove_duplicate=False)),
    }


def _script(
    module: NeuronModule, examples: tuple[Any, ...], results: Sequence[torch.Tensor]
) -> torch.jit.ScriptModule:
    with warnings.catch_warnings(), traced_model.example_results(results):
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, examples, strict=False, check_trace=False)
