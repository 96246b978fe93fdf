"""The workers of a run: rank and world size from the variables that torchrun sets, and the core of each worker."""

from __future__ import annotations

import logging
import os
from multiprocessing import parent_process
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import UsageError
from neurontools.runtime.core_claim import NUM_CORES, VISIBLE_CORES, parse_visible_cores, read_machine
from neurontools.xla.device_name import XLA, device_name

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from neurontools.machine.instances.catalogue import InstanceType

_log = logging.getLogger("neurontools.xla")
_ROOT_PORT = 62182
_INDEX = "NEURON_PJRT_PROCESS_INDEX"


class WorkerError(UsageError):
    """The environment does not describe a run of several workers."""


def world_size() -> int:
    """Return the number of workers of the run."""
    return _number(os.environ, "WORLD_SIZE", 1)


def rank() -> int:
    """Return this worker's rank in the run."""
    return _number(os.environ, "RANK", 0)


def local_rank() -> int:
    """Return this worker's rank on its machine."""
    return _number(os.environ, "LOCAL_RANK", 0)


def local_world_size() -> int:
    """Return the number of workers on this machine."""
    return _number(os.environ, "LOCAL_WORLD_SIZE", 1)


def restart_count(size: int) -> int:
    """Return how often torchrun has restarted the workers; 0 if some of them are on other nodes, which count on their own.

    Args:
        size: number of workers of the run.
    """
    return _number(os.environ, "TORCHELASTIC_RESTART_COUNT", 0) if local_world_size() == size else 0


def assign_core(environ: MutableMapping[str, str]) -> None:
    """Assign a torchrun worker the core of its local rank and a tag, in the variables of the Neuron runtime.

    NEURON_RT_NUM_CORES is the number of cores per worker, except on the device `neuron`, where a worker has one.
    NEURON_RT_VISIBLE_CORES, if set, names the cores of all workers. Without LOCAL_RANK nothing changes; a second call
    has no effect.

    Raises:
        ValueError: NEURON_RT_VISIBLE_CORES names a different number of cores than there are workers.
        NrtError: it is malformed.
    """
    if "LOCAL_RANK" not in environ or has_own_core(environ):
        return
    own, count = _number(environ, "LOCAL_RANK", 0), _number(environ, "LOCAL_WORLD_SIZE", 1)
    environ[env.WORKERS_CORES] = environ.get(VISIBLE_CORES, "").strip()
    environ[VISIBLE_CORES] = _cores_of(own, count, environ)
    environ[_INDEX] = environ.get("RANK", "0")
    environ["NEURON_PJRT_WORLD_SIZE"] = environ.get("WORLD_SIZE", "1")
    if _number(environ, "WORLD_SIZE", 1) > 1:
        environ.setdefault("NEURON_PROCESS_TAG", f"rank{environ[_INDEX]}")
    environ["PJRT_LOCAL_PROCESS_COUNT"], environ["PJRT_LOCAL_PROCESS_RANK"] = str(count), str(own)
    environ.setdefault("NEURON_RT_ROOT_COMM_ID", f"{environ.get('MASTER_ADDR', 'localhost')}:{_ROOT_PORT}")


def assign_rank(rank: int, size: int, environ: MutableMapping[str, str]) -> None:
    """Make a process that names its rank itself a worker with the core of that rank.

    This applies to processes of multiprocessing, as torch.multiprocessing.spawn starts them, without LOCAL_RANK and
    NEURON_RT_NUM_CORES.

    Args:
        rank: its rank; all workers are taken to be on this machine.
        size: number of workers; with more than the machine has cores, nothing changes.
        environ: changed as torchrun and `assign_core` do.
    """
    if parent_process() is None or environ.get(NUM_CORES) or "LOCAL_RANK" in environ:
        return
    if 0 <= rank < size <= available_cores(environ):
        for variable, number in (("RANK", rank), ("WORLD_SIZE", size)):
            environ[variable] = environ[f"LOCAL_{variable}"] = str(number)
        assign_core(environ)


def has_own_core(environ: Mapping[str, str]) -> bool:
    """Return whether this is a worker with a core of its own, see `assign_core`."""
    return "LOCAL_RANK" in environ and environ.get(_INDEX) == environ.get("RANK", "0")


def check_worker_count(instance: InstanceType, lnc: int, environ: Mapping[str, str]) -> None:
    """Warn once per machine if the real instance does not support this number of workers."""
    from neurontools.collectives.fabric import allowed_ranks

    count = _number(environ, "LOCAL_WORLD_SIZE", 1)
    if count < 2 or _number(environ, "LOCAL_RANK", 0):
        return
    allowed = allowed_ranks(instance.name, lnc)
    if allowed is None:
        return
    several_nodes = _number(environ, "WORLD_SIZE", 1) > count
    choices = allowed[-1:] if several_nodes else allowed
    if count not in choices:
        _log.warning(
            "%d workers: a real %s (LNC %d) connects %s workers%s; the simulated one connects any number",
            count,
            instance.name,
            lnc,
            " or ".join(map(str, choices)),
            " per node" if several_nodes else "",
        )


def available_cores(environ: Mapping[str, str]) -> int:
    """Return the number of cores available to the workers of this machine; starts the machine if needed.

    Raises:
        NrtError: NEURON_RT_VISIBLE_CORES is malformed.
        NoMachineError: no machine runs and none may be started.
    """
    visible = environ.get(VISIBLE_CORES, "").strip()
    if visible:
        return len(parse_visible_cores(visible))
    return sum(len(device.core_ids) for device in read_machine(environ).devices)


def _cores_of(own: int, count: int, environ: Mapping[str, str]) -> str:
    visible = environ.get(VISIBLE_CORES, "").strip()
    if not visible:
        each = (_number(environ, NUM_CORES, 1) or 1) if device_name() == XLA else 1
        return str(own) if each == 1 else f"{own * each}-{own * each + each - 1}"
    cores = parse_visible_cores(visible)
    if len(cores) != count:
        raise ValueError(
            f"{VISIBLE_CORES}={visible} names {len(cores)} cores for {count} workers on this machine: "
            f"name {count}, or unset it"
        )
    if count > 1:
        _log.warning("Remapping %s %s to %d for local rank %d", VISIBLE_CORES, visible, cores[own], own)
    return str(cores[own])


def _number(environ: Mapping[str, str], variable: str, fallback: int) -> int:
    value = environ.get(variable, "")
    return int(value) if value.isdecimal() else fallback
