"""One execution of a program on the buffers of its device."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Protocol

import torch

from neurontools.runtime.host_activity import observers
from neurontools.xla.custom_op_graph import in_machine_memory
from neurontools.xla.debugging import metrics
from neurontools.xla.execution import host_execution
from neurontools.xla.geometry import layout_geometry
from neurontools.xla.host_events import report_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Accelerator, Program
    from neurontools.xla.buffers import DeviceBuffer
    from neurontools.xla.memory import MemoryAccount
    from neurontools.xla.rng import DeviceGenerator


class ProgramBuffers(Protocol):
    """The buffers of a program by slot."""

    def __getitem__(self, slot: int, /) -> DeviceBuffer:
        """Return the buffer of an input or of a result."""


class ProgramRunner:
    """Executes the programs of one device.

    Args:
        index: the position of the device in this process.
        accelerator: the cores of this process.
        account: the device's memory.
        generator: its random numbers.
    """

    def __init__(
        self, index: int, accelerator: Accelerator, account: MemoryAccount, generator: DeviceGenerator
    ) -> None:
        self._index = index
        self._accelerator = accelerator
        self._account = account
        self._generator = generator

    def run(
        self,
        program: Program,
        buffers: ProgramBuffers,
        scalars: Sequence[float],
        calls: Callable[[], tuple[Node, ...]],
        *,
        computed: bool = False,
        hosts: list[torch.Tensor | None] | None = None,
    ) -> None:
        """Execute a program and fill the buffers of its results.

        Args:
            program: what is executed.
            buffers: its inputs with their contents, and its results.
            scalars: its scalar inputs.
            calls: returns its operators, for profilers.
            computed: whether the buffers have its results already.
            hosts: the contents of its inputs, in place of `buffers`; each is given up after its last use.
        """
        try:
            if program.fresh_bytes:
                self._account.charge(program.fresh_bytes)
            for slot in program.fresh:
                buffers[slot].mark_charged()
            if observers:
                report_results(self._index, program, buffers, calls)
            start_ns = time.perf_counter_ns()
            if program.loaded.extracted:
                _blank(buffers, program.loaded.graph.outputs)
            elif computed:
                self._accelerator.execute(program.loaded, lambda: None)
            else:
                self._compute(program, buffers, scalars, hosts)
            metrics.sample("ExecuteTime", time.perf_counter_ns() - start_ns)
        except BaseException:
            for slot in program.fresh:
                buffers[slot].host = None
            raise

    def gives_up_inputs(self, program: Program) -> bool:
        """Return whether a program may take its inputs as `hosts`."""
        return not (program.native or program.loaded.extracted or self._accelerator.dumps_inputs)

    def _compute(
        self,
        program: Program,
        buffers: ProgramBuffers,
        scalars: Sequence[float],
        given: list[torch.Tensor | None] | None,
    ) -> None:
        for slot in program.native:
            host = buffers[slot].host
            buffers[slot].host = host if host is None else in_machine_memory(host)
        hosts = [] if given is not None else [buffers[slot].host for slot in program.inputs]
        taken = hosts if given is None else _taken(given)
        run = functools.partial(program.executable(), taken, scalars)
        with host_execution():
            if program.random:
                with self._generator.scope():
                    outcome = self._accelerator.execute(program.loaded, run, hosts)
            else:
                outcome = self._accelerator.execute(program.loaded, run, hosts)
        for slot, host in zip(program.fresh, outcome, strict=True):
            buffers[slot].host = host


def _taken(hosts: list[torch.Tensor | None]) -> Iterator[torch.Tensor | None]:
    """Yield the items of a list, which is empty afterwards: the program alone holds them then."""
    hosts.reverse()
    while hosts:
        yield hosts.pop()


def _blank(buffers: ProgramBuffers, slots: Sequence[int]) -> None:
    """Set all results of a graph to zero, as the real device does while graphs are extracted."""
    with host_execution():
        for slot in slots:
            buffer = buffers[slot]
            if buffer.host is None:
                dtype, shape, strides, _ = layout_geometry(buffer.layout_id)
                buffer.host = torch.empty_strided(shape, strides, dtype=dtype)
            buffer.host.zero_()
