"""The ranks of nccom-test on a machine: claimed cores, and the machine's faults as the runtime knows them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.collectives.claim import CollectiveFailedError, NoRanks, claimed
from neurontools.machine.memory import MemoryUse
from neurontools.runtime.faults import Faults
from neurontools.runtime.log import RuntimeLog
from neurontools.runtime.models import Model
from neurontools.runtime.status import NrtError
from neurontools.runtime.versions import RUNTIME_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.collectives.benchmark import Benchmark
    from neurontools.collectives.claim import MachineView, Ranks
    from neurontools.machine.client import Client
    from neurontools.machine.pages.page import PageWriter

_TAG_CHARACTERS = 255


@contextmanager
def ranks_on(machine: MachineView | None, benchmarks: tuple[Benchmark, ...]) -> Iterator[Ranks]:
    """Hold the cores of the ranks; without a machine nothing is held.

    Raises:
        CoresBusyError, DeviceLostError: cores are not free, or not there any more.
        DaemonError: the daemon refuses or fails.
    """
    if machine is None:
        yield NoRanks()
        return
    cores = tuple(core for group in benchmarks[0].works[0].groups for core in group)
    uses_links = len({machine.over.device_of(core) for core in cores}) > 1
    with claimed(
        machine.name,
        cores,
        lambda client, writer: _RuntimeFaults(client, writer, machine.over.instance, uses_links=uses_links),
        command=" ".join(sys.orig_argv),
        tag=os.environ.get("NEURON_PROCESS_TAG", "")[:_TAG_CHARACTERS],
        runtime_version=RUNTIME_VERSION,
        paced=env.flag(env.PACE),
    ) as ranks:
        yield ranks


class _RuntimeFaults:
    """Asks the runtime what a fault does to an execution; a broken link harms those that use links."""

    def __init__(self, client: Client, writer: PageWriter, instance: str, *, uses_links: bool) -> None:
        self._faults = Faults(client, writer, RuntimeLog(os.environ), os.environ, instance)
        self._uses_links = uses_links

    def __call__(self, core: int) -> tuple[int, float]:
        try:
            _, status, slower = self._faults.execute(_model(core, collective=self._uses_links), lambda: None)
        except NrtError as error:
            raise CollectiveFailedError(error.message, error.remedy, status=int(error.status)) from error
        return int(status), slower


def _model(core: int, *, collective: bool) -> Model:
    return Model(
        model_id=1,
        name="nccom-test",
        uuid=b"",
        nc=core,
        core=core,
        neff=b"",
        modelled_ns=0,
        flops=0,
        gpsimd_ns=0,
        memory=MemoryUse(),
        page_slot=-1,
        collective=collective,
    )
