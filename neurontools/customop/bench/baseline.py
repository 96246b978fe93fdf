"""Modelled times of an earlier bench in a file, to notice when an operator becomes slower."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop.bench.arithmetic_rates import arithmetic_rates
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from neurontools.customop.bench.bench_report import BenchReport

FORMAT = 2


class BaselineError(NeuronToolsError):
    """A file is no baseline, or one of other rates."""


@dataclass(frozen=True, slots=True)
class Known:
    """An operator in a baseline: its modelled time, that without own arithmetic, and who counted that, "" for nobody."""

    modelled_ns: int
    memory_ns: int
    compiler: str


Baseline = dict[str, Known]
"""Operators by what `neuron-customop bench` calls them: name, inputs, cores."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benched operator beside its baseline.

    Args:
        name: what it is.
        modelled_ns: modelled time.
        baseline_ns: that of the baseline, None for one that is not in it.
        with_arithmetic: whether both hold own arithmetic; not when another compiler counted it, or nobody did.
    """

    name: str
    modelled_ns: int
    baseline_ns: int | None
    with_arithmetic: bool

    def slower(self, threshold: float) -> bool:
        """Return whether it is slower than the baseline by more than a share of it."""
        return self.baseline_ns is not None and self.modelled_ns > self.baseline_ns * (1 + threshold)


def save(path: Path, reports: Sequence[BenchReport]) -> None:
    """Write modelled times to a file, in one step; measured times are not kept, they depend on the computer.

    Raises:
        BaselineError: it cannot be written, or is something else than a file.
    """
    check_place(path)
    document = {
        "format": FORMAT,
        "rates": _rates_digest(),
        "operators": {
            _name(report): {
                "modelled_ns": report.modelled_ns,
                "memory_ns": report.memory_ns,
                "compiler": _compiler(report),
            }
            for report in reports
        },
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


def check_place(path: Path) -> None:
    """See whether `save` could write a file, before the work is done whose results it gets.

    Raises:
        BaselineError: it could not.
    """
    if path.exists() and not path.is_file():
        raise BaselineError(f"cannot write the baseline {path}: it is no file", "give the path of a file")
    if not path.parent.is_dir():
        raise BaselineError(
            f"cannot write the baseline {path}: {os.strerror(errno.ENOENT)}", "give the path of a file"
        )


def compare(known: Baseline, reports: Sequence[BenchReport]) -> tuple[Comparison, ...]:
    """Compare reports with a baseline."""
    return tuple(_compared(report, known.get(_name(report))) for report in reports)


def _compared(report: BenchReport, known: Known | None) -> Comparison:
    compiler = _compiler(report)
    if known is None or (compiler and compiler == known.compiler):
        before = known.modelled_ns if known else None
        return Comparison(_name(report), report.modelled_ns, before, with_arithmetic=bool(compiler))
    # Compilers make other instructions of the same source: what does not depend on them is compared.
    return Comparison(_name(report), report.memory_ns, known.memory_ns, with_arithmetic=False)


def _compiler(report: BenchReport) -> str:
    return report.arithmetic.compiler if report.arithmetic else ""


def load(path: Path) -> Baseline:
    """Read a file of `save`.

    Raises:
        BaselineError: it cannot be read, is no such file, or was made with other rates of the model.
    """
    remedy = "write one with --save FILE"
    try:
        document = json.loads(path.read_bytes())
        form, digest = document["format"], document["rates"]
    except OSError as error:
        raise BaselineError(f"cannot read the baseline {path}: {error.strerror}", remedy) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path} is no baseline of neuron-customop bench", remedy) from error
    if form != FORMAT:
        raise BaselineError(f"{path} is no baseline that this version reads", remedy)
    if digest != _rates_digest():
        raise BaselineError(f"the baseline {path} was made with other rates of the model", remedy)
    try:
        known = {str(name): _known(entry) for name, entry in document["operators"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"{path} is no baseline of neuron-customop bench", remedy) from error
    if any(min(entry.modelled_ns, entry.memory_ns) <= 0 for entry in known.values()):
        raise BaselineError(f"{path} is no baseline that this version reads", remedy)
    return known


def _known(entry: dict[str, object]) -> Known:
    modelled_ns, memory_ns = (int(str(entry[name])) for name in ("modelled_ns", "memory_ns"))
    return Known(modelled_ns, memory_ns, str(entry["compiler"]))


def _name(report: BenchReport) -> str:
    cores = "1 core" if report.cores == 1 else f"{report.cores} cores"
    return f"{report.op} {' '.join(report.inputs)}, {cores}"


def _rates_digest() -> str:
    both = (asdict(gpsimd.rates()), asdict(arithmetic_rates()))
    return sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()[:16]
