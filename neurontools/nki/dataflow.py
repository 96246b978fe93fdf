"""The flow of a core's data: writes that nothing reads, sums that start wrongly, iterations that depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.nki.dependences import PRODUCTS, adds_up, check_dependences
from neurontools.nki.iterations import separating_loop
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.regions import Boxes

if TYPE_CHECKING:
    from neurontools.nki.context import Core, ElementAccess, Record
    from neurontools.nki.iterations import Iteration
    from neurontools.nki.memory import Allocation
    from neurontools.nki.regions import Box

_FILLS = frozenset({"memset", "iota", "shared_identity_matrix", "rand", "rng"})
_COPIES = frozenset({"dma_copy", "tensor_copy"})
_PARTIAL = frozenset(
    {"nc_stream_shuffle", "nonzero_with_count", "local_gather", "quantize_mx", "tensor_copy_predicated"}
)
"""Instructions that leave some elements of their destination as they are."""
_WITH_REGISTERS = frozenset(
    {
        "tensor_scalar_reduce",
        "exponential",
        "range_select",
        "select_reduce",
        "tensor_scalar_cumulative",
        "tensor_tensor_scan",
    }
)
"""Instructions whose result may be in accumulator registers."""
_NOT_NEEDED = _FILLS | _WITH_REGISTERS
"""Instructions that may write what nothing reads."""


class _History(Boxes):
    """The last writes of a tensor by box, which of them no instruction has read, and their iterations."""

    __slots__ = ("is_read", "iterations", "writers")

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[Record | None] = []
        self.is_read: list[bool] = []
        self.iterations: list[Iteration | None] = []

    def _add(self, box: Box, number: int) -> None:
        super()._add(box, number)
        self.writers.append(None)
        self.is_read.append(True)
        self.iterations.append(None)


def check_dataflow(core: Core) -> None:
    """Warn of writes that are overwritten before they are read, and of products that add to other values."""
    _Checker(core).run()


class _Checker:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.launch = core.launch
        self.histories: dict[Allocation, _History] = {}
        self.has_peer = len(core.launch.cores) > 1
        self.reported: set[tuple[object, object]] = set()
        self.iteration: Iteration | None = None
        self.carrying: set[Allocation] = set()

    def run(self) -> None:
        histories = self.histories
        for record in self.core.records:
            for access in record.writes:
                if access.allocation not in histories:
                    histories[access.allocation] = _History()
        for iteration, records in self.core.by_iteration():
            self.iteration = iteration
            self._follow(records)
        if self.carrying:
            check_dependences(self.core, self.carrying)

    def _follow(self, records: list[Record]) -> None:
        """Follow the data through instructions of one iteration."""
        histories, iteration = self.histories, self.iteration
        for record in records:
            for access in record.reads:
                allocation = access.allocation
                history = histories.get(allocation)
                if history is None:
                    if allocation.is_empty:
                        self._unwritten(record, access)
                    continue
                overlapping = history.overlapping[history.number(access)]
                is_read, iterations = history.is_read, history.iterations
                for other in overlapping:
                    is_read[other] = True
                    before = iterations[other]
                    if before is not iteration and before is not None:
                        self._depend(record, allocation, before)
                if allocation.is_empty and not any(map(history.writers.__getitem__, overlapping)):
                    self._unwritten(record, access)
            for access in record.writes:
                self._write(record, access, histories[access.allocation])

    def _depend(self, record: Record, allocation: Allocation, before: Iteration) -> None:
        """Note a tensor that an instruction reads whose value comes from another iteration, unless it adds to it."""
        if separating_loop(before, self.iteration) is not None and not any(
            write.allocation is allocation and adds_up(record, write) for write in record.writes
        ):
            self.carrying.add(allocation)

    def _started(
        self, record: Record, access: ElementAccess, history: _History, node: int
    ) -> Iteration | None:
        """Return the iteration of a value that is written: that of the sum that it goes on with."""
        started = self.iteration
        for other in history.overlapping[node]:
            before = history.iterations[other]
            if separating_loop(before, self.iteration) is None:
                continue
            if adds_up(record, access):
                started = before
            else:
                self.carrying.add(access.allocation)
        return started

    def _unwritten(self, record: Record, access: ElementAccess) -> None:
        label = access.allocation.label
        self.launch.warn(
            "unwritten",
            f"{record.opcode}: reads elements of {label} that were never written ({label} declared at {access.allocation.location})",
            record.location,
        )

    def _write(self, record: Record, access: ElementAccess, history: _History) -> None:
        is_read, writers, iterations = history.is_read, history.writers, history.iterations
        node, opcode, options = history.number(access), record.opcode, record.options
        covered = history.covered[node]
        started = self._started(record, access, history, node) if self.iteration is not None else None
        accumulates = opcode in PRODUCTS and options.get("accumulate") is not False
        if accumulates:
            self._check_sum(record, access, history, node)
        elif opcode not in _PARTIAL and not options.get("accumulates"):
            for other in covered:
                before = writers[other]
                if before is not None and not is_read[other] and history.boxes[node].is_exact:
                    self._lost(before, record, access)
        for other in covered:  # itself among them
            writers[other], is_read[other], iterations[other] = record, True, started
        is_read[node] = (
            len(record.writes) > 1
            or opcode in _NOT_NEEDED
            or bool(options.get("registers"))
            or (self.has_peer and access.allocation.region not in ON_CHIP)  # the other core may read it
        )

    def _check_sum(self, record: Record, access: ElementAccess, history: _History, node: int) -> None:
        """Warn of a product that adds to what another instruction left in PSUM."""
        before = history.writers[node]
        if before is None or access.allocation.region is not MemoryRegion.psum or before.opcode in PRODUCTS:
            if before is not None and history.is_read[node] and record.options.get("accumulate") is None:
                self._warn_sum(
                    record,
                    before,
                    f"adds to a sum of {access.allocation.label} that was read after",
                    "pass accumulate=False to start a sum",
                )
            return
        if self.core.limits.generation < _FOURTH:
            self._warn_sum(
                record,
                before,
                f"adds to what {before.opcode} wrote to {access.allocation.label} at",
                "only sums of products go on in PSUM",
            )

    def _warn_sum(self, record: Record, before: Record, what: str, remedy: str) -> None:
        key = (record.location, before.location)
        if key not in self.reported:
            self.reported.add(key)
            self.launch.warn("sum", f"{record.opcode}: {what} {before.location}; {remedy}", record.location)

    def _copies_fill(self, record: Record) -> bool:
        """Return whether an instruction copies a constant, as kernels fill tensors in HBM."""
        if record.opcode not in _COPIES:
            return False
        source = record.reads[0]
        history = self.histories.get(source.allocation)
        if history is None:
            return False
        node = history.number(source)
        writers = [history.writers[other] for other in history.overlapping[node]]
        return all(writer is None or writer.opcode in _FILLS for writer in writers)

    def _lost(self, before: Record, record: Record, access: ElementAccess) -> None:
        key = (before.location, record.location)
        if key not in self.reported and not self._copies_fill(before):
            self.reported.add(key)
            label = access.allocation.label
            self.launch.warn(
                "lost",
                f"{before.opcode}: what it writes to {label} is overwritten by {record.opcode} at {record.location} before it is read",
                before.location,
            )


_FOURTH = 4
