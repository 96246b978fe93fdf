"""What the clients of a chaos test own, as they see it: shared memory that outlives each of them."""

from __future__ import annotations

import mmap
from enum import IntEnum

CORES_MAX = 512
_MASK_WORDS = CORES_MAX // 64
_HEADER_WORDS = 8
_SLOT_WORDS = 16 + _MASK_WORDS + CORES_MAX
_MASK, _HELD = 16, 16 + _MASK_WORDS
_PAUSED = 0


class Belief(IntEnum):
    """Whether a client believes to be on the machine. It does not know while a call is under way."""

    NOT_REGISTERED = 0
    UNSURE = 1
    REGISTERED = 2


class Word(IntEnum):
    """What a client notes in its slot; the last four are never taken back, also when another client takes the slot."""

    PID = 0
    START_TICKS = 1
    BELIEF = 2
    AT_REST = 3
    EXECUTIONS_BEGUN = 4
    EXECUTIONS_DONE = 5
    REGISTRATIONS = 6
    DEATHS = 7


_OF_ONE_LIFE = (Word.PID, Word.START_TICKS, Word.BELIEF, Word.AT_REST)


class SharedState:
    """Slots for clients, a table of who believes to own which core, and the sign that all clients are to come to rest.

    A slot has one writer: its client while it lives, the test before and after.
    """

    def __init__(self, slots: int) -> None:
        self.slot_count = slots
        words = _HEADER_WORDS + CORES_MAX + slots * _SLOT_WORDS
        self._words = memoryview(mmap.mmap(-1, 8 * words)).cast("Q")
        self.slots = [ClientSlot(self._words, index) for index in range(slots)]

    @property
    def paused(self) -> bool:
        """Whether the clients are to finish what they do and then wait."""
        return bool(self._words[_PAUSED])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._words[_PAUSED] = value

    def believed_owner(self, core: int) -> int:
        """Return the number of the slot whose client last recorded that it owns a core, plus one; 0 for none."""
        return self._words[_HEADER_WORDS + core]

    def set_believed_owner(self, core: int, owner: int) -> None:
        """Record the owner of a core; 0 for none."""
        self._words[_HEADER_WORDS + core] = owner

    def total(self, word: Word) -> int:
        """Return the sum of a word over all slots."""
        return sum(slot[word] for slot in self.slots)


class ClientSlot:
    """What one client notes."""

    def __init__(self, words: memoryview, index: int) -> None:
        self.index = index
        self._words = words
        self._first = _HEADER_WORDS + CORES_MAX + index * _SLOT_WORDS

    def __getitem__(self, word: Word) -> int:
        return self._words[self._first + word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[self._first + word] = value

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that the client believes to own."""
        words = self._words[self._first + _MASK : self._first + _MASK + _MASK_WORDS]
        return tuple(
            64 * index + bit
            for index, word in enumerate(words)
            if word
            for bit in range(64)
            if word >> bit & 1
        )

    @cores.setter
    def cores(self, cores: tuple[int, ...]) -> None:
        for index in range(_MASK_WORDS):
            self._words[self._first + _MASK + index] = sum(
                1 << core % 64 for core in cores if core // 64 == index
            )

    def held_bytes(self, core: int) -> int:
        """Return the device memory that the client believes to hold on a core."""
        return self._words[self._first + _HELD + core]

    def hold(self, core: int, nbytes: int) -> None:
        """Note the device memory held on a core."""
        self._words[self._first + _HELD + core] = nbytes

    def forget(self) -> None:
        """Make the slot ready for another client."""
        for core in self.cores:
            self.hold(core, 0)
        self.cores = ()
        for word in _OF_ONE_LIFE:
            self[word] = 0
