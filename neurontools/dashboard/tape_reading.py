"""Reading one block of a tape: any of its moments, without keeping all of them unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.dashboard.moment import unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.moment import Moment

# A moment of 512 busy cores takes 130 KiB and four milliseconds to unpack from the one before.
RUN = 8


class BlockReading:
    """Moments of a block that were unpacked: every eighth as a place to begin from, and those around the last asked for."""

    def __init__(self) -> None:
        self._kept: dict[int, Moment] = {}

    def __len__(self) -> int:
        """Return how many moments are kept."""
        return len(self._kept)

    def moment(self, place: int) -> Moment | None:
        """Return a moment by its place in the block, None for one that is not kept."""
        return self._kept.get(place)

    def unpack(self, place: int, pieces: Sequence[bytes]) -> Moment:
        """Return a moment and keep it.

        Args:
            place: of the moment in the block.
            pieces: the whole block, as `packed` made it.
        """
        begin = max((kept for kept in self._kept if kept <= place), default=-1)
        moment = self._kept.get(begin)
        self._kept = {at: kept for at, kept in self._kept.items() if _is_kept(at, place)}
        for at in range(begin + 1, place + 1):
            moment = unpacked(pieces[at], moment)
            if _is_kept(at, place):
                self._kept[at] = moment
        assert moment is not None
        return moment


def _is_kept(at: int, shown: int) -> bool:
    return at % RUN == 0 or at // RUN == shown // RUN
