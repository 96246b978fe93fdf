"""An HLO module as a value: computations of instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.cache.graphs.graph_facts import Tensor

DTYPES = dict(
    enumerate(
        [
            "invalid",
            "pred",
            "s8",
            "s16",
            "s32",
            "s64",
            "u8",
            "u16",
            "u32",
            "u64",
            "f16",
            "f32",
            "f64",
            "tuple",
            "opaque",
            "c64",
            "bf16",
            "token",
            "c128",
            "f8e5m2",
            "f8e4m3fn",
            "s4",
            "u4",
            "f8e4m3b11fnuz",
            "f8e5m2fnuz",
            "f8e4m3fnuz",
            "s2",
            "u2",
            "f8e4m3",
            "f8e3m4",
        ]
    )
)
"""Names of XLA's element types by their number (xla_data.proto)."""


@dataclass(slots=True)
class HloInstruction:
    """One instruction. `shapes` has one tensor, or those of a tuple. `attributes` are other fields as text."""

    number: int = 0
    name: str = ""
    opcode: str = ""
    shapes: tuple[Tensor, ...] = ()
    operands: list[int] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    dimensions: list[int] = field(default_factory=list)
    parameter: int | None = None
    attributes: list[str] = field(default_factory=list)
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0


@dataclass(slots=True)
class HloComputation:
    """One computation; `root` is the number of the instruction whose value it gives."""

    number: int = 0
    name: str = ""
    root: int = 0
    instructions: list[HloInstruction] = field(default_factory=list)


@dataclass(slots=True)
class HloModule:
    """A module. `aliases` are (output, parameter) pairs as text; `problems` say what could not be read."""

    name: str = ""
    entry_name: str = ""
    entry_number: int = 0
    computations: list[HloComputation] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def entry(self) -> HloComputation:
        """Return the computation that runs: by number, by name, or else the last one."""
        for computation in self.computations:
            if self.entry_number and computation.number == self.entry_number:
                return computation
        for computation in self.computations:
            if computation.name == self.entry_name:
                return computation
        return self.computations[-1]
