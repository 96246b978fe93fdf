"""Find errors of an operator.

It is called with many shapes: twice, with other orders of the cores and other contents of fresh memory, and compared with
a reference and finite differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import (
    REFUSAL_KINDS,
    CallTimeoutError,
    CheckedOperator,
    call_function,
    evaluate,
    function_of,
    parameter_kinds,
)
from neurontools.customop.checking.discovery import Inputs, inputs_for
from neurontools.customop.checking.gradients import check_gradients, without_gradients
from neurontools.customop.checking.inputs import Case, Pattern, cases, pattern_words
from neurontools.customop.checking.report import CheckReport, CheckSettings, Findings
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.marshalling import import_torch
from neurontools.customop.runner import make_arguments
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.checking.inputs import Value
    from neurontools.customop.package import OperatorEntry, Package

FRESH_MEMORY = (0x55, 0xA3)
_ORDERS = (1, 3, 29)
_FAILURES_MAX = 24  # each may cost a worker
_ACCESSORS = frozenset({"dtype", "rank"})
_FROM_MEMORY = (
    "results depend on memory that the kernel did not write: elements are read before they are written, read outside of a"
    " tensor or TCM block, or never written"
)
_NAMES_THE_LINE = "--sanitize names the line of a read outside"
_FROM_CALLS = "results depend on earlier calls: something static or global keeps a value"

# Relative and absolute tolerances of torch.testing, whose assert_close would import torch.distributed.
TOLERANCES = {
    "torch.float32": (1.3e-6, 1e-5),
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
}


def check(
    package: Package, index: int, settings: CheckSettings, on_call: Callable[[int], None] | None = None
) -> CheckReport:
    """Check an operator of a library; the first call that takes too long ends the check.

    Args:
        package: the library.
        index: of the operator.
        settings: what to check.
        on_call: called with the number of calls.

    Raises:
        UsageError: the patterns or expressions do not fit the operator.
        CustomOpLibraryError: no worker can be started.
    """
    check_instance()
    executors = [WorkerExecutor(package.parts, package.manifest.name, byte) for byte in FRESH_MEMORY]
    try:
        return _Check(CheckedOperator(package, index, executors, on_call), settings, executors).run()
    finally:
        for executor in executors:
            executor.close()


class _Check:
    def __init__(
        self, caller: CheckedOperator, settings: CheckSettings, executors: Sequence[WorkerExecutor]
    ) -> None:
        self.caller = caller
        self.package = caller.package
        self.entry: OperatorEntry = caller.entry
        self.settings = settings
        self.executors = executors
        self.findings = Findings()
        self.reference = Reference(settings, self.findings)
        self.accepted = 0
        self.elements = 0
        self.failures = 0

    def run(self) -> CheckReport:
        inputs: Inputs = ([], (), ())
        gradient = ""
        try:
            inputs = inputs_for(self.caller, self.settings, self.findings)
            gradient = self._check_inputs(*inputs[:2])
        except CallTimeoutError as slow:
            self._fail(slow.error, slow.case)
        patterns, ranks, dtypes = inputs
        done = [*self._done(), *(["gradient"] if gradient else [])]
        findings = self.findings.as_tuple()
        wrong = {finding.check for finding in findings}
        return CheckReport(
            self.entry.qualified,
            f"{self.entry.library}::{self.entry.schema}",
            self.accepted,
            ranks,
            dtypes,
            self._assumed(patterns, gradient),
            tuple(name for name in done if name not in wrong),
            findings,
            self.caller.warnings,
            self.caller.refused,
            self._skipped(patterns),
        )

    def _check_inputs(self, patterns: list[list[Value]], ranks: tuple[int, ...]) -> str:
        """Check the operator with all cases of the patterns; return the compared expressions of gradients."""
        self.caller.forget_refused()  # ranks and dtypes report what was found by trial
        for pattern in patterns:
            for case in cases(pattern, ranks, self.settings.count, self.settings.seed):
                if self.failures < _FAILURES_MAX:
                    self._check_case(case)
        if patterns and not self.accepted and not self.failures:
            case = next(iter(cases(patterns[0], ranks, 0, self.settings.seed)))
            self.findings.add("inputs", "", "the operator rejected all; give others with --input", case)
        return check_gradients(
            self.caller, self.settings, self.findings, patterns[0] if patterns else [], ranks
        )

    def _done(self) -> list[str]:
        done = ["shapes", "repeats", "memory"] if self.accepted else []
        if done and self.package.manifest.multicore:
            done.append("cores")
        return [*done, *(["reference"] if self.reference.compared else [])]

    def _assumed(self, patterns: list[list[Value]], gradient: str) -> tuple[tuple[str, str], ...]:
        assumed = []
        if not self.settings.patterns and patterns and _are_mixed(patterns[0]):
            assumed.append(("inputs", pattern_words(patterns[0])))
        if gradient and self.settings.backward is None:
            assumed.append(("gradient", gradient))
        return tuple(assumed)

    def _skipped(self, patterns: list[list[Value]]) -> tuple[tuple[str, str], ...]:
        skipped = []
        several = parameter_kinds(self.entry).count("tensor") > 1
        if not self.settings.patterns and several and patterns and not _are_mixed(patterns[0]):
            skipped.append(
                ("inputs", "tensors of different shapes; if shapes depend on each other, give --input")
            )
        if self.accepted and not self.elements:
            skipped.append(
                ("outputs", "all were empty, so values are not checked; give numbers with --input")
            )
        skipped += self.reference.skipped()
        return (*skipped, *without_gradients(self.caller, self.settings))

    def _check_case(self, case: Case) -> None:
        try:
            output = self.caller.call(0, case)
        except NeuronCustomOpError as error:
            # Given inputs must be accepted; inputs found by trial may be refused.
            if error.kind in REFUSAL_KINDS and not (self.settings.patterns and error.kind in _ACCESSORS):
                self.caller.refuse(error)
            else:
                self._fail(error, case)
            return
        self.accepted += 1
        self.elements += output.numel()
        if not self._again(
            "repeats", "a second call gave other results", case, output, lambda: self.caller.call(0, case)
        ):
            return  # all other comparisons would fail too
        self._other_memory(case, output)
        if self.package.manifest.multicore:
            for order in _ORDERS:
                self._again(
                    "cores",
                    "results depend on the order in which the cores run",
                    case,
                    output,
                    lambda order=order: self.caller.call(0, case, order),  # type: ignore[misc]
                )
        self.reference.compare(case, output)

    def _fail(self, error: NeuronCustomOpError, case: Case) -> None:
        self.failures += 1
        place = f" at {error.location}" if error.location else ""
        core = f" on core {error.core}" if error.core > 0 else ""
        message = f"{error.kind}{core}: {error.reason}{place}"
        self.findings.add("shapes", f"{error.kind} {error.location}", message, case, error.remedy or "")

    def _other_memory(self, case: Case, output: Any) -> None:
        """Call it with other fresh memory; a difference may also come from earlier calls."""
        known = self.findings.has("memory")
        if (
            self._again(
                "memory", _FROM_MEMORY, case, output, lambda: self.caller.call(1, case), _NAMES_THE_LINE
            )
            or known
        ):
            return
        for executor in self.executors:
            executor.close()  # the next call starts a new worker
        if not self._again("repeats", _FROM_CALLS, case, output, lambda: self.caller.call(0, case)):
            self.findings.drop("memory")

    def _again(
        self, check: str, message: str, case: Case, output: Any, call: Callable[[], Any], remedy: str = ""
    ) -> bool:
        try:
            repeated = call()
        except NeuronCustomOpError as error:
            self.failures += 1
            self.findings.add(
                check, error.kind, f"the repeated call failed: {error.kind}: {error.reason}", case
            )
            return False
        place = first_difference(output, repeated)
        if place is not None:
            self.findings.add(check, "", f"{message}; first at {place}", case, remedy)
        return place is None


def _are_mixed(values: list[Value]) -> bool:
    return any(isinstance(value, Pattern) and value.dims is not None for value in values)


class Reference:
    """The expected output, by an expression or a function; differences are added to the findings."""

    def __init__(self, settings: CheckSettings, findings: Findings) -> None:
        self.compared = False
        self._expression = settings.reference
        self._function = function_of(settings.reference)
        self._findings = findings
        self._tolerance = settings.tolerance
        self._empty: list[str] = []

    def compare(self, case: Case, output: Any) -> None:
        """Compare an output, if there is a reference.

        Raises:
            UsageError: the expression is invalid, does not return a tensor, or fails on the first inputs.
        """
        if not self._expression:
            return
        torch = import_torch()
        tensors = make_arguments(case.inputs)
        names = {f"x{position}": value for position, value in enumerate(tensors)}
        try:
            if self._function is not None:
                expected = call_function(self._function, self._expression, tensors)
            else:
                expected = evaluate(self._expression, {**names, "x": tensors[0], "torch": torch})
        except UsageError as error:
            self._failed(error, case)
            return
        self.compared = True
        if not isinstance(expected, torch.Tensor):
            raise UsageError(
                f"{self._expression} does not return a tensor, but {type(expected).__name__}",
                "return the expected output",
            )
        if expected.shape != output.shape or expected.dtype != output.dtype:
            message = f"gives {shape_words(output)}, the reference {shape_words(expected)}"
            self._findings.add("reference", "shape", message, case)
            return
        exact = (0.0, 0.0)
        rtol, atol = (
            TOLERANCES.get(str(output.dtype), exact) if self._tolerance is None else (self._tolerance,) * 2
        )
        if not torch.isclose(output, expected, rtol=rtol, atol=atol, equal_nan=True).all():
            self._findings.add("reference", "", worst_difference(output, expected), case)

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return the skipped comparisons and their reasons."""
        if not self._expression:
            return (("reference", "give one with --reference, such as 'torch.relu(x0)'"),)
        if self._empty:
            return (("reference", f"{len(self._empty)} empty inputs: {self._empty[0]}"),)
        return ()

    def _failed(self, error: UsageError, case: Case) -> None:
        if not self.compared:
            raise error
        if case.has_empty:
            self._empty.append(error.message)  # many torch functions refuse empty tensors
        else:
            self._findings.add("reference", "fails", error.message, case)


