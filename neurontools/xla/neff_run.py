"""Executes a NEFF file by itself, on given or zero inputs, under the rules for NEFFs of other processes."""

from __future__ import annotations

import io
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.compiler.graph import Lifted, View, reads
from neurontools.compiler.neff import parse
from neurontools.errors import NeuronToolsError
from neurontools.runtime.host_activity import note_execution, report_step
from neurontools.runtime.status import NrtError
from neurontools.xla.neff_executable import NeffExecutable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.graph import Graph

_SHOWN = 8


class NeffRunError(NeuronToolsError):
    """A NEFF cannot be executed with these inputs, or its results differ."""


@dataclass(frozen=True, slots=True)
class NeffRun:
    """What the executions of a NEFF gave.

    Args:
        results: the outputs of the last execution by name, as `neuron-packager` lists them.
        failures: executions that failed.
    """

    results: Mapping[str, torch.Tensor]
    failures: int


def execute_neff(
    neff: bytes,
    inputs: Mapping[str, bytes],
    *,
    executions: int = 1,
    ignore_errors: bool = False,
    check_determinism: bool = False,
    name: str = "the NEFF",
) -> NeffRun:
    """Load a NEFF on the first core of this process and execute it; each execution is a step of a profile.

    Args:
        neff: its bytes.
        inputs: contents of inputs by name; the others are zeros, and scalar inputs are 1.
        executions: how often.
        ignore_errors: go on after an execution that fails.
        check_determinism: compare the results of all executions.
        name: what it is called in messages.

    Raises:
        NeffRunError: an input does not exist or has another size, or the results of two executions differ.
        NeuronToolsError: the NEFF is damaged, or calls what a NEFF may not call; there is no machine.
        NrtError: an execution fails.
    """
    graph = parse(neff).graph
    views = tuple(whole_view(graph, slot) for slot in graph.inputs)
    outputs = tuple(whole_view(graph, slot) for slot in graph.outputs)
    tensors = _contents(views, inputs, name)
    executable = NeffExecutable(neff, views, plain_scalars(graph), outputs, name=name)
    loaded = executable.load(0)
    failures, first = 0, None
    results: Sequence[torch.Tensor] = ()
    for number in range(1, executions + 1):
        start_ns = time.monotonic_ns()
        try:
            results = executable.execute(loaded, tensors)
        except NrtError:
            if not ignore_errors:
                raise
            failures += 1
        except NeuronToolsError:
            raise
        except Exception as error:  # torch's kernels refuse values, such as an index outside of its tensor
            if is_of_handler(error):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise NeffRunError(
                f"{name} fails: {reason}", "give contents of its inputs that it can compute with"
            ) from error
        else:
            checksum = [zlib.crc32(_bytes(result)) for result in results]
            first = first or checksum
            if check_determinism and checksum != first:
                raise NeffRunError(
                    f"{name}: execution {number} gave other results than the first",
                    "its random numbers or custom operators depend on more than the inputs",
                )
        note_execution()
        report_step(start_ns, "execution", "")
    names = [_name(slot) for slot in graph.outputs]
    return NeffRun(dict(zip(names, results, strict=False)), failures)


def _name(slot: int) -> str:
    """Return the name of a tensor in the NEFF's own list."""
    return f"slot{slot}"


def whole_view(graph: Graph, slot: int) -> View:
    """Return a buffer as one row of the data type in which it is used first."""
    nbytes = graph.slots[slot].nbytes
    dtype = next(
        (
            view.dtype
            for node in graph.nodes
            for view in (*reads(node), *node.results)
            if view is not None and view.slot == slot
        ),
        "uint8",
    )
    return View(slot, dtype, (nbytes // getattr(torch, dtype).itemsize,), (1,), 0)


def plain_scalars(graph: Graph) -> tuple[float, ...]:
    """Return 1 for each scalar input: zeros would divide by zero where a program passes a learning rate or a count.

    It is a whole number where it meets whole numbers only, as a float would give results of another type.
    """
    scalars: list[float] = [1.0] * graph.lifted
    for node in graph.nodes:
        views = [view for view in node.results if view is not None] or reads(node)
        if views and all("int" in view.dtype or view.dtype == "bool" for view in views):
            for arg in (*node.args, *(value for _, value in node.kwargs)):
                for item in arg if isinstance(arg, tuple) else (arg,):
                    if isinstance(item, Lifted):
                        scalars[item.index] = 1
    return tuple(scalars)


def _contents(views: Sequence[View], inputs: Mapping[str, bytes], name: str) -> list[torch.Tensor]:
    names = [_name(view.slot) for view in views]
    unknown = sorted(set(inputs) - set(names))
    if unknown:
        known = f"its inputs are {', '.join(names[:_SHOWN])}" if names else "it has no inputs"
        raise NeffRunError(f"{name} has no input {unknown[0]}", known)
    found = []
    for given, view in zip(names, views, strict=True):
        tensor = torch.zeros(view.shape, dtype=getattr(torch, view.dtype))
        data = inputs.get(given)
        if data is not None:
            nbytes = tensor.numel() * tensor.itemsize
            if len(data) != nbytes:
                raise NeffRunError(
                    f"{given} of {name} takes {nbytes} bytes, the file has {len(data)}",
                    f"give raw {view.dtype} values",
                )
            tensor = torch.frombuffer(bytearray(data), dtype=tensor.dtype) if nbytes else tensor
        found.append(tensor)
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def raw_bytes(results: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the results as they lie in memory."""
    return {name: _bytes(tensor) for name, tensor in results.items()}


def npy_bytes(results: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the results as files of numpy, which has no bfloat16 and no 8-bit floats.

    Raises:
        NeffRunError: numpy does not have the data type of a result.
    """
    import numpy as np

    found = {}
    for name, tensor in results.items():
        try:
            array = tensor.detach().numpy()
        except TypeError as error:
            raise NeffRunError(
                f"numpy has no type for the {str(tensor.dtype).removeprefix('torch.')} of {name}",
                "save raw values with --save-output",
            ) from error
        file = io.BytesIO()
        np.save(file, array)
        found[name] = file.getvalue()
    return found
