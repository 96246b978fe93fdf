"""Reports of `check`: made for an operator of a package, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.customop.checking.check import check
from neurontools.customop.checking.inputs import parse_pattern
from neurontools.customop.checking.report import CheckReport, CheckSettings
from neurontools.customop.package import find_operator

if TYPE_CHECKING:
    from neurontools.customop.package import Package


def checked(package: Package, op: str, *inputs: str, **settings: object) -> CheckReport:
    """Return the report of an operator; 2 inputs for each pattern unless the settings say otherwise."""
    values: dict[str, object] = {"patterns": tuple(map(parse_pattern, inputs)), "count": 2, **settings}
    return check(package, find_operator(package, op), CheckSettings(**values))  # type: ignore[arg-type]


def told(report: CheckReport) -> dict[str, str]:
    """Return the messages of a report by the checks that failed."""
    return {finding.check: finding.message for finding in report.findings}
