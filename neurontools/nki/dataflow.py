"""What the records of a core say about its data: writes that nothing reads, and sums in PSUM that start wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.regions import BoxCache, Boxes

if TYPE_CHECKING:
    from neurontools.nki.context import Core, ElementAccess, Record
    from neurontools.nki.memory import Allocation
    from neurontools.nki.regions import Box

_FILLS = frozenset({"memset", "iota", "shared_identity_matrix", "rand", "rng"})
_PRODUCTS = frozenset({"nc_matmul", "nc_matmul_mx"})
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
"""Instructions whose result may be in accumulator registers, so that no one needs what they write."""


class _History:
    """The last writes of a tensor by box, and which of them no instruction has read."""

    __slots__ = ("boxes", "is_read", "writers")

    def __init__(self) -> None:
        self.boxes = Boxes()
        self.writers: list[Record | None] = []
        self.is_read: list[bool] = []

    def node(self, box: Box) -> int:
        number = self.boxes.number(box)
        if number == len(self.writers):
            self.writers.append(None)
            self.is_read.append(True)
        return number


def check_dataflow(core: Core) -> None:
    """Warn of writes that are overwritten before they are read, and of products that add to other values."""
    _Checker(core).run()


class _Checker:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.launch = core.launch
        self.cache = BoxCache()
        self.histories: dict[Allocation, _History] = {}
        self.has_peer = len(core.launch.cores) > 1
        self.reported: set[tuple[object, object]] = set()

    def run(self) -> None:
        records, histories = self.core.records, self.histories
        for record in records:
            for access in record.writes:
                allocation = access.allocation
                if allocation not in histories and not (self.has_peer and allocation.region not in ON_CHIP):
                    histories[allocation] = (
                        _History()
                    )  # of others in HBM, which the other core may read, none
        box_of = self.cache.box
        for record in records:
            for access in record.reads:
                history = histories.get(access.allocation)
                if history is not None:
                    node = history.node(box_of(access))
                    is_read = history.is_read
                    for other in history.boxes.overlapping[node]:
                        is_read[other] = True
            for access in record.writes:
                history = histories.get(access.allocation)
                if history is not None:
                    self._write(record, access, history, box_of(access))

    def _write(self, record: Record, access: ElementAccess, history: _History, box: Box) -> None:
        boxes, is_read, writers = history.boxes, history.is_read, history.writers
        node = history.node(box)
        opcode = record.opcode
        accumulates = opcode in _PRODUCTS and record.options.get("accumulate") is not False
        if accumulates:
            self._check_sum(record, access, history, node)
        reads_too = accumulates or opcode in _PARTIAL or record.options.get("accumulates", False)
        if not reads_too and box.is_exact:
            for other in boxes.covered[node]:
                before = writers[other]
                if not is_read[other] and before is not None:
                    self._lost(before, record, access)
        may_be_lost = len(record.writes) == 1 and opcode not in _FILLS and opcode not in _WITH_REGISTERS
        may_be_lost = may_be_lost and not record.options.get("registers")
        for other in boxes.covered[node]:
            writers[other], is_read[other] = record, True
        writers[node], is_read[node] = record, not may_be_lost

    def _check_sum(self, record: Record, access: ElementAccess, history: _History, node: int) -> None:
        """Warn of a product that adds to what another instruction left in PSUM."""
        before = history.writers[node]
        if before is None or access.allocation.region is not MemoryRegion.psum or before.opcode in _PRODUCTS:
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

    def _lost(self, before: Record, record: Record, access: ElementAccess) -> None:
        key = (before.location, record.location)
        if key not in self.reported:
            self.reported.add(key)
            label = access.allocation.label
            self.launch.warn(
                "lost",
                f"{before.opcode}: what it writes to {label} is overwritten by {record.opcode} at {record.location} before it is read",
                before.location,
            )


_FOURTH = 4
