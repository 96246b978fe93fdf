"""Comparing outputs with a reference expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import tensors_of
from neurontools.customop.checking.differences import shape_words, worst_difference
from neurontools.customop.checking.expressions import evaluate
from neurontools.customop.marshalling import import_torch
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.checking.check_inputs import Case
    from neurontools.customop.checking.check_report import CheckSettings
    from neurontools.customop.checking.tally import Tally

# Relative and absolute, those of torch.testing; its assert_close would load torch.distributed for each check.
TOLERANCES = {
    "torch.float32": (1.3e-6, 1e-5),
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
}


class Reference:
    """The expected output, as an expression.

    Args:
        settings: they have the expression, "" for none, and what difference is allowed.
        tally: where findings go.
    """

    def __init__(self, settings: CheckSettings, tally: Tally) -> None:
        self.compared = False
        self._expression = settings.reference
        self._tally = tally
        self._tolerance = settings.tolerance
        self._empty: list[str] = []

    def compare(self, case: Case, output: Any) -> None:
        """Compare an output, if there is a reference.

        Raises:
            UsageError: the expression is none, gives no tensor, or fails on the first inputs.
        """
        if not self._expression:
            return
        torch = import_torch()
        tensors = tensors_of(case)
        names = {f"x{position}": value for position, value in enumerate(tensors)}
        try:
            expected = evaluate(self._expression, {**names, "x": tensors[0], "torch": torch})
        except UsageError as error:
            self._failed(error, case)
            return
        self.compared = True
        if not isinstance(expected, torch.Tensor):
            raise UsageError(f"{self._expression} gives no tensor", "write an expression for the output")
        if expected.shape != output.shape or expected.dtype != output.dtype:
            message = f"gives {shape_words(output)}, the reference {shape_words(expected)}"
            self._tally.add("reference", "shape", message, case)
            return
        exact = (0.0, 0.0)
        rtol, atol = (
            TOLERANCES.get(str(output.dtype), exact) if self._tolerance is None else (self._tolerance,) * 2
        )
        if not torch.isclose(output, expected, rtol=rtol, atol=atol, equal_nan=True).all():
            self._tally.add("reference", "", worst_difference(output, expected), case)

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return what was not compared, and why."""
        if not self._expression:
            return (("reference", "give one with --reference, such as 'torch.relu(x0)'"),)
        if self._empty:
            return (("reference", f"{len(self._empty)} empty inputs: {self._empty[0]}"),)
        return ()

    def _failed(self, error: UsageError, case: Case) -> None:
        if not self.compared:
            raise error
        if case.has_empty:
            self._empty.append(error.message)  # many functions of torch refuse what has no elements
        else:
            self._tally.add("reference", "fails", error.message, case)
