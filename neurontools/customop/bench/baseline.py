"""Baseline file: modelled times of an earlier benchmark, to detect slower operators."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.base.files import write_atomic
from neurontools.base.json_reader import load_json
from neurontools.base.text import plural
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from neurontools.customop.bench.report import BenchReport

Baseline = dict[str, int]
"""Modelled times in nanoseconds by operator, as `neuron-customop bench` names it: name, inputs, cores."""

FORMAT = 3
_MAX_NS = 2**53  # ratios of larger numbers are not exact


class BaselineError(NeuronToolsError):
    """A file is not a baseline, or was made with other rates of the cost model."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmarked operator and its baseline.

    Args:
        name: operator, inputs and cores.
        modelled_ns: modelled time.
        baseline_ns: modelled time in the baseline, None for an operator that is not in it.
    """

    name: str
    modelled_ns: int
    baseline_ns: int | None

    def is_slower(self, threshold: float) -> bool:
        """Return whether it is slower than the baseline by more than this share of it."""
        return self.baseline_ns is not None and self.modelled_ns > self.baseline_ns * (1 + threshold)


def save(path: Path, reports: Sequence[BenchReport]) -> None:
    """Write modelled times to a file atomically. Measured times depend on the computer and are not saved.

    Raises:
        BaselineError: the file cannot be written, or the path is not a file.
    """
    check_writable(path)
    document = {
        "format": FORMAT,
        "rates": _rates_digest(),
        "operators": {_name(report): report.modelled_ns for report in reports},
    }
    try:
        write_atomic(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise BaselineError(
            f"cannot write the baseline {path}: {error.strerror}", "give the path of a file"
        ) from error


def check_writable(path: Path) -> None:
    """Check that `save` can write a file, before the benchmark whose results it will hold.

    Raises:
        BaselineError: it cannot.
    """
    if path.exists() and not path.is_file():
        raise BaselineError(f"cannot write the baseline {path}: not a file", "give the path of a file")
    if not path.parent.is_dir():
        raise BaselineError(
            f"cannot write the baseline {path}: {os.strerror(errno.ENOENT)}", "give the path of a file"
        )


def compare(baseline: Baseline, reports: Sequence[BenchReport]) -> tuple[Comparison, ...]:
    """Compare reports with a baseline."""
    return tuple(
        Comparison(_name(report), report.modelled_ns, baseline.get(_name(report))) for report in reports
    )


def load(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        BaselineError: it cannot be read, is not a baseline, or was made with other rates of the cost model.
    """
    remedy = "write a new one with --save FILE"
    try:
        document = load_json(path.read_bytes())
        form, digest = document["format"], document["rates"]
    except OSError as error:
        raise BaselineError(f"cannot read the baseline {path}: {error.strerror}", remedy) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path} is not a baseline of neuron-customop bench", remedy) from error
    if form != FORMAT:
        raise BaselineError(f"{path} has baseline format {form}, this version reads {FORMAT}", remedy)
    if digest != _rates_digest():
        raise BaselineError(f"the baseline {path} was made with other rates of the cost model", remedy)
    try:
        baseline = {str(name): int(modelled_ns) for name, modelled_ns in document["operators"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BaselineError(f"{path} is not a baseline of neuron-customop bench", remedy) from error
    if not all(0 < modelled_ns <= _MAX_NS for modelled_ns in baseline.values()):
        raise BaselineError(
            f"{path} is not a baseline: modelled times must be from 1 to {_MAX_NS} ns", remedy
        )
    return baseline


def _name(report: BenchReport) -> str:
    return f"{report.op} {' '.join(report.inputs)}, {plural(report.cores, 'core')}"


def _rates_digest() -> str:
    return sha256(json.dumps(asdict(gpsimd.rates()), sort_keys=True).encode()).hexdigest()[:16]
