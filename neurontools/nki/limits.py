"""Limits of a generation of NeuronCores, from `fixtures/engines/nki.yaml`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import yaml

from neurontools import env, paths
from neurontools.errors import UsageError
from neurontools.nki.errors import KernelUsageError

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
TARGETS = {"trn1": 2, "inf2": 2, "gen2": 2, "trn2": 3, "gen3": 3, "trn3": 4, "gen4": 4}
"""Generation of the NeuronCores of each target."""
DEFAULT_TARGET = "trn3"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one generation; `fixtures/engines/nki.yaml` explains each and names its document.

    `target` is the name of the device, such as trn2; `generation` the number of its NeuronCores' generation.
    """

    target: str
    generation: int
    partitions: int
    sbuf_partition_bytes: int
    sbuf_usable_bytes: int
    hbm_bytes: int
    psum_partition_bytes: int
    psum_bank_bytes: int
    psum_banks: int
    stationary_columns: int
    moving_columns: int
    moving_columns_bf16: int
    transpose_vector: int
    bn_stats_columns: int
    match_elements: int
    pattern_dims: int
    dma_sources: int
    gather_indices: int


@cache
def document() -> dict[str, Any]:
    """Return the data of NKI: limits, and functions with their signatures."""
    with open(f"{paths.fixtures_dir()}/engines/nki.yaml", encoding="utf-8") as file:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        data: dict[str, Any] = yaml.load(file, Loader=loader)  # noqa: S506
    return data


@cache
def limits_of(target: str) -> Limits:
    """Return the limits of a target such as trn2.

    Raises:
        UsageError: there is no such target.
    """
    generation = TARGETS.get(target)
    if generation is None:
        raise UsageError(f"unknown target {target!r} of a kernel", f"use one of {', '.join(TARGETS)}")
    values: dict[str, Any] = {}
    for item in fields(Limits)[2:]:
        value = document()["limits"][item.name]["value"]
        values[item.name] = value[f"gen{generation}"] if isinstance(value, dict) else value
    return Limits(target, generation, **values)


def chosen_target(default: str = DEFAULT_TARGET) -> str:
    """Return the target that the environment names, else that of neuron-run's machine, else a default."""
    named = os.environ.get(TARGET_VARIABLE, "").strip().lower()
    return named or (_machine()[0] if env.flag(env.RUN) else default)


def check_core_count(kernel: str, cores: int) -> None:
    """Refuse a launch on more cores than a logical NeuronCore has.

    NEURON_LOGICAL_NC_CONFIG says how many it has, else the machine of neuron-run; without both any launch is simulated.

    Raises:
        KernelUsageError: there are fewer.
    """
    from neurontools.collectives.machine_ranks import LNC, requested_lnc

    if cores == 1:
        return
    lnc = requested_lnc(os.environ)
    source = f"{LNC}={lnc}"
    if lnc is None and env.flag(env.RUN):
        target, lnc = _machine()
        source = f"the logical NeuronCores of the machine ({target}) have {lnc}"
    if lnc is not None and cores > lnc:
        raise KernelUsageError(
            f"{kernel}: a launch on {cores} cores, but {source}",
            f"call {kernel}[{lnc}](...), or use a machine with LNC {cores}: neurond start --instance trn2.3xlarge --lnc {cores}",
        )


@cache
def _machine() -> tuple[str, int]:
    """Return target and logical NeuronCore configuration of the machine."""
    from neurontools.compiler.options import target_of
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.runtime.core_claim import read_machine

    machine = read_machine(os.environ)
    return target_of(instance_type(machine.instance_type).device), machine.lnc


def nc_sub_version() -> int:
    """Return the revision of the NeuronCores: the first."""
    return 0
