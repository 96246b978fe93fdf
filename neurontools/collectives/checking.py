"""--check: move real data between buffers by an algorithm's own steps and compare with a direct result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.collectives.algorithms import plan
from neurontools.collectives.buffers import expected, rank_data, result, starting_memory
from neurontools.collectives.moving import carry_out
from neurontools.collectives.values import RANDOM, numpy, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.collectives.algorithms import Algorithm
    from neurontools.collectives.buffers import RankData
    from neurontools.collectives.datatypes import DataType
    from neurontools.collectives.model import Workload
    from neurontools.collectives.moving import Tamper

DEFAULT_BUDGET_BYTES = 2**30
_COPIES = 1.5  # of a rank's data: its own, what it works on, what is on the way


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check moved: bytes of each rank (of `asked_bytes`), and the ranks whose result was wrong.

    `receivers` of the `ranks` get data: in a permute some may get none.
    """

    ranks: int
    receivers: int
    verified_bytes: int
    asked_bytes: int
    wrong: tuple[int, ...]
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether every rank has the right result."""
        return not self.wrong


def check(
    work: Workload,
    kind: DataType,
    algorithm: Algorithm,
    nbytes: int,
    *,
    pattern: str = RANDOM,
    seed: int = 0,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    tamper: Tamper | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Carry out a workload on real buffers and compare every rank's result, bit for bit.

    Args:
        work: operation and groups of one instance.
        kind: the data type.
        algorithm: whose steps to carry out.
        nbytes: the size; less is moved where the budget is too small.
        pattern: `random` or `all_ones`.
        seed: of the random data.
        budget_bytes: of this computer's memory for all buffers together.
        tamper: changes what arrives, to try the check.
        on_step: told how many steps of how many are done, for each group.

    Raises:
        MissingDependencyError: numpy is not installed.
    """
    numpy()
    ranks = sum(map(len, work.groups))
    elements = min(nbytes // kind.nbytes, _affordable(work, kind, ranks, budget_bytes))
    wrong: list[int] = []
    moved, receivers, detail = 0, 0, ""
    for number, group in enumerate(work.groups):
        data = rank_data(work, kind, len(group), elements, pattern, (seed, number))
        steps = plan(algorithm, work.operation, group, work.over, work.pairs)
        memory = starting_memory(data, steps.channels)
        try:
            carry_out(steps, memory, tamper=tamper, on_step=on_step)
        except KeyError as error:
            detail = f"a step needs piece {error} where it is not"
        wanted_by_position = expected(data, work.pairs)
        receivers += sum(map(bool, wanted_by_position))
        wrong += [
            group[position]
            for position, wanted in enumerate(wanted_by_position)
            if not _is_right(data, memory[position], wanted, steps.channels)
        ]
        moved = max(moved, data.nbytes)
    rank_of = {
        core: rank for rank, core in enumerate(sorted(core for group in work.groups for core in group))
    }
    wrong_ranks = tuple(sorted(rank_of[core] for core in wrong))
    return CheckReport(ranks, receivers, moved, nbytes, wrong_ranks, detail)


def _affordable(work: Workload, kind: DataType, ranks: int, budget_bytes: int) -> int:
    wide = 4 if work.operation.reduces and kind.is_float else kind.nbytes
    return max(int(budget_bytes / (ranks * (kind.nbytes + wide) * _COPIES)), len(work.groups[0]))


def _is_right(data: RankData, held: dict[int, Any], wanted: dict[int, Any], channels: int) -> bool:
    try:
        return all(same_bits(result(data, held, block, channels), wanted[block]) for block in wanted)
    except KeyError:
        return False
