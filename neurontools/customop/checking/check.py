"""Find errors of an operator.

It is called with many shapes: twice, with other orders of the cores and other contents of fresh memory, and compared with
a reference and finite differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import REFUSAL_KINDS, CheckedOperator, parameter_kinds
from neurontools.customop.checking.discovery import inputs_for
from neurontools.customop.checking.gradients import check_gradients, without_gradients
from neurontools.customop.checking.inputs import Case, Pattern, cases, pattern_words
from neurontools.customop.checking.reference import Reference, first_difference
from neurontools.customop.checking.report import CheckReport, CheckSettings, Findings
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.executors import WorkerExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.checking.inputs import Value
    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package

FRESH_MEMORY = (0x55, 0xA3)
_ORDERS = (1, 3, 29)
_FAILURES_MAX = 24  # each may cost a worker
_TIMEOUT_WEIGHT = 12
_ACCESSORS = frozenset({"dtype", "rank"})
_FROM_MEMORY = "results depend on the content of fresh memory: elements are read before they are written, or never written"
_FROM_CALLS = "results depend on earlier calls: something static or global keeps a value"


def check(package: Package, index: int, settings: CheckSettings) -> CheckReport:
    """Check an operator of a library.

    Raises:
        UsageError: the patterns or expressions do not fit the operator.
        CustomOpLibraryError: no worker can be started.
    """
    check_instance()
    executors = [WorkerExecutor(package.parts, package.manifest.name, byte) for byte in FRESH_MEMORY]
    try:
        return _Check(CheckedOperator(package, index, executors), settings, executors).run()
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
        patterns, ranks, dtypes = inputs_for(self.caller, self.settings, self.findings)
        self.caller.forget_refused()  # ranks and dtypes report what was found by trial
        for pattern in patterns:
            for case in cases(pattern, ranks, self.settings.count, self.settings.seed):
                if self.failures < _FAILURES_MAX:
                    self._check_case(case)
        if patterns and not self.accepted and not self.failures:
            case = next(iter(cases(patterns[0], ranks, 0, self.settings.seed)))
            self.findings.add("inputs", "", "the operator rejected all; give others with --input", case)
        gradient = check_gradients(
            self.caller, self.settings, self.findings, patterns[0] if patterns else [], ranks
        )
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
        self.failures += _TIMEOUT_WEIGHT if error.kind == "timeout" else 1
        place = f" at {error.location}" if error.location else ""
        core = f" on core {error.core}" if error.core > 0 else ""
        message = f"{error.kind}{core}: {error.reason}{place}"
        self.findings.add("shapes", f"{error.kind} {error.location}", message, case, error.remedy or "")

    def _other_memory(self, case: Case, output: Any) -> None:
        """Call it with other fresh memory; a difference may also come from earlier calls."""
        known = self.findings.has("memory")
        if self._again("memory", _FROM_MEMORY, case, output, lambda: self.caller.call(1, case)) or known:
            return
        for executor in self.executors:
            executor.close()  # the next call starts a new worker
        if not self._again("repeats", _FROM_CALLS, case, output, lambda: self.caller.call(0, case)):
            self.findings.drop("memory")

    def _again(self, check: str, message: str, case: Case, output: Any, call: Callable[[], Any]) -> bool:
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
            self.findings.add(check, "", f"{message}; first at {place}", case)
        return place is None


def _are_mixed(values: list[Value]) -> bool:
    return any(isinstance(value, Pattern) and value.dims is not None for value in values)
