"""The engine model against published times: every figure of fixtures/engines/anchors.yaml, and the error of both halves."""

from __future__ import annotations

from benchmarks.engine_model.judge import TARGETS, geometric_error, mean_error, of_half, verdicts, worst
from benchmarks.report import BenchmarkRow


def main() -> list[BenchmarkRow]:
    """Return a row for each figure, and the errors of both halves. Nothing is timed: the rows are the same everywhere."""
    rows = [
        BenchmarkRow.info(
            f"{verdict.anchor.name} ({verdict.anchor.half})",
            verdict.modelled_ms,
            "ms",
            f"published {verdict.anchor.published_ms:.4g} ms: {verdict.ratio:.2f} x",
        )
        for verdict in sorted(verdicts(), key=lambda verdict: (verdict.anchor.half, verdict.anchor.name))
    ]
    for half, (most, largest) in TARGETS.items():
        found = of_half(half)
        note = f"{len(found)} figures, arithmetic mean; geometric mean {geometric_error(found):.3f}"
        rows.append(BenchmarkRow.at_most(f"{half}: mean factor of error", mean_error(found), "x", most, note))
        far = worst(found)
        rows.append(
            BenchmarkRow.at_most(f"{half}: worst factor of error", far.error, "x", largest, far.anchor.name)
        )
    return rows
