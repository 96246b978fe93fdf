"""The watch for NaN and infinity: which instruction makes them out of finite operands.

NEURON_FAIL_ON_NAN=1 and NEURON_RT_NUMERICAL_ERRORS_VERBOSITY=critical, with which the runtime reports numerical errors,
turn it on.
"""

from __future__ import annotations

import numpy as np


class NumericWatch:
    """Collects what the operands and results of one instruction are, until it is issued."""

    def __init__(self) -> None:
        self._has_operands = False
        self._is_finite = True
        self._made = ""

    def read(self, values: np.ndarray) -> None:
        """Note an operand."""
        self._has_operands = True
        self._is_finite = self._is_finite and bool(_finite(values).all())

    def write(self, label: str, values: np.ndarray) -> None:
        """Note a result, as it is stored."""
        finite = _finite(values)
        if self._made or finite.all():
            return
        nans = int(np.isnan(values).sum())
        infinities = int(finite.size - finite.sum()) - nans
        kinds = [f"{count} are {kind}" for count, kind in ((nans, "NaN"), (infinities, "infinite")) if count]
        first = [int(index) for index in np.argwhere(~finite)[0]]
        self._made = f"of {finite.size} elements of {label}, {' and '.join(kinds)}, from finite operands; the first at {first}"

    def take(self) -> str:
        """Return what the instruction that is issued now has made out of finite operands, "" for nothing."""
        made = self._made if self._has_operands and self._is_finite else ""
        self._has_operands, self._is_finite, self._made = False, True, ""
        return made


def _finite(values: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(np.isfinite(values))
    except TypeError:  # packed types
        return np.ones(values.shape, dtype=np.bool_)