def first_difference(left: Any, right: Any) -> str | None:
    """Return the first difference of two tensors, as `[2, 5]: 1.0 and 2.0`; None if all bytes are equal."""
    torch = import_torch()
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{shape_words(left)} and {shape_words(right)}"
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[left.element_size()]
    unequal = (left.reshape(-1).view(raw) != right.reshape(-1).view(raw)).nonzero()
    if not len(unequal):
        return None
    flat = int(unequal[0])
    values = left.reshape(-1)[flat].item(), right.reshape(-1)[flat].item()
    first, second = _distinct_texts(*values)
    return f"{_place(left, flat)}: {first} and {second}"


def worst_difference(output: Any, expected: Any) -> str:
    """Return the largest difference of an output to the expected one."""
    torch = import_torch()
    apart = (output.double() - expected.double()).abs()
    apart = torch.where(apart.isnan() & ~(output.isnan() & expected.isnan()), torch.inf, apart).nan_to_num(
        0.0, torch.inf
    )
    flat = int(apart.reshape(-1).argmax())
    actual, wanted = _distinct_texts(output.reshape(-1)[flat].item(), expected.reshape(-1)[flat].item())
    return f"worst at {_place(output, flat)}: {actual}, the reference gives {wanted}"


def _distinct_texts(left: float, right: float) -> tuple[str, str]:
    """Return two numbers with enough digits to distinguish them."""
    return next(
        (
            words
            for digits in (6, 9)
            if (words := (f"{left:.{digits}g}", f"{right:.{digits}g}"))[0] != words[1]
        ),
        (f"{left:.9g}", f"{right:.9g}"),
    )


def _place(tensor: Any, flat: int) -> str:
    place = []
    for size in reversed(tensor.shape):
        place.append(flat % size)
        flat //= size
    return str(place[::-1])


def shape_words(tensor: Any) -> str:
    """Return shape and dtype as `8x4:float32`."""
    sizes = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{sizes}:{str(tensor.dtype).removeprefix('torch.')}"
