"""The enumerations of nki.isa: engines, accumulator commands, descriptor generation, bounds, versions."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


class engine(Enum):  # noqa: N801
    """Engines of a NeuronCore."""

    __hash__ = object.__hash__  # that of Enum is slow

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class reduce_cmd(Enum):  # noqa: N801
    """What an instruction does with the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):  # noqa: N801
    """Who makes the descriptors of a transfer."""

    __hash__ = object.__hash__

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3

    @classmethod
    def _missing_(cls, value: object) -> dge_mode | None:
        return cls.unknown if value is None else None


class oob_mode(Enum):  # noqa: N801
    """What happens where an index is out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):  # noqa: N801
    """Performance modes of the Tensor engine."""

    none = "none"
    double_row = "double_row"


@total_ordering
class nc_version(Enum):  # noqa: N801
    """Generations of NeuronCores."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        return bool(self.value < other.value)


class dma_engine(Enum):  # noqa: N801
    """What moves the data of sendrecv."""

    dma = 1
    gpsimd_dma = 2
