"""Training: time and memory of a step with AdamW, MFU and cost by instances, degrees, batch and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.units import format_size
from neurontools.estimate.models import ModelError, ModelPhase, RankRun, check_length
from neurontools.estimate.placement import PlacementError, degrees_on, is_joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.estimate.placement import Placement
    from neurontools.estimate.steps import Steps


@dataclass(frozen=True, slots=True)
class Batch:
    """What one replica computes in a step: micro-batches of sequences, and their tokens."""

    size: int
    length: int
    micro_batches: int = 1


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How training is spread.

    Args:
        tensor: tensor-parallel degrees; empty for the smallest that fits and all above it.
        stages: numbers of pipeline stages.
        instances: numbers of instances.
        zero1: whether replicas share the optimizer states.
        tokens: of the whole run, None for a run without a length.
    """

    tensor: Sequence[int] = ()
    stages: Sequence[int] = (1,)
    instances: Sequence[int] = (1,)
    zero1: bool = False
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """A modelled way to train a model on instances, whose cores hold `replicas` of it (data parallelism).

    Times in ns, bytes of a rank; `scratch_bytes` are activations and gradients. `tokens_s` are those of all replicas.
    `price` is that of the whole run, or of a million tokens where the run has no length; None without a price list.
    """

    instance: str
    instances: int
    lnc: int
    tensor: int
    stages: int
    replicas: int
    batch: int
    micro_batches: int
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
    plan: TrainingPlan,
    prices: Mapping[str, float] | None = None,
) -> list[Training]:
    """Return every way to train a model that fits in HBM, unsorted.

    Args:
        steps: the model's executions.
        places: instance types.
        batches: of a replica.
        plan: how it is spread.
        prices: prices an hour by instance type.

    Raises:
        ModelError: a length, a degree or a number of stages does not fit the model.
        PlacementError: no instance type holds it.
    """
    facts = steps.facts
    for batch in batches:
        check_length(facts, batch.length)
    for stages in plan.stages:
        if stages > 1 and (facts.has_encoder or stages > facts.stacks[0]):
            raise ModelError(
                f"{stages} pipeline stages do not divide the layers of {facts.name}"
                if not facts.has_encoder
                else f"pipeline stages of encoder and decoder ({facts.name}) are not modelled",
                "give a smaller --pp",
            )
    options = list(_fitting(steps, places, batches, plan, prices or {}))
    if not options:
        raise _nowhere(steps, places, plan)
    return options


def _nowhere(steps: Steps, places: Sequence[Placement], plan: TrainingPlan) -> PlacementError:
    most, name = max((place.cores * max(plan.instances), place.instance.name) for place in places)
    least = min(plan.tensor, default=1) * min(plan.stages)
    if least > most:
        return PlacementError(
            f"{least} ranks share the model, and {name} has {most} cores", "give larger or more instances"
        )
    if max(plan.instances) > 1 and not any(map(is_joined, places)):
        return PlacementError(
            f"several instances of {name} are not modelled: of each device only the largest type has a fast network",
            "give trn1.32xlarge or another of the largest types",
        )
    whole_bytes = 4 * steps.weight_bytes(1)
    return PlacementError(
        f"{steps.facts.name} cannot be trained on the instance types given: weights, gradients and the states of AdamW "
        f"are {format_size(whole_bytes)} beside activations",
        "use larger or more instances, a higher --tp or --pp, a smaller batch, --zero1 or --checkpoints",
    )


def _fitting(
    steps: Steps,
    places: Sequence[Placement],
    batches: Sequence[Batch],
    plan: TrainingPlan,
    prices: Mapping[str, float],
) -> Iterator[Training]:
    choices = (
        (place, instances, stages, degree)
        for place in places
        for instances in plan.instances
        if instances == 1 or is_joined(place)
        for stages in plan.stages
        for degree in degrees_on(steps.facts, place, plan.tensor)
        if degree * stages <= place.cores * instances and (plan.tensor or steps.can_share(degree))
    )
    for place, instances, stages, degree in choices:
        if 2 * steps.weight_bytes(degree) / stages > place.hbm_bytes:
            continue  # with gradients; nothing has to be scheduled
        hourly = prices.get(place.instance.name)
        price = None if hourly is None else hourly * instances
        for batch in batches:
            training = _training(steps, place, (instances, stages, degree), batch, plan, price)
            if training.used_bytes <= place.hbm_bytes:
                yield training


def _training(
    steps: Steps,
    place: Placement,
    shape: tuple[int, int, int],
    batch: Batch,
    plan: TrainingPlan,
    hourly: float | None,
) -> Training:
    from neurontools.compiler.engines.modelled_core import engine_costs

    device, lnc = place.instance.device, place.lnc
    instances, stages, degree = shape
    replicas = place.cores * instances // (degree * stages)
    layers = -(-steps.facts.stacks[0] // stages) if stages > 1 else 0
    accumulates = batch.micro_batches > 1
    source = batch.length if steps.facts.has_encoder else 0
    run = RankRun(
        ModelPhase.TRAINING,
        batch.size,
        batch.length,
        degree,
        replicas,
        steps.facts.source or source,
        is_stage=stages > 1,
        accumulates=accumulates,
        zero1=plan.zero1,
    )
    last = steps.step(run, device, lnc, layers)
    time_ns, flops, busy_ns = last.time_ns, last.flops, last.busy_ns
    passes = batch.micro_batches + stages - 2  # beside the last one; those of other stages fill the pipeline
    if passes:
        part = run._replace(phase=ModelPhase.GRADIENTS, data=1, zero1=False)
        other = steps.step(part, device, lnc, layers)
        time_ns += passes * other.time_ns
        flops += (batch.micro_batches - 1) * other.flops
        busy_ns = tuple(all_ns + passes * ns for all_ns, ns in zip(busy_ns, other.busy_ns, strict=True))
    whole = last._replace(time_ns=time_ns, flops=flops, busy_ns=busy_ns)
    divided = 1 / replicas if plan.zero1 else 1.0
    in_flight = min(stages, batch.micro_batches)
    gradients = 0 if accumulates else min(last.weight_bytes, last.scratch_bytes)
    activations = last.scratch_bytes - gradients
    tokens_s = replicas * batch.size * batch.micro_batches * batch.length / time_ns * 1e9
    run_s = None if plan.tokens is None else plan.tokens / tokens_s
    costs = engine_costs(device.core.name)
    return Training(
        instance=place.instance.name,
        instances=instances,
        lnc=lnc,
        tensor=degree,
        stages=stages,
        replicas=replicas,
        batch=batch.size,
        micro_batches=batch.micro_batches,
        length=batch.length,
        weight_bytes=int(last.weight_bytes),
        optimizer_bytes=int((3 if plan.zero1 and replicas > 1 else 2) * divided * last.weight_bytes),
        scratch_bytes=int(activations * in_flight + (last.weight_bytes if accumulates else gradients)),
        hbm_bytes=place.hbm_bytes,
        step_ns=round(time_ns),
        tokens_s=tokens_s,
        mfu=whole.mfu(device, lnc),
        bound=whole.bound,
        run_s=run_s,
        price=None if hourly is None else hourly / 3600 * (1e6 / tokens_s if run_s is None else run_s),
        fallback=costs.version if costs.is_fallback else "",
    )
