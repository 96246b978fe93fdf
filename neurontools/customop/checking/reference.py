"""Compare outputs with a reference expression, and describe differences of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import evaluate, tensors_of
from neurontools.customop.marshalling import import_torch
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.checking.inputs import Case
    from neurontools.customop.checking.report import CheckSettings, Findings

# Relative and absolute tolerances of torch.testing, whose assert_close would import torch.distributed.
TOLERANCES = {
    "torch.float32": (1.3e-6, 1e-5),
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
}


class Reference:
    """The expected output, as an expression.

    Args:
        settings: expression and tolerance.
        findings: receives the differences.
    """

    def __init__(self, settings: CheckSettings, findings: Findings) -> None:
        self.compared = False
        self._expression = settings.reference
        self._tally = findings
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
        tensors = tensors_of(case)
        names = {f"x{position}": value for position, value in enumerate(tensors)}
        try:
            expected = evaluate(self._expression, {**names, "x": tensors[0], "torch": torch})
        except UsageError as error:
            self._failed(error, case)
            return
        self.compared = True
        if not isinstance(expected, torch.Tensor):
            raise UsageError(
                f"{self._expression} does not return a tensor", "write an expression for the output"
            )
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
        """Return what was not compared and the reason."""
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
            self._tally.add("reference", "fails", error.message, case)


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
