"""Modelled times of whole models against published ones: every figure of fixtures/engines/model_anchors.yaml.

    python -m benchmarks.model_anchors [--family NAME | --ranges]

Rows of the calibration half are printed one by one, each with its bound: bytes over bandwidth or FLOPs over peak, the
longer. The report half stays blind: only aggregates by family are printed. `--ranges` prints
the ranges of fixtures/engines/estimate_ranges.yaml, which are those of the calibration half.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.engine_model.model_anchors import ModelAnchor, model_anchors
from benchmarks.engine_model.model_times import ModelTime, model_time
from benchmarks.engine_model.published import CALIBRATION, REPORT
from benchmarks.engine_model.ranges import ranges_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEAR = 1.5
_FEWEST = 2  # an aggregate of one report figure would be its row


def row_line(anchor: ModelAnchor, time: ModelTime | None) -> str:
    """Return a row as text.

    Raises:
        ValueError: the figure is of the report half.
    """
    if anchor.half != CALIBRATION:
        raise ValueError("rows of the report half are not printed")
    if time is None:
        return f"{anchor.name}: published {anchor.published_ms:.4g} ms, not modelled"
    bound = f"bound {time.bound_ms:.4g}" + (": PUBLISHED IS BELOW" if time.is_below_bound else "")
    return (
        f"{anchor.name}: published {anchor.published_ms:.4g} ms, modelled {time.modelled_ms:.4g}: "
        f"{time.ratio:.2f} x ({bound})"
    )


def aggregate(times: Sequence[ModelTime]) -> str:
    """Return the errors of several figures as text."""
    errors = [time.error for time in times]
    near = sum(error <= _NEAR for error in errors) / len(errors)
    below = sum(time.is_below_bound for time in times)
    return (
        f"{len(errors):3d} figures, mean factor {fmean(errors):.2f}, within {_NEAR}: {near:.0%}, "
        f"worst {max(errors):.2f}, {below} below the bound"
    )


def calibration_times(family: str | None = None) -> list[ModelTime]:
    """Return the modelled times of the calibration half, of one family or of all."""
    rows = (row for row in model_anchors() if row.half == CALIBRATION and family in {None, row.family})
    return [time for row in rows if (time := model_time(row)) is not None]


def main() -> int:
    """Print the rows of the calibration half and the aggregates of both."""
    families = tuple(dict.fromkeys(anchor.family for anchor in model_anchors()))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--family", choices=families, help="only this family")
    choice.add_argument("--ranges", action="store_true", help="print only the ranges of the calibration half")
    arguments = parser.parse_args()
    chosen = arguments.family
    if arguments.ranges:
        print(ranges_text(calibration_times(), datetime.now(UTC).date().isoformat()))
        return 0
    times: list[ModelTime] = []
    for anchor in model_anchors():
        if chosen in {None, anchor.family}:
            time = model_time(anchor)
            times += [] if time is None else [time]
            if anchor.half == CALIBRATION:
                print(row_line(anchor, time), flush=True)
    for half in (CALIBRATION, REPORT):
        for family in (*families, ""):
            chosen_times = [
                time for time in times if time.anchor.half == half and family in {"", time.anchor.family}
            ]
            if len(chosen_times) >= (_FEWEST if half == REPORT else 1):
                print(f"{half:11s} {family or 'all':21s} {aggregate(chosen_times)}")
    return 1 if any(time.is_below_bound for time in times) else 0


if __name__ == "__main__":
    sys.exit(main())
