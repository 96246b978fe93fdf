"""Run an operator on generated inputs: summary of the output, time on this computer, modelled device time."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural
from neurontools.customop.abi import BY_NAME, DEVICE_NAMES
from neurontools.customop.arena import memory_limit_bytes
from neurontools.customop.marshalling import execute, import_torch
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.package import Access, Package, find_operator, read_package
from neurontools.customop.signature import TENSOR_KINDS
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from neurontools.customop.operation import Completed
    from neurontools.customop.package import OperatorEntry

_TENSOR = re.compile(
    r"(?P<sizes>\d+(?:x\d+)*|scalar):(?P<dtype>\w+)(?:%(?P<below>\d+))?(?::(?P<seed>\d+))?\Z"
)
_INTEGERS_BELOW = 100
_INPUT_FORM = "inputs look like 32x4096:float32, 32x4096:float32:7 (with a seed), 64:int32%10 (from 0 to 9), or a number"


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor to generate: normally distributed for floating types, integers from 0.

    Args:
        sizes: its shape.
        dtype: element type.
        seed: seed of the contents.
        below: upper bound of integers, exclusive; None: 100.
    """

    sizes: tuple[int, ...]
    dtype: str
    seed: int
    below: int | None = None


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """Summary of an output.

    Args:
        sizes: its shape.
        dtype: its element type.
        minimum: smallest element, NaN if there is none.
        maximum: largest element, NaN if there is none.
        mean: mean of the elements, NaN if there is none.
        nan_count: number of NaN elements.
    """

    sizes: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    nan_count: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """Result of `run`.

    Args:
        op: its qualified name.
        schema: its torch schema.
        output: summary of the output.
        repeatable: whether every run gave the same bytes.
        repeat: number of runs.
        measured_best_ns: shortest time of a run on this computer, without copies.
        measured_median_ns: median of these times.
        modelled_ns: modelled device time.
        checks: the checks that all runs passed.
        warnings: warnings of the checks.
    """

    op: str
    schema: str
    output: OutputSummary
    repeatable: bool
    repeat: int
    measured_best_ns: int
    measured_median_ns: int
    modelled_ns: int
    checks: tuple[str, ...]
    warnings: tuple[str, ...]


def parse_input(text: str) -> TensorInput | float | int:
    """Parse an input of the command line: `32x4096:float32[:seed]` or a number.

    Raises:
        UsageError: it is neither, or the device does not support the dtype.
    """
    found = _TENSOR.match(text)
    if found is None:
        return parse_number(text, _INPUT_FORM)
    name = found["dtype"]
    if name not in BY_NAME or not BY_NAME[name].on_device:
        raise UsageError(
            f"input {text}: the device does not support dtype {name}", f"one of {', '.join(DEVICE_NAMES)}"
        )
    sizes = () if found["sizes"] == "scalar" else tuple(int(size) for size in found["sizes"].split("x"))
    below = None if found["below"] is None else int(found["below"])
    check_below(text, name, below)
    if below == 0 and 0 not in sizes:
        raise UsageError(f"input {text}: the bound must be above 0", f"{text.partition('%')[0]}%10")
    return TensorInput(sizes, name, int(found["seed"] or 0), below)


def check_below(text: str, dtype: str, below: object) -> None:
    """Reject a bound of values for floating types.

    Raises:
        UsageError: the element type is a floating one.
    """
    if below is not None and "float" in dtype:
        raise UsageError(f"input {text}: % applies to integers only", "64:int32%10 has values from 0 to 9")


