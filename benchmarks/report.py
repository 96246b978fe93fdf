"""What a benchmark reports: rows of figures, some with a budget."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import isnan, nan
from typing import TypeVar

_SHORT = "BENCHMARKS_SHORT"
Value = TypeVar("Value")


def choose_short_form() -> None:
    """Let the benchmarks that are imported from now on, here and in the processes that they start, be short."""
    os.environ[_SHORT] = "1"


def in_short_form(full: Value, short: Value) -> Value:
    """Return the second value in the short form of a benchmark: one round, so that a test finds what no longer runs."""
    return short if _SHORT in os.environ else full


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One figure. `budget` is "" where there is none; `ok` says whether the figure keeps it."""

    name: str
    value: float
    unit: str
    budget: str = ""
    ok: bool = True
    note: str = ""

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, limit: float, note: str = "") -> BenchmarkRow:
        """Return a row whose value must not be above a limit."""
        return cls(name, value, unit, f"at most {limit:g} {unit}", value <= limit, note)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, limit: float, note: str = "") -> BenchmarkRow:
        """Return a row whose value must not be below a limit."""
        return cls(name, value, unit, f"at least {limit:,.7g} {unit}", value >= limit, note)

    @classmethod
    def info(cls, name: str, value: float, unit: str, note: str = "") -> BenchmarkRow:
        """Return a row without a budget."""
        return cls(name, value, unit, note=note)

    @classmethod
    def missing(cls, name: str, why: str) -> BenchmarkRow:
        """Return a row of something that could not be measured."""
        return cls(name, nan, "", note=why)


def table(rows: list[BenchmarkRow]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| what | measured | budget | kept | note |", "|---|---|---|---|---|"]
    for row in rows:
        kept = "" if not row.budget else "yes" if row.ok else "**no**"
        lines.append(f"| {row.name} | {_number(row.value)} {row.unit} | {row.budget} | {kept} | {row.note} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    if isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
