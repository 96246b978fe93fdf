"""Traced models as TorchScript holds them: one operator, `neuron::forward_v2`, and the NEFF, settings and weights it takes.

The operator finds the loaded model by the storage of the NEFF's bytes, so copies of a module are models of their own.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from neurontools.base.json_reader import load_json
from neurontools.compiler.graph import View
from neurontools.errors import NeuronToolsError
from neurontools.xla import api
from neurontools.xla.graph_values import dtype_name
from neurontools.xla.neff_executable import NeffExecutable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.accelerator import LoadedGraph

T = TypeVar("T")
FORMAT = 2
LAZY, ASYNC, DYNAMIC_BATCH, SEPARATED = range(4)
"""Positions in the settings of a model."""


class TracedModelError(NeuronToolsError, RuntimeError):
    """A traced model cannot be loaded or executed."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The border of a traced model.

    Args:
        arguments: data type and shape of each argument.
        inputs: what the graph's input slots expect.
        sources: for each of them, the argument's position, or -1 - position of the weight.
        scalars: values of the graph's scalar inputs.
        results: where the graph's results are.
        weights: names of the weights; "" for constants of the traced code.
        aliases: (weight, result) pairs: the result is the weight's value in the next execution.
    """

    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    inputs: tuple[View, ...]
    sources: tuple[int, ...]
    scalars: tuple[float, ...]
    results: tuple[View, ...]
    weights: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        stored = {
            "format": FORMAT,
            "arguments": self.arguments,
            "inputs": [_store(view) for view in self.inputs],
            "sources": self.sources,
            "scalars": [repr(scalar) for scalar in self.scalars],
            "results": [_store(view) for view in self.results],
            "weights": self.weights,
            "aliases": self.aliases,
        }
        return json.dumps(stored, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Signature:
        """Return what `to_bytes` stored.

        Raises:
            TracedModelError: the bytes are damaged or of another release.
        """
        try:
            stored = load_json(data)
            _check_format(stored["format"])
            return cls(
                arguments=tuple((str(dtype), tuple(map(int, shape))) for dtype, shape in stored["arguments"]),
                inputs=tuple(map(_load, stored["inputs"])),
                sources=tuple(map(int, stored["sources"])),
                scalars=tuple(map(_number, stored["scalars"])),
                results=tuple(map(_load, stored["results"])),
                weights=tuple(map(str, stored["weights"])),
                aliases=tuple((int(weight), int(result)) for weight, result in stored["aliases"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TracedModelError(f"not a traced model: {error!r}", "trace the model again") from error


class TracedModel:
    """A traced model in this process: on the cores it is loaded on, round-robin.

    Args:
        neff: bytes of the NEFF.
        signature: its border.
        constant_bytes: device memory of weights that are part of the NEFF.
        name: what its NEFF is called in messages.
    """

    def __init__(
        self, neff: bytes, signature: Signature, constant_bytes: int, name: str = "the traced model"
    ) -> None:
        self.signature = signature
        self._compiled = NeffExecutable(
            neff, signature.inputs, signature.scalars, signature.results, constant_bytes, name
        )
        self._lock = threading.RLock()
        self._loaded: dict[int, LoadedGraph] = {}
        self._cores: tuple[int, ...] = ()
        self._turn = itertools.count()
        self._loading: threading.Thread | None = None
        self._failure: BaseException | None = None

    def place(self, cores: Sequence[int]) -> None:
        """Load it on cores; it leaves those that are not among them."""
        with self._lock:
            for core in [core for core in self._loaded if core not in cores]:
                api.engine().accelerator.unload(self._loaded.pop(core))
            for core in cores:
                if core not in self._loaded:
                    self._loaded[core] = self._compiled.load(core)
            self._cores = tuple(cores)

    def place_later(self, cores: Sequence[int]) -> None:
        """Load it on cores in a thread; an execution waits for that, and raises what it raised."""

        def load() -> None:
            try:
                self.place(cores)
            except BaseException as error:  # noqa: BLE001 # raised by the next execution
                self._failure = error

        self._loading = threading.Thread(target=load, name="neuron-load")
        self._loading.start()

    def unload(self) -> None:
        """Take it off its cores."""
        self.place(())

    def wait(self) -> None:
        """Wait for `place_later`."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def execute(
        self, weights: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Execute it on its next core, or on the core of `on_core`, and return its results.

        Weights that hold state get its next value.
        """
        self.wait()
        with self._lock:
            core = getattr(_chosen, "core", None)
            if core is not None and core not in self._loaded:
                self.place([*self._cores, core])
            if not self._cores:
                self.place(next_cores())
            if core is None:
                core = self._cores[next(self._turn) % len(self._cores)]
            loaded = self._loaded[core]
        signature = self.signature
        tensors = [arguments[source] if source >= 0 else weights[-1 - source] for source in signature.sources]
        results = self._compiled.execute(loaded, tensors)
        for weight, result in signature.aliases:
            weights[weight].copy_(results[result])
        return results


_models: dict[int, tuple[StorageWeakRef, Any]] = {}
_models_lock = threading.Lock()
_next_core = itertools.count()
_chosen = threading.local()
_placement: list[tuple[int, ...]] = []
_recording = threading.local()


def model_of(module: Any, name: str = "the traced model") -> TracedModel:
    """Return the loaded model of a module with `neff`, `signature` and `settings`; `name` is for messages."""
    held = (*module.named_parameters(), *module.named_buffers())
    weights = [value for key, value in held if key.startswith("weight_")]
    return _find(module.neff, module.signature, module.settings, weights, name)


def submodules(module: torch.nn.Module) -> list[Any]:
    """Return the traced models within a module."""
    return [part for part in module.modules() if hasattr(part, "neff") and hasattr(part, "settings")]


def next_cores() -> tuple[int, ...]:
    """Return where the next model goes: to the cores of `placement`, or the next core, round-robin."""
    if _placement:
        return _placement[-1]
    return (next(_next_core) % api.device_count(),)


@contextmanager
def placement(cores: tuple[int, ...]) -> Iterator[None]:
    """Place the models that a block loads on cores."""
    _placement.append(cores)
    try:
        yield
    finally:
        _placement.pop()


def set_default_cores(cores: tuple[int, ...]) -> None:
    """Place the models that are loaded from now on on cores, outside of `placement`."""
    _placement[:0] = [cores]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Execute the models that this thread calls in a block on a core."""
    _chosen.core = core
    try:
        yield
    finally:
        _chosen.core = None


