"""Serving: time to the first token, time of a token, throughput and cost by instance type, degree, batch and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.units import format_size
from neurontools.estimate.models import ModelError, ModelPhase, RankRun, check_length
from neurontools.estimate.placement import PlacementError, degrees_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from neurontools.estimate.models import ModelFacts
    from neurontools.estimate.placement import Placement
    from neurontools.estimate.steps import ModelledStep, Steps


@dataclass(frozen=True, slots=True)
class Load:
    """Requests: their batch, and tokens in and out; an encoder gives none out."""

    batch: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Serving:
    """A modelled way to serve a model on an instance type, whose cores hold `replicas` of it.

    Times in ns, bytes of a rank; `token_ns` is 0 for an encoder. `tokens_s` are those of all replicas, output tokens of
    decoders, whose prompts are computed one after another, and input tokens of encoders. `price` is that of a million
    of them, None without a price list; `family` is that of `ModelFacts`.
    """

    instance: str
    lnc: int
    tensor: int
    replicas: int
    batch: int
    prompt: int
    output: int
    weight_bytes: int
    cache_bytes: int
    scratch_bytes: int
    hbm_bytes: int
    first_ns: int
    token_ns: int
    tokens_s: float
    bound_first: str
    bound_token: str
    mfu_first: float
    price: float | None
    family: str
    fallback: str

    @property
    def used_bytes(self) -> int:
        """Return the HBM in use on a rank."""
        return self.weight_bytes + self.cache_bytes + self.scratch_bytes


def serve(
    steps: Steps,
    places: Sequence[Placement],
    loads: Sequence[Load],
    wanted: Sequence[int] = (),
    prices: Mapping[str, float] | None = None,
) -> list[Serving]:
    """Return every way to serve a model that fits in HBM, unsorted.

    Args:
        steps: the model's executions.
        places: instance types.
        loads: requests.
        wanted: tensor-parallel degrees; without them, the smallest that fits and all above it.
        prices: prices an hour by instance type.

    Raises:
        ModelError: a length or degree does not fit the model.
        PlacementError: no instance type holds it.
    """
    for load in loads:
        _check(steps.facts, load)
    choices = [
        (place, load, degree)
        for place in places
        for load in loads
        for degree in degrees_on(steps.facts, place, wanted)
        if wanted or steps.can_share(degree)
    ]
    options = list(_fitting(steps, choices, prices or {}))
    if not options:
        raise _nowhere(steps, places, choices, wanted)
    return options


def _check(facts: ModelFacts, load: Load) -> None:
    if facts.source and load.prompt != facts.source:
        raise ModelError(
            f"the encoder of {facts.name} always reads {facts.source} positions, not {load.prompt}",
            f"--prompt {facts.source}",
        )
    check_length(facts, load.output if facts.has_encoder else load.prompt + load.output * facts.causal)


def _fitting(
    steps: Steps, choices: Iterable[tuple[Placement, Load, int]], prices: Mapping[str, float]
) -> Iterator[Serving]:
    for place, load, degree in choices:
        if steps.weight_bytes(degree) > place.hbm_bytes:
            continue  # nothing has to be scheduled
        serving = _serving(steps, place, load, degree, prices.get(place.instance.name))
        if serving.used_bytes <= place.hbm_bytes:
            yield serving


def _serving(steps: Steps, place: Placement, load: Load, degree: int, hourly: float | None) -> Serving:
    from neurontools.compiler.engines.modelled_core import engine_costs

    facts, device, lnc = steps.facts, place.instance.device, place.lnc
    at_once = 1 if facts.causal else load.batch
    length, source = (1, load.prompt) if facts.has_encoder else (load.prompt, 0)
    first = steps.step(RankRun(ModelPhase.PROMPT, at_once, length, degree, source=source), device, lnc)
    token: ModelledStep | None = None
    if facts.causal and load.output:
        kept = load.output + (0 if facts.has_encoder else load.prompt)
        run = RankRun(ModelPhase.DECODING, load.batch, kept, degree, source=source)
        token = steps.step(run, device, lnc)
    replicas = place.cores // degree
    if token is None:
        tokens, time_ns = load.prompt * at_once, first.time_ns
    else:
        tokens = load.batch * load.output
        time_ns = load.batch * first.time_ns + load.output * token.time_ns
    tokens_s = replicas * tokens / time_ns * 1e9
    costs = engine_costs(device.core.name)
    return Serving(
        instance=place.instance.name,
        lnc=lnc,
        tensor=degree,
        replicas=replicas,
        batch=load.batch,
        prompt=load.prompt,
        output=load.output,
        weight_bytes=int(first.weight_bytes),
        cache_bytes=int((token or first).cache_bytes),
        scratch_bytes=int(max(first.scratch_bytes, token.scratch_bytes if token else 0)),
        hbm_bytes=place.hbm_bytes,
        first_ns=round(first.time_ns),
        token_ns=round(token.time_ns) if token else 0,
        tokens_s=tokens_s,
        bound_first=first.bound,
        bound_token=token.bound if token else "",
        mfu_first=first.mfu(device, lnc),
        price=None if hourly is None else hourly / 3600 / tokens_s * 1e6,
        family=facts.family,
        fallback=costs.version if costs.is_fallback else "",
    )


def _nowhere(
    steps: Steps,
    places: Sequence[Placement],
    choices: Sequence[tuple[Placement, Load, int]],
    wanted: Sequence[int],
) -> PlacementError | ModelError:
    if not choices:
        asked = f"a tensor-parallel degree of {min(wanted)}" if wanted else "one core"
        return PlacementError(
            f"no instance type given has the cores for {asked}", "give larger ones: --instance"
        )
    place, load, degree = max(choices, key=lambda choice: choice[2] * choice[0].hbm_bytes)
    weights = steps.weight_bytes(degree)
    names = ", ".join(dict.fromkeys(each.instance.name for each in places))
    return PlacementError(
        f"{steps.facts.name} does not fit on {names if len(places) < 4 else 'any instance type'}: on {degree} cores of "
        f"{place.instance.name} its weights are {format_size(weights)} a core, beside keys and values of "
        f"{load.batch} x {load.prompt + load.output} tokens, and a core has {format_size(place.hbm_bytes)}",
        "use a larger instance, a smaller batch, or shorter lengths",
    )
