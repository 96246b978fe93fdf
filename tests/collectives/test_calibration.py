"""The model meets every published number, and prints the documents' example as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from neurontools import paths
from neurontools.collectives.fabric import constants
from neurontools.collectives.model import modelled_time
from neurontools.commands.nccom_test import main

# Two rows of the example in the AWS Neuron documentation, nccom-test user guide.
EXAMPLE = [
    "size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)",
    "   1024             256    fp32            6.19           0.17           0.16",
    " 524288          131072    fp32           23.11          22.69          21.98",
]


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """A published number: the time of one size, or the mean bus bandwidth (bytes/s) of several; None for the other."""

    name: str
    source: str
    instance: str
    operation: str
    ranks: int
    nbytes: tuple[int, ...]
    time_s: float | None
    bus_bandwidth: float | None
    tolerance: float


def calibration() -> tuple[CalibrationPoint, ...]:
    """Return the published numbers that the model was fitted to."""
    document = yaml.safe_load(Path(paths.fixtures_dir(), "collectives", "calibration.yaml").read_text())
    return tuple(to_point(name, value) for name, value in document.items())


def to_point(name: str, value: dict[str, Any]) -> CalibrationPoint:
    time_us, rate = value.get("time_us"), value.get("bus_bandwidth")
    return CalibrationPoint(
        name=name,
        source=value["source"],
        instance=value["instance"],
        operation=value["operation"],
        ranks=value["ranks"],
        nbytes=tuple(value["bytes"]),
        time_s=None if time_us is None else time_us * 1e-6,
        bus_bandwidth=None if rate is None else rate * 1e9,
        tolerance=value["tolerance"],
    )


@pytest.mark.parametrize("point", calibration(), ids=lambda point: point.name)
def test_the_model_meets_a_published_number(point: CalibrationPoint):
    times = [modelled_time(point.operation, nbytes, point.ranks, point.instance) for nbytes in point.nbytes]
    if point.time_s is not None:
        assert times[0].time_s == pytest.approx(point.time_s, rel=point.tolerance)
    else:
        mean = fmean(time.bus_bandwidth for time in times)
        assert mean == pytest.approx(point.bus_bandwidth, rel=point.tolerance)


def test_every_published_number_names_its_source():
    assert all(point.source and point.tolerance <= 0.03 for point in calibration())
    assert all((point.time_s is None) != (point.bus_bandwidth is None) for point in calibration())


def test_the_documents_example_is_printed_byte_for_byte(capsys):
    words = [
        "--instance",
        "trn1.32xlarge",
        "-r",
        "32",
        "-b",
        "1024",
        "-e",
        "524288",
        "-i",
        "523264",
        "-d",
        "fp32",
        "all_gather",
    ]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:3] == EXAMPLE
    assert out.splitlines()[3].startswith("Avg bus bandwidth:\t")
    assert err == ""


def test_shares_are_shares():
    fitted = constants()
    for share in (fitted.link_share, fitted.core_share, fitted.reduction_share, fitted.network_share):
        assert 0 < share < 1
