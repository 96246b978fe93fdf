"""Training: time and memory of a step with AdamW, MFU and cost by instance type, degree, batch and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.units import format_size
from neurontools.estimate.graphs import ModelPhase
from neurontools.estimate.models import check_length
from neurontools.estimate.placement import PlacementError, degrees_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.estimate.placement import Placement
    from neurontools.estimate.steps import Steps


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that one replica computes in a step, and their tokens."""

    size: int
    length: int


@dataclass(frozen=True, slots=True)
class Training:
    """A modelled way to train a model on one instance, whose cores hold `replicas` of it (data parallelism).

    Times in ns, bytes of a rank; `scratch_bytes` are activations and gradients. `tokens_s` are those of all replicas.
    `price` is that of the whole run, or of a million tokens where the run has no length; None without a price list.
    """

    instance: str
    lnc: int
    tensor: int
    replicas: int
    batch: int
    length: int
    weight_bytes: int
    optimizer_bytes: int
    scratch_bytes: int
    hbm_bytes: int
    step_ns: int
    tokens_s: float
    mfu: float
    bound: str
    run_s: float | None
    price: float | None
    fallback: str

    @property
    def used_bytes(self) -> int:
        """Return the HBM in use on a rank."""
        return self.weight_bytes + self.optimizer_bytes + self.scratch_bytes


def train(
    steps: Steps,
    places: Sequence[Placement],
    batches: Sequence[Batch],
    wanted: Sequence[int] = (),
    prices: Mapping[str, float] | None = None,
    tokens: float | None = None,
) -> list[Training]:
    """Return every way to train a model that fits in HBM, unsorted.

    Args:
        steps: the model's executions.
        places: instance types.
        batches: of a replica.
        wanted: tensor-parallel degrees; without them, the smallest that fits and all above it.
        prices: prices an hour by instance type.
        tokens: of the whole run, None for a run without a length.

    Raises:
        ModelError: a length or degree does not fit the model.
        PlacementError: no instance type holds it.
    """
    for batch in batches:
        check_length(steps.model, batch.length)
    options = list(_fitting(steps, places, batches, wanted, prices or {}, tokens))
    if not options:
        whole_bytes = 4 * steps.weight_bytes(ModelPhase.PROMPT, 1)
        raise PlacementError(
            f"{steps.model.name} cannot be trained on the instance types given: weights, gradients and the states of AdamW "
            f"are {format_size(whole_bytes)} beside activations",
            "use a larger instance, a higher --tp, a smaller batch, or --checkpoints",
        )
    return options


def _fitting(
    steps: Steps,
    places: Sequence[Placement],
    batches: Sequence[Batch],
    wanted: Sequence[int],
    prices: Mapping[str, float],
    tokens: float | None,
) -> Iterator[Training]:
    for place in places:
        for degree in degrees_on(steps.model, place, wanted):
            if 4 * steps.weight_bytes(ModelPhase.PROMPT, degree) > place.hbm_bytes:
                continue  # with gradients and two states; nothing has to be scheduled
            for batch in batches:
                training = _training(steps, place, batch, degree, prices.get(place.instance.name), tokens)
                if training.used_bytes <= place.hbm_bytes:
                    yield training


def _training(
    steps: Steps, place: Placement, batch: Batch, degree: int, hourly: float | None, tokens: float | None
) -> Training:
    from neurontools.compiler.engines.modelled_core import engine_costs

    device, replicas = place.instance.device, place.cores // degree
    step = steps.step(ModelPhase.TRAINING, batch.size, batch.length, degree, device, place.lnc, replicas)
    tokens_s = replicas * batch.size * batch.length / step.time_ns * 1e9
    run_s = None if tokens is None else tokens / tokens_s
    costs = engine_costs(device.core.name)
    return Training(
        instance=place.instance.name,
        lnc=place.lnc,
        tensor=degree,
        replicas=replicas,
        batch=batch.size,
        length=batch.length,
        weight_bytes=int(step.weight_bytes),
        optimizer_bytes=int(2 * step.weight_bytes),
        scratch_bytes=int(step.scratch_bytes),
        hbm_bytes=place.hbm_bytes,
        step_ns=round(step.time_ns),
        tokens_s=tokens_s,
        mfu=step.mfu(device, place.lnc),
        bound=step.bound,
        run_s=run_s,
        price=None if hourly is None else hourly / 3600 * (1e6 / tokens_s if run_s is None else run_s),
        fallback=costs.version if costs.is_fallback else "",
    )
