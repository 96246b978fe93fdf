"""Finding what is wrong with an operator.

Called with many shapes: twice, in other orders of the cores, with other contents of fresh memory, beside a reference
and finite differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import REFUSALS, Caller, tensors_of
from neurontools.customop.checking.check_gradients import check_gradients, gradients_of
from neurontools.customop.checking.check_inputs import Case, cases
from neurontools.customop.checking.check_report import CheckReport, CheckSettings
from neurontools.customop.checking.differences import first_difference, shape_words, worst_difference
from neurontools.customop.checking.discovery import inputs_for
from neurontools.customop.checking.expressions import evaluate, parameter_kinds
from neurontools.customop.checking.tally import Tally
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.instance import check_instance
from neurontools.customop.marshalling import import_torch
from neurontools.customop.worker import WorkerExecutor
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package

FRESH_MEMORY = (0x55, 0xA3)
_ORDERS = (1, 3, 29)
_FAILURES_MAX = 24  # each may cost a worker
_TIMEOUT_WEIGHT = 12


def check(package: Package, index: int, settings: CheckSettings) -> CheckReport:
    """Check an operator of a library.

    Raises:
        UsageError: the patterns or expressions do not fit the operator.
        CustomOpLibraryError: no worker can be started.
    """
    check_instance()
    executors = [WorkerExecutor(package.parts, package.manifest.name, byte) for byte in FRESH_MEMORY]
    try:
        return _Check(Caller(package, index, executors), settings).run()
    finally:
        for executor in executors:
            executor.close()


class _Check:
    def __init__(self, caller: Caller, settings: CheckSettings) -> None:
        self.caller = caller
        self.package = caller.package
        self.entry: OperatorEntry = caller.entry
        self.settings = settings
        self.tally = Tally()
        self.taken = 0
        self.failures = 0
        self.compared = False

    def run(self) -> CheckReport:
        entry = self.entry
        patterns, ranks, dtypes = inputs_for(self.caller, self.settings, self.tally)
        self.caller.refused.clear()  # what was tried out is told by ranks and dtypes
        skipped = []
        if not self.settings.patterns and parameter_kinds(entry).count("tensor") > 1:
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
        if gradients_of(self.caller, self.settings) and patterns:
            made = check_gradients(self.caller, self.settings, self.tally, patterns[0], ranks)
            done += ["gradient"] if made else []
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
            tuple(self.caller.warnings),
            tuple(self.caller.refused.items()),
            tuple(skipped),
        )

    def _one(self, case: Case) -> None:
        try:
            output = self.caller.call(0, case)
        except NeuronCustomOpError as error:
            if error.kind in REFUSALS:
                self.caller.refuse(error)
            else:
                self.failures += _TIMEOUT_WEIGHT if error.kind == "timeout" else 1
                place = f" at {error.location}" if error.location else ""
                core = f" on core {error.core}" if error.core > 0 else ""
                kind = f"{error.kind} {error.location}"
                self.tally.add("shapes", kind, f"{error.kind}: {error.reason}{core}{place}", case)
            return
        self.taken += 1
        if not self._again(
            "repeats", "a second call gave other results", case, output, lambda: self.caller.call(0, case)
        ):
            return  # every other comparison would only say it again
        self._again(
            "memory",
            "results depend on what fresh memory holds: elements are read before, or never, written",
            case,
            output,
            lambda: self.caller.call(1, case),
        )
        if self.package.manifest.multicore:
            for order in _ORDERS:
                self._again(
                    "cores",
                    "results depend on the order in which the cores run",
                    case,
                    output,
                    lambda order=order: self.caller.call(0, case, order),  # type: ignore[misc]
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
        tensors = tensors_of(case)
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
                f"gives {shape_words(output)}, the reference {shape_words(expected)}",
                case,
            )
            return
        tolerance = self.settings.tolerance
        options = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        try:
            torch.testing.assert_close(output, expected, equal_nan=True, **options)
        except AssertionError:
            self.tally.add("reference", "", worst_difference(output, expected), case)
