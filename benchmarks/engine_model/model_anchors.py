"""Published times of whole models (`fixtures/engines/model_anchors.yaml`), and the half of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.engine_model import published
from benchmarks.engine_model.anchors import anchors
from benchmarks.engine_model.published import CALIBRATION

if TYPE_CHECKING:
    from collections.abc import Mapping

_SALT = "239"
"""The smallest number that gives each family about as many figures in both halves; chosen from the names alone."""


@dataclass(frozen=True, slots=True)
class ModelAnchor:
    """A published time of a whole model.

    Args:
        name: identifies it, and decides its half.
        family: kind of model and of time.
        document: path in the repository aws-neuron-sdk and its tag.
        row: where in the document.
        instance: instance type.
        model: name in the file's list of models.
        sizes: the model's public configuration, the name of its builder included.
        workload: workers, batch, lengths and data types of an execution.
        published: the figure as in the document, by unit.
    """

    name: str
    family: str
    document: str
    row: str
    instance: str
    model: str
    sizes: Mapping[str, Any]
    workload: Mapping[str, Any]
    published: Mapping[str, float]

    @property
    def published_ms(self) -> float:
        """The time of an execution (of a step in training) that the figure says."""
        if "latency_ms" in self.published:
            return self.published["latency_ms"]
        items = self.workload.get("global_batch") or self.workload["batch"] * self.workload["copies"]
        return items / self.published["per_s"] * 1e3

    @property
    def half(self) -> str:
        """Calibration or report."""
        return half_of(self.name)


def half_of(name: str) -> str:
    """Return the half of a name, which follows from the name alone; what calibrated before stays calibration."""
    if name in {anchor.name for anchor in anchors()}:
        return CALIBRATION
    return published.half_of(name, _SALT)


@cache
def model_anchors() -> tuple[ModelAnchor, ...]:
    """Return all published times, in the file's order."""
    document = read_file()
    return tuple(_anchor(row, document) for row in document["anchors"])


def read_file() -> dict[str, Any]:
    """Return the file as it is."""
    return published.read_published("model_anchors")


def _anchor(row: dict[str, Any], document: dict[str, Any]) -> ModelAnchor:
    source = document["documents"][row["document"]]
    return ModelAnchor(
        name=row["name"],
        family=row["family"],
        document=f"{source['path']} at {source['tag']}",
        row=row["row"],
        instance=row["instance"],
        model=row["model"],
        sizes=document["models"][row["model"]],
        workload=row["workload"],
        published=row["published"],
    )
