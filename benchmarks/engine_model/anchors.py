"""The published figures of `fixtures/engines/anchors.yaml`, and the graph of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.engine_model import convolutional, training, transformers, vision_transformers
from benchmarks.engine_model.published import read_published

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.compiler.graph import Graph

BUILDERS: dict[str, Callable[..., Graph]] = {
    "matmul": transformers.matmul,
    "encoder": transformers.encoder,
    "decoder": transformers.decoder,
    "encoder_pretraining": training.encoder_pretraining,
    "vision_training": training.vision_training,
    "optimizer_step": training.optimizer_step,
    "vision_transformer": vision_transformers.vision_transformer,
    "clip": vision_transformers.clip,
    "resnet": convolutional.resnet,
    "vgg": convolutional.vgg,
    "unet": convolutional.unet,
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """A published figure.

    Args:
        name: identifies it, and decides its half.
        document: path in the repository aws-neuron-sdk.
        tag: of that repository.
        row: where in the document.
        instance: instance type.
        model: name in the file's list of models.
        parameters: of the model's builder, those of the workload included.
        matmul_dtype: what float32 products are cast to.
        figure: the published figure, as in the file.
        half: calibration or report.
        has_transfers: whether the figure contains transfers between host and device.
        step: what comes once in several executions: the parameters of its builder and how many executions.
    """

    name: str
    document: str
    tag: str
    row: str
    instance: str
    model: str
    parameters: Mapping[str, Any]
    matmul_dtype: str | None
    figure: Mapping[str, float]
    half: str
    has_transfers: bool = False
    step: Mapping[str, Any] | None = None

    @property
    def published_ms(self) -> float:
        """The time of one execution on one core that the figure says."""
        if "latency_ms" in self.figure:
            return self.figure["latency_ms"]
        items = self.parameters["batch"] * self.figure["cores"]
        return items / self.figure["throughput_per_s"] * 1e3

    def graphs(self) -> tuple[tuple[Graph, float], ...]:
        """Return the graphs of one execution, each with how often it runs."""
        parameters = dict(self.parameters)
        main = (BUILDERS[parameters.pop("builder")](**parameters), 1.0)
        if self.step is None:
            return (main,)
        rest = {name: value for name, value in self.step.items() if name != "every"}
        return main, (BUILDERS["optimizer_step"](**rest), 1 / self.step["every"])


@cache
def anchors() -> tuple[Anchor, ...]:
    """Return all published figures, in the file's order."""
    document = read_file()
    return tuple(_anchor(row, document) for row in document["anchors"])


def read_file() -> dict[str, Any]:
    """Return the file as it is."""
    return read_published("anchors")


def _anchor(row: dict[str, Any], document: dict[str, Any]) -> Anchor:
    return Anchor(
        name=row["name"],
        document=row["document"],
        tag=row["tag"],
        row=row["row"],
        instance=row["instance"],
        model=row["model"],
        parameters={**document["models"][row["model"]], **row["workload"]},
        matmul_dtype=row.get("matmul_dtype"),
        figure=row["published"],
        half=row["half"],
        has_transfers=row.get("transfers", False),
        step=row.get("step"),
    )