@contextmanager
def example_results(results: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let the operator return results without an execution, while TorchScript records its call."""
    _recording.results = list(results)
    try:
        yield
    finally:
        _recording.results = None


def start_loading(module: torch.nn.Module, name: str = "the traced model") -> None:
    """Load the models of a module that was read from the file `name`, as their settings ask for."""
    for part in submodules(module):
        if part.settings[LAZY]:
            continue
        model = model_of(part, name)
        if part.settings[ASYNC]:
            model.place_later(next_cores())
        else:
            model.place(next_cores())


def _find(
    neff: torch.Tensor,
    signature: torch.Tensor,
    settings: torch.Tensor,
    weights: Sequence[torch.Tensor],
    name: str = "the traced model",
) -> TracedModel:
    def make() -> TracedModel:
        constants = 0 if settings[SEPARATED] else sum(weight.nbytes for weight in weights)
        return TracedModel(_bytes(neff), Signature.from_bytes(_bytes(signature)), constants, name)

    return find_model(neff, make)


def find_model(neff: torch.Tensor, make: Callable[[], T]) -> T:
    """Return the model of the NEFF in a tensor, made at the first call; its `unload` is called when the tensor has ended."""
    storage = neff.untyped_storage()
    with _models_lock:
        found = _models.get(storage._cdata)  # noqa: SLF001
        if found is not None:
            model: T = found[1]
            return model
        for key in [key for key, (reference, _) in _models.items() if reference.expired()]:
            gone = _models.pop(key)[1]
            with suppress(NeuronToolsError):  # its core was given back before
                gone.unload()
        made = make()
        reference = StorageWeakRef(storage)
        _models[reference.cdata] = (reference, made)
        return made


def _forward(
    neff: torch.Tensor,
    signature: torch.Tensor,
    settings: torch.Tensor,
    weights: list[torch.Tensor],
    inputs: list[torch.Tensor],
) -> list[torch.Tensor]:
    prepared = getattr(_recording, "results", None)
    if prepared is not None:
        return [result.clone() for result in prepared]
    with torch.no_grad():
        model = _find(neff, signature, settings, weights)
        if settings[DYNAMIC_BATCH]:
            return _execute_in_chunks(model, weights, inputs)
        _check_arguments(model.signature, inputs)
        return model.execute(weights, inputs)


def _check_arguments(signature: Signature, inputs: Sequence[torch.Tensor]) -> None:
    for position, tensor in _used(signature, inputs):
        dtype, shape = signature.arguments[position]
        given = dtype_name(tensor.dtype)
        if tensor.device.type != "cpu":
            raise TracedModelError(
                f"input {position} is on {tensor.device}: traced models take CPU tensors", "call .cpu() on it"
            )
        if (given, tuple(tensor.shape)) != (dtype, shape):
            raise TracedModelError(
                f"input {position} is {given}{list(tensor.shape)}, but the model was traced with {dtype}{list(shape)}",
                "pad it, trace the model for this shape, or use torch_neuronx.dynamic_batch",
            )


def _used(signature: Signature, inputs: Sequence[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """Return the inputs that the graph reads, with their positions: programs give others any shape."""
    if len(inputs) != len(signature.arguments):
        raise TracedModelError(
            f"the traced model takes {len(signature.arguments)} tensors, not {len(inputs)}",
            "call it with the inputs it was traced with",
        )
    return [(position, inputs[position]) for position in sorted(set(signature.sources)) if position >= 0]


def _execute_in_chunks(
    model: TracedModel, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    size = traced_batch(model.signature)
    used = _used(model.signature, inputs)
    batches = {tensor.shape[0] if tensor.dim() else 0 for _, tensor in used}
    if len(batches) != 1:
        raise ValueError(f"inputs have different batch sizes: {sorted(batches)}")
    (batch,) = batches
    for position, tensor in used:
        shape = model.signature.arguments[position][1]
        if tuple(tensor.shape[1:]) != shape[1:]:
            raise ValueError(
                f"input {position} has shape {list(tensor.shape)}, but only dimension 0 of {list(shape)} may change"
            )
    collected: list[list[torch.Tensor]] = []
    for start in range(0, max(batch, 1), size):
        chunk = list(inputs)
        for position, tensor in used:
            chunk[position] = _padded(tensor[start : start + size], size)
        _check_arguments(model.signature, chunk)
        collected.append(model.execute(weights, chunk))
    aliased = {result for _, result in model.signature.aliases}
    return [
        parts[-1] if position in aliased else torch.cat(parts)[:batch]
        for position, parts in enumerate(zip(*collected, strict=True))
    ]


def traced_batch(signature: Signature) -> int:
    """Return the batch size that a model was traced with.

    Raises:
        ValueError: its inputs or results differ in dimension 0, so it cannot take other batches.
    """
    aliased = {result for _, result in signature.aliases}
    sizes = {signature.arguments[source][1][:1] for source in signature.sources if source >= 0}
    sizes |= {view.shape[:1] for position, view in enumerate(signature.results) if position not in aliased}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError("dynamic batching needs inputs and results of the same size in dimension 0")
    return int(sizes.pop()[0])


def _padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    missing = size - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def _check_format(found: Any) -> None:
    if found != FORMAT:
        raise ValueError(f"format {found!r}")


def _number(text: str) -> Any:  # int, float or complex
    if text.endswith(("j", "j)")):
        return complex(text)
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _store(view: View) -> list[Any]:
    return [view.slot, view.dtype, view.shape, view.strides, view.offset]


def _load(stored: Sequence[Any]) -> View:
    slot, dtype, shape, strides, offset = stored
    view = View(int(slot), str(dtype), tuple(map(int, shape)), tuple(map(int, strides)), int(offset))
    if not isinstance(getattr(torch, view.dtype, None), torch.dtype):
        raise TypeError(f"unknown data type {view.dtype!r}")
    if min(view.slot, view.offset, *view.shape, *view.strides) < 0 or len(view.shape) != len(view.strides):
        raise ValueError("a size, stride or offset is invalid")
    return view


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.jit.load that loads the traced models of what it reads."""

    @functools.wraps(load)
    def load_and_place(*args: Any, **kwargs: Any) -> Any:
        module = load(*args, **kwargs)
        file = kwargs.get("f", *args[:1])
        start_loading(
            module, f"the NEFF in {file}" if isinstance(file, str | PathLike) else "the traced model"
        )
        return module

    return load_and_place


_library = torch.library.Library("neuron", "DEF")
_library.define(
    "forward_v2(Tensor neff, Tensor signature, Tensor settings, Tensor[] weights, Tensor[] inputs) -> Tensor[]"
)
_library.impl("forward_v2", _forward, "CompositeExplicitAutograd")
torch.jit.load = _loading(torch.jit.load)
