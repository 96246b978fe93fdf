"""Finding what is wrong with an operator.

Called with many shapes: twice, in other orders of the cores, with other contents of fresh memory, beside a reference
and finite differences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neurontools.customop.check_inputs import Case, Pattern, cases
from neurontools.customop.check_report import CheckReport, CheckSettings, Finding
from neurontools.customop.dtypes import DEVICE_NAMES
from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.gradients import GRADIENT_CASES, gradient_problem
from neurontools.customop.instance import check_instance
from neurontools.customop.marshalling import Codes, execute, import_torch
from neurontools.customop.operation import Operation
from neurontools.customop.runner import TensorInput, make_tensor
from neurontools.customop.worker import WorkerExecutor
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package

# What a kernel says itself, or says by the accessor that it asks for: it does not take such inputs.
REFUSALS = frozenset({"dtype", "rank", "check", "assert", "shape", "domain", "limit"})
FRESH_MEMORY = (0x55, 0xA3)
_RANKS = (2, 1, 3, 4, 5, 6, 7, 8, 0)
_ORDERS = (1, 3, 29)
_NO_DIMENSION = re.compile(r"dimension -?\d+ of a tensor of \d+ dimensions")
_FAILURES_MAX = 24  # each may cost a worker
_TIMEOUT_WEIGHT = 12

Value = Pattern | float | int
_Inputs = tuple[list[list[Value]], tuple[int, ...], tuple[str, ...]]


def check(package: Package, index: int, settings: CheckSettings) -> CheckReport:
    """Check an operator of a library.

    Raises:
        UsageError: the patterns or expressions do not fit the operator.
        CustomOpLibraryError: no worker can be started.
    """
    check_instance()
    executors = [WorkerExecutor(package.parts, package.manifest.name, byte) for byte in FRESH_MEMORY]
    try:
        return _Check(package, index, settings, executors).run()
    finally:
        for executor in executors:
            executor.close()


@dataclass(slots=True)
class _Tally:
    """The findings so far: of those with the same words, the smallest case."""

    found: dict[tuple[str, str], tuple[int, Case, str]] = field(default_factory=dict)

    def add(self, check: str, kind: str, message: str, case: Case) -> None:
        count, smallest, words = self.found.get((check, kind), (0, case, message))
        if _size(case) < _size(smallest):
            smallest, words = case, message
        self.found[check, kind] = count + 1, smallest, words

    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(check, message, count, case.words)
            for (check, _), (count, case, message) in self.found.items()
        )


def _size(case: Case) -> tuple[bool, int]:
    return case.elements == 0, case.elements  # an empty tensor says least


class _Check:
    def __init__(
        self, package: Package, index: int, settings: CheckSettings, executors: Sequence[WorkerExecutor]
    ) -> None:
        self.package = package
        self.entry: OperatorEntry = package.manifest.operators[index]
        self.settings = settings
        self.codes = Codes()
        self.operations = [Operation(package, index, executor) for executor in executors]
        self.executor = executors[0]
        self.tally = _Tally()
        self.warnings: dict[str, None] = {}
        self.refused: dict[str, int] = {}
        self.taken = 0
        self.failures = 0
        self.compared = False
        self.current: tuple[Case | None, list[Any]] = (None, [])

    def run(self) -> CheckReport:
        entry = self.entry
        patterns, ranks, dtypes = self._given() if self.settings.patterns else self._tried_out()
        self.refused.clear()  # what was tried out is told by ranks and dtypes
        skipped = []
        if not self.settings.patterns and _plain(entry).count("tensor") > 1:
            skipped.append(
                ("inputs", "other shapes than equal ones; if they depend on each other, give --input")
            )
        for pattern in patterns:
            for case in cases(pattern, ranks, self.settings.count, self.settings.seed):
                if self.failures < _FAILURES_MAX:
                    self._one(case)
        done = ["shapes", "repeats", "memory"] if self.taken else []
        if done and self.package.manifest.multicore:
            done.append("cores")
        if patterns and not self.taken and not self.failures:
            case = next(iter(cases(patterns[0], ranks, 0, self.settings.seed)))
            self.tally.add("inputs", "", "it refused all; give others with --input", case)
        if self.settings.reference:
            done += ["reference"] if self.compared else []
        else:
            skipped.append(("reference", "give one with --reference, such as 'torch.relu(x0)'"))
        gradients = self._gradients()
        if gradients and patterns:
            done += ["gradient"] if self._check_gradients(patterns[0], ranks, gradients) else []
        elif "backward" not in entry.name:
            skipped.append(("gradient", "no backward operator; give one with --backward 'OP(g, x0)'"))
        findings = self.tally.findings()
        wrong = {finding.check for finding in findings}
        return CheckReport(
            entry.qualified,
            f"{entry.library}::{entry.schema}",
            self.taken,
            ranks,
            dtypes,
            tuple(name for name in done if name not in wrong),
            findings,
            tuple(self.warnings),
            tuple(self.refused.items()),
            tuple(skipped),
        )

    def _given(self) -> _Inputs:
        """Return what the settings say; checks that it fits the operator."""
        entry, given = self.entry, self.settings.patterns
        if len(given) != len(entry.parameters):
            raise UsageError(
                f"{entry.qualified} takes {len(entry.parameters)} inputs, {len(given)} given",
                f"schema: {entry.library}::{entry.schema}",
            )
        for position, (value, word) in enumerate(zip(given, entry.parameters, strict=True)):
            if isinstance(value, Pattern) != (word in {"tensor", "const-tensor"}):
                raise UsageError(f"{entry.qualified}: input {position} is of the other kind", entry.schema)
        tensors = [value for value in given if isinstance(value, Pattern)]
        any_shape = any(value.dims is None for value in tensors)
        dtypes = tuple(dict.fromkeys(value.dtype for value in tensors))
        return [list(given)], self._ranks(list(given)) if any_shape else (0,), dtypes

    def _tried_out(self) -> _Inputs:
        """Return what the operator takes of tensors that all have one shape and dtype."""
        names = ("float32", *(name for name in DEVICE_NAMES if name != "float32"))
        accepted: list[list[Value]] = []
        dtypes: list[str] = []
        ranks: tuple[int, ...] = ()
        for name in names:
            inputs = self._any(name)
            found = self._ranks(inputs) if not ranks else ranks if self._takes(inputs, ranks[0]) else ()
            if found:
                ranks = ranks or found
                accepted.append(inputs)
                dtypes.append(name)
        if not accepted:
            reason = next(iter(self.refused), "it refused all")
            case = next(iter(cases(self._any("float32"), (2,), 0, self.settings.seed)))
            self.tally.add("inputs", "", f"found none that it takes ({reason}); give them with --input", case)
        return accepted, ranks, tuple(dtypes)

    def _any(self, dtype: str) -> list[Value]:
        made: list[Value] = []
        for word in self.entry.parameters:
            tensor = word in {"tensor", "const-tensor"}
            made.append(Pattern(None, dtype) if tensor else 1 if word == "int64" else 0.5)
        return made

    def _ranks(self, pattern: list[Value]) -> tuple[int, ...]:
        return tuple(rank for rank in _RANKS if self._takes(pattern, rank))

    def _takes(self, pattern: list[Value], rank: int) -> bool:
        """Return whether the operator takes such inputs, or fails in a way that is to be told later."""
        case = next(iter(cases(pattern, (rank,), 0, self.settings.seed)))
        try:
            self._call(0, case)
        except NeuronCustomOpError as error:
            # A shape function that fails asks for a dimension that is not there, or it promises only one dtype.
            other_dtype = error.kind == "output" and "returned dtype" in error.reason
            no_dimension = _NO_DIMENSION.match(error.reason) is not None
            if error.kind in REFUSALS or other_dtype or no_dimension or error.core < 0:
                self._refuse(error)
                return False
        return True

    def _refuse(self, error: NeuronCustomOpError) -> None:
        reason = f"{error.kind}: {error.reason}"
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _call(self, which: int, case: Case, order: int = 0) -> Any:
        if self.current[0] is not case:
            self.current = case, _tensors(case)
        output, completed = execute(self.operations[which], self.current[1], self.codes, order)
        self.warnings.update(dict.fromkeys(completed.warnings))
        return output

    def _one(self, case: Case) -> None:
        try:
            output = self._call(0, case)
        except NeuronCustomOpError as error:
            if error.kind in REFUSALS:
                self._refuse(error)
            else:
                self.failures += _TIMEOUT_WEIGHT if error.kind == "timeout" else 1
                place = f" at {error.location}" if error.location else ""
                core = f" on core {error.core}" if error.core > 0 else ""
                kind = f"{error.kind} {error.location}"
                self.tally.add("shapes", kind, f"{error.kind}: {error.reason}{core}{place}", case)
            return
        self.taken += 1
        if not self._again(
            "repeats", "a second call gave other results", case, output, lambda: self._call(0, case)
        ):
            return  # every other comparison would only say it again
        self._again(
            "memory",
            "results depend on what fresh memory holds: elements are read before, or never, written",
            case,
            output,
            lambda: self._call(1, case),
        )
        if self.package.manifest.multicore:
            for order in _ORDERS:
                self._again(
                    "cores",
                    "results depend on the order in which the cores run",
                    case,
                    output,
                    lambda order=order: self._call(0, case, order),  # type: ignore[misc]
                )
        if self.settings.reference:
            self._compare(case, output)

    def _again(self, check: str, message: str, case: Case, output: Any, call: Callable[[], Any]) -> bool:
        try:
            other = call()
        except NeuronCustomOpError as error:
            self.failures += 1
            self.tally.add(check, error.kind, f"failed then: {error.kind}: {error.reason}", case)
            return False
        place = first_difference(output, other)
        if place is not None:
            self.tally.add(check, "", f"{message}; first at {place}", case)
        return place is None

    def _compare(self, case: Case, output: Any) -> None:
        torch = import_torch()
        tensors = _tensors(case)
        names = {f"x{position}": value for position, value in enumerate(tensors)}
        try:
            expected = evaluate(self.settings.reference, {**names, "x": tensors[0], "torch": torch})
        except UsageError as error:
            if not self.compared:
                raise
            self.tally.add("reference", "fails", error.message, case)
            return
        self.compared = True
        if not isinstance(expected, torch.Tensor):
            raise UsageError(
                f"{self.settings.reference} gives no tensor", "write an expression for the output"
            )
        if expected.shape != output.shape or expected.dtype != output.dtype:
            self.tally.add(
                "reference",
                "shape",
                f"gives {_shape(output)}, the reference {_shape(expected)}",
                case,
            )
            return
        tolerance = self.settings.tolerance
        options = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        try:
            torch.testing.assert_close(output, expected, equal_nan=True, **options)
        except AssertionError:
            self.tally.add("reference", "", _difference(output, expected), case)

    def _gradients(self) -> tuple[tuple[int, str], ...]:
        if self.settings.backward is not None:
            return self.settings.backward
        partner = backward_of(self.package, self.entry)
        if partner is None:
            return ()
        names = ", ".join(f"x{position}" for position in range(len(self.entry.parameters)))
        return ((0, f"{partner.name}(g, {names})"),)

    def _check_gradients(
        self,
        pattern: list[Value],
        ranks: tuple[int, ...],
        gradients: tuple[tuple[int, str], ...],
    ) -> bool:
        functions = self._functions()
        made = 0
        for case in cases(pattern, ranks[:2], 0, self.settings.seed):
            if not 0 < case.elements <= 200:
                continue
            for position, expression in gradients:
                if position >= len(case.inputs) or not isinstance(case.inputs[position], TensorInput):
                    raise UsageError(f"--backward {position}={expression}: input {position} is no tensor")
                try:
                    problem = gradient_problem(
                        lambda tensors: execute(self.operations[0], tensors, self.codes)[0],
                        lambda names, text=expression: evaluate(text, {**functions, **names}),  # type: ignore[misc]
                        _tensors(case),
                        position,
                        self.settings.seed,
                    )
                except NeuronCustomOpError as error:
                    if error.kind not in REFUSALS:
                        self.tally.add("gradient", error.kind, f"{expression}: {error.message}", case)
                    break
                if problem:
                    self.tally.add("gradient", expression, f"{expression}: {problem}", case)
            else:
                made += 1
            if made >= GRADIENT_CASES:
                break
        return made > 0

    def _functions(self) -> dict[str, object]:
        def function(index: int) -> Callable[..., Any]:
            operation = Operation(self.package, index, self.executor)
            return lambda *values: execute(operation, values, self.codes)[0]

        entries = self.package.manifest.operators
        return {"torch": import_torch(), **{entry.name: function(i) for i, entry in enumerate(entries)}}


def backward_of(package: Package, entry: OperatorEntry) -> OperatorEntry | None:
    """Return the operator that by its name and parameters is the backward of another, None when there is none."""
    names = {f"{entry.name}_backward", f"{entry.name}_grad"}
    if "forward" in entry.name:
        names.add(entry.name.replace("forward", "backward"))
    wanted = ["tensor", *_plain(entry)]
    for other in package.manifest.operators:
        if other.name in names and other.library == entry.library and _plain(other) == wanted:
            return other
    return None


def _plain(entry: OperatorEntry) -> list[str]:
    return [word.removeprefix("const-") for word in entry.parameters]


def evaluate(expression: str, names: dict[str, object]) -> Any:
    """Return the value of a Python expression that the user wrote on the command line.

    Raises:
        UsageError: it is no expression, or fails.
    """
    try:
        return eval(expression, {"__builtins__": __builtins__, **names})  # noqa: S307  the user's own program
    except (NeuronCustomOpError, CustomOpLibraryError, KeyboardInterrupt):
        raise
    except Exception as error:
        known = ", ".join(name for name in names if name != "torch")
        raise UsageError(
            f"{expression} fails: {type(error).__name__}: {error}", f"it may use torch, {known}"
        ) from error


def first_difference(left: Any, right: Any) -> str | None:
    """Return where the bytes of two tensors differ first, as `[2, 5]: 1.0 and 2.0`; None when they are the same."""
    torch = import_torch()
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{_shape(left)} and {_shape(right)}"
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[left.element_size()]
    unequal = (left.reshape(-1).view(raw) != right.reshape(-1).view(raw)).nonzero()
    if not len(unequal):
        return None
    flat = int(unequal[0])
    return (
        f"{_place(left, flat)}: {left.reshape(-1)[flat].item():.6g} and {right.reshape(-1)[flat].item():.6g}"
    )


def _difference(output: Any, expected: Any) -> str:
    torch = import_torch()
    apart = (output.double() - expected.double()).abs()
    apart = torch.where(apart.isnan() & ~(output.isnan() & expected.isnan()), torch.inf, apart).nan_to_num(
        0.0, torch.inf
    )
    flat = int(apart.reshape(-1).argmax())
    ours, theirs = output.reshape(-1)[flat].item(), expected.reshape(-1)[flat].item()
    return f"worst at {_place(output, flat)}: {ours:.6g}, the reference gives {theirs:.6g}"


def _place(tensor: Any, flat: int) -> str:
    place = []
    for size in reversed(tensor.shape):
        place.append(flat % size)
        flat //= size
    return str(place[::-1])


def _shape(tensor: Any) -> str:
    sizes = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{sizes}:{str(tensor.dtype).removeprefix('torch.')}"


def _tensors(case: Case) -> list[Any]:
    return [make_tensor(value) if isinstance(value, TensorInput) else value for value in case.inputs]
