"""The constants of `fixtures/collectives/*.yaml` as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from neurontools import paths


@dataclass(frozen=True, slots=True)
class Constants:
    """The cost model's constants: latencies in seconds, shares of the catalogue's rates, spread of iterations."""

    launch_s: float
    step_s: float
    hop_s: float
    peer_s: float
    network_s: float
    link_share: float
    core_share: float
    reduction_share: float
    network_share: float
    jitter: float


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


@cache
def constants() -> Constants:
    """Return the cost model's constants."""
    document = _read("model.yaml")
    latency = {f"{name}_s": us * 1e-6 for name, us in document["latency_us"].items()}
    share = {f"{name}_share": value for name, value in document["share"].items()}
    return Constants(**latency, **share, jitter=document["jitter"])


@cache
def allowed_ranks(instance: str, lnc: int) -> tuple[int, ...] | None:
    """Return how many ranks can take part on one instance, None where any number can."""
    counts = _read("ranks.yaml").get(instance, {}).get(lnc)
    return None if counts is None else tuple(counts)


def calibration() -> tuple[CalibrationPoint, ...]:
    """Return the published numbers that the model was fitted to."""
    return tuple(_point(name, value) for name, value in _read("calibration.yaml").items())


def _point(name: str, value: dict[str, Any]) -> CalibrationPoint:
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


def _read(name: str) -> dict[str, Any]:
    import yaml

    with open(f"{paths.fixtures_dir()}/collectives/{name}", encoding="utf-8") as file:
        document: dict[str, Any] = yaml.safe_load(file)
    return document
