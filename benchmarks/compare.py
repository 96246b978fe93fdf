"""Compare two checkouts: `python benchmarks/compare.py OLD [--rounds N] [NAME ...]`, OLD with its own `.venv`.

Both run the same benchmarks in turn, old, new, old, new ..., so that a computer that slows down slows down both. Rows
are matched by name; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.run import BENCHMARKS

_ROW = re.compile(r"\| (?P<name>[^|]+) \| (?P<value>[\d.,e+-]*\d) (?P<unit>[^|]*?) *\|")
_MORE_IS_BETTER = ("1/s", "steps")

Figures = dict[tuple[str, str], list[float]]


def main() -> int:
    """Print one row for each figure that both checkouts have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; all without one")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = (arguments.old.resolve(), Path(__file__).parents[1])
    print("| what | old | new | unit | new / old |\n|---|---|---|---|---|")
    for name in arguments.names or BENCHMARKS:
        figures: tuple[Figures, Figures] = (defaultdict(list), defaultdict(list))
        for _ in range(arguments.rounds):
            for checkout, found in zip(checkouts, figures, strict=True):
                _run(checkout, name, found)
        _print(*figures)
    return 0


def _run(checkout: Path, name: str, figures: Figures) -> None:
    command = [checkout / ".venv/bin/python", checkout / "benchmarks/run.py", name]
    result = subprocess.run(command, cwd=checkout, capture_output=True, encoding="utf-8", check=False)
    rows = list(_ROW.finditer(result.stdout))
    if not rows:
        print(
            f"{name} of {checkout.name} printed no figures: {result.stderr.strip()[-500:]}", file=sys.stderr
        )
    for row in rows:
        figures[row["name"].strip(), row["unit"]].append(float(row["value"].replace(",", "")))


def _print(old: Figures, new: Figures) -> None:
    for key, old_values in old.items():
        new_values = new.get(key)
        if not new_values:
            continue
        name, unit = key
        before, after = statistics.median(old_values), statistics.median(new_values)
        pairs = [b / a for a, b in zip(old_values, new_values, strict=False) if a]
        ratio = f"{statistics.median(pairs):.2f}" if pairs else "-"
        note = " (more is better)" if unit.startswith(_MORE_IS_BETTER) else ""
        print(f"| {name} | {before:.4g} | {after:.4g} | {unit}{note} | {ratio} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
