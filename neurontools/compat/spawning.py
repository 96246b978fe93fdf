"""Starts the workers of `xmp.spawn` and `torch_xla.launch`: one process per core, with the variables of torchrun."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neurontools.compat.dependency import torch
from neurontools.runtime import session
from neurontools.xla import api
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOPBACK = "127.0.0.1"


def spawn(
    fn: Callable[..., None],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run `fn(index, *args)` in several workers.

    Args:
        fn: importable by a new process.
        args: its further arguments.
        nprocs: number of workers; None: NEURONCORE_NUM_DEVICES, else one for each core. 1 runs `fn` in this process.
        join: wait for the workers.
        daemon: end the workers with this process.
        start_method: of multiprocessing; a forked process cannot use the device.

    Returns:
        None, or without `join` the workers as torch.multiprocessing.spawn returns them.

    Raises:
        RuntimeError: the device has been used in this process.
        ValueError: more workers than cores.
        ProcessRaisedException, ProcessExitedException: a worker failed; the others are ended.
    """
    if session.current() is not None:
        raise RuntimeError(
            "Runtime is already initialized. Do not use the XLA device before calling xmp.spawn."
        )
    requested = os.environ.get("NEURONCORE_NUM_DEVICES", "")
    if nprocs is None and requested.isdecimal():
        nprocs = int(requested)
    if nprocs == 1:
        fn(0, *args)
        return None
    cores = workers.available_cores(os.environ)
    count = cores if nprocs is None else nprocs
    if not 1 <= count <= cores:
        raise ValueError(
            f"Unsupported nprocs ({count}). Please use nprocs=1 or None (default). If None, spawn will use all "
            "available devices. Use the environment variable X_NUM_DEVICES (where X is CPU, TPU, NEURONCORE, etc) to "
            f"limit the number of devices used. This machine has {cores} NeuronCores."
        )
    # The store lives in this process, so the workers need no free port and no common start.
    store = torch.distributed.TCPStore(_LOOPBACK, 0, None, is_master=True, wait_for_workers=False)
    with _threads_per_worker(count):
        context = torch.multiprocessing.start_processes(
            _run_worker, (count, store.port, fn, args), count, False, daemon, start_method
        )
    context.store = store
    if not join:
        return context
    while not context.join():
        pass
    return None


def _run_worker(index: int, count: int, port: int, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(index),
        LOCAL_RANK=str(index),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR=_LOOPBACK,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    workers.assign_core(os.environ)
    api.activate()
    fn(index, *args)


@contextmanager
def _threads_per_worker(count: int) -> Iterator[None]:
    """Give each of several workers one thread, as torchrun does, unless OMP_NUM_THREADS is set."""
    if count == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
