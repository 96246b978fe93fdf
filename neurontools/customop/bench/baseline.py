"""Modelled times of an earlier bench in a file, to notice when an operator becomes slower."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from neurontools.customop.bench.bench_report import BenchReport

FORMAT = 1


class BaselineError(NeuronToolsError):
    """A file is no baseline, or one of other rates."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benched operator beside its baseline: what it is, both modelled times, None for one that is not in it."""

    name: str
    modelled_ns: int
    baseline_ns: int | None

    def slower(self, threshold: float) -> bool:
        """Return whether it is slower than the baseline by more than a share of it."""
        return self.baseline_ns is not None and self.modelled_ns > self.baseline_ns * (1 + threshold)


def save(path: Path, reports: Sequence[BenchReport]) -> None:
    """Write modelled times to a file, in one step; measured times are not kept, they depend on the computer.

    Raises:
        BaselineError: it cannot be written, or is something else than a file.
    """
    if path.exists() and not path.is_file():
        raise BaselineError(f"cannot write the baseline {path}: it is no file", "give the path of a file")
    document = {
        "format": FORMAT,
        "rates": _rates_digest(),
        "modelled_ns": {_name(report): report.modelled_ns for report in reports},
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise BaselineError(
            f"cannot write the baseline {path}: {error.strerror}", "give the path of a file"
        ) from error


def compare(path: Path, reports: Sequence[BenchReport]) -> tuple[Comparison, ...]:
    """Compare reports with a file of `save`.

    Raises:
        BaselineError: it cannot be read, is no such file, or was made with other rates of the model.
    """
    known = _load(path)
    return tuple(
        Comparison(_name(report), report.modelled_ns, known.get(_name(report))) for report in reports
    )


def _load(path: Path) -> dict[str, int]:
    remedy = "write one with --save FILE"
    try:
        document = json.loads(path.read_bytes())
        known = {str(name): int(taken) for name, taken in document["modelled_ns"].items()}
        form, digest = document["format"], document["rates"]
    except OSError as error:
        raise BaselineError(f"cannot read the baseline {path}: {error.strerror}", remedy) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path} is no baseline of neuron-customop bench", remedy) from error
    if form != FORMAT or any(taken <= 0 for taken in known.values()):
        raise BaselineError(f"{path} is no baseline that this version reads", remedy)
    if digest != _rates_digest():
        raise BaselineError(f"the baseline {path} was made with other rates of the model", remedy)
    return known


def _name(report: BenchReport) -> str:
    cores = "1 core" if report.cores == 1 else f"{report.cores} cores"
    return f"{report.op} {' '.join(report.inputs)}, {cores}"


def _rates_digest() -> str:
    return sha256(json.dumps(asdict(gpsimd.rates()), sort_keys=True).encode()).hexdigest()[:16]