def run(
    path: str | os.PathLike[str],
    op: str,
    inputs: Sequence[TensorInput | float | int],
    repeat: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> RunReport:
    """Run an operator of a library file.

    Args:
        path: the library.
        op: `library::operator`, or `operator` when that is enough.
        inputs: its arguments.
        repeat: number of runs.
        on_progress: called with the number of finished runs.

    Raises:
        NeuronCustomOpError: the operator fails.
        CustomOpLibraryError: the file is not a library, or has no such operator.
        UsageError: the inputs do not match the operator.
    """
    package = read_package(path)
    index = find_operator(package, op)
    executor = new_executor(package)
    try:
        operation = CustomOperator(package, index, executor)
        check_inputs(operation.entry, [isinstance(value, TensorInput) for value in inputs])
        arguments = make_arguments(inputs)
        results = []
        first: Any = None
        repeatable = True
        for done in range(repeat):
            output, completed = execute(operation, arguments)
            results.append(completed)
            first = output if first is None else first
            repeatable = repeatable and _same_bytes(first, output)
            if on_progress:
                on_progress(done + 1)
        return _report(package, operation, first, results, repeatable=repeatable)
    finally:
        executor.close()


def parse_number(text: str, form: str) -> float | int:
    """Parse a number of the command line; `form` is the remedy.

    Raises:
        UsageError: it is not a number.
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise UsageError(f"invalid input {text}", form)


def check_inputs(entry: OperatorEntry, are_tensors: Sequence[bool]) -> None:
    """Check the number of an operator's inputs and whether each is a tensor or a number.

    Raises:
        UsageError: they do not match the operator.
    """
    schema = f"schema: {entry.library}::{entry.schema}"
    if len(are_tensors) != len(entry.parameters):
        takes = plural(len(entry.parameters), "input")
        raise UsageError(f"{entry.qualified} takes {takes}, {len(are_tensors)} given", schema)
    for position, (is_tensor, word) in enumerate(zip(are_tensors, entry.parameters, strict=True)):
        if is_tensor != (word in TENSOR_KINDS):
            wanted = "a number" if is_tensor else "a tensor"
            raise UsageError(f"{entry.qualified}: input {position} must be {wanted}", schema)


def make_tensor(value: TensorInput) -> Any:  # a torch.Tensor; torch is optional
    """Generate the tensor of an input of the command line.

    Raises:
        UsageError: it is larger than operators may use of this computer's memory.
    """
    nbytes = math.prod(value.sizes) * BY_NAME[value.dtype].itemsize
    if nbytes > memory_limit_bytes():
        raise UsageError(
            f"an input of {nbytes} bytes exceeds the limit, a quarter of this computer's memory",
            "use a smaller input",
        )
    torch = import_torch()
    generator = torch.Generator().manual_seed(value.seed)
    dtype = getattr(torch, value.dtype)
    if dtype.is_floating_point:
        return torch.randn(value.sizes, generator=generator).to(dtype)
    below = _INTEGERS_BELOW if value.below is None else min(max(value.below, 1), torch.iinfo(dtype).max + 1)
    return torch.randint(0, below, value.sizes, generator=generator, dtype=dtype)


def make_arguments(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs as tensors and numbers."""
    return [make_tensor(value) if isinstance(value, TensorInput) else value for value in inputs]


def _same_bytes(left: Any, right: Any) -> bool:
    torch = import_torch()
    return bool(torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8)))


def _report(
    package: Package,
    operation: CustomOperator,
    output: Any,
    results: Sequence[Completed],
    *,
    repeatable: bool,
) -> RunReport:
    entry = operation.entry
    elapsed = [result.elapsed_ns for result in results]
    return RunReport(
        op=entry.qualified,
        schema=f"{entry.library}::{entry.schema}",
        output=_summary(output),
        repeatable=repeatable,
        repeat=len(results),
        measured_best_ns=min(elapsed),
        measured_median_ns=round(statistics.median(elapsed)),
        modelled_ns=results[-1].modelled_ns,
        checks=_checks(package, entry.access),
        warnings=tuple(dict.fromkeys(warning for result in results for warning in result.warnings)),
    )


def _summary(output: Any) -> OutputSummary:
    wide = output.double()
    numbers = wide[~wide.isnan()]
    some = numbers.numel() > 0
    return OutputSummary(
        sizes=tuple(output.shape),
        dtype=str(output.dtype).removeprefix("torch."),
        minimum=float(numbers.min()) if some else math.nan,
        maximum=float(numbers.max()) if some else math.nan,
        mean=float(numbers.mean()) if some else math.nan,
        nan_count=int(wide.isnan().sum()),
    )


def _checks(package: Package, access: Access) -> tuple[str, ...]:
    checks = ["dtype and rank", "copies within tensors and TCM", "TCM guard bytes and leaks"]
    if access is not Access.ELEMENT:
        checks.append("output coverage")
    if package.manifest.multicore:
        checks.append("overlap of cores")
    if not package.manifest.release:
        checks.insert(0, "element bounds")
    return tuple(checks)
