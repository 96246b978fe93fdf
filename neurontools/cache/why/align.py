"""Which operators of one graph are those of another: a shortest edit script over names, in bounded time.

Myers' greedy search finds it. Where the graphs differ in more than a few hundred places, the furthest path so far is
taken as it is and the search goes on behind it, so that time stays linear in the length; the longer the graphs, the sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Pair = tuple[int, int]

_MOST_EDITS, _FEWEST_EDITS = 400, 24
_WORK = 2_000_000


def align(
    a: Sequence[str], b: Sequence[str], alike: Callable[[int, int], int] | None = None
) -> tuple[Pair, ...]:
    """Return the pairs of positions that belong together, both rising; names of a pair are equal.

    Args:
        a: names in the first graph.
        b: names in the second graph.
        alike: how much two positions of one name agree; decides where several scripts are as short.
    """
    start = 0
    while start < len(a) and start < len(b) and a[start] == b[start]:
        start += 1
    end_a, end_b = len(a), len(b)
    while end_a > start and end_b > start and a[end_a - 1] == b[end_b - 1]:
        end_a -= 1
        end_b -= 1
    pairs = [(position, position) for position in range(start)]
    numbers: dict[str, int] = {}
    left, right = ([numbers.setdefault(name, len(numbers)) for name in names] for names in (a, b))
    pairs += _middle(left, right, start, end_a, end_b)
    pairs += [(end_a + offset, end_b + offset) for offset in range(len(a) - end_a)]
    return tuple(_slide(pairs, a, b, alike) if alike is not None else pairs)


def _middle(a: Sequence[int], b: Sequence[int], start: int, end_a: int, end_b: int) -> list[Pair]:
    pairs: list[Pair] = []
    at_a = at_b = start
    # A search of n edits takes n * n / 2 steps and gets n further, so that all of them take length * n / 2.
    most = max(_FEWEST_EDITS, min(_MOST_EDITS, _WORK // max(end_a + end_b - 2 * start, 1)))
    while at_a < end_a and at_b < end_b:
        found, at_a, at_b = _search(a, b, at_a, end_a, at_b, end_b, most)
        pairs += found
    return pairs


def _search(
    a: Sequence[int], b: Sequence[int], from_a: int, end_a: int, from_b: int, end_b: int, most: int
) -> tuple[list[Pair], int, int]:
    """Return pairs of the shortest script, or of its furthest start, and where it ends."""
    rows, columns = end_a - from_a, end_b - from_b
    most = min(rows + columns, most)
    # How far each diagonal goes; those below 0 are counted from the list's end.
    furthest = [0] * (2 * most + 3)
    history: list[list[int]] = []
    for edits in range(most + 1):
        history.append(furthest.copy())
        for diagonal in range(-edits, edits + 1, 2):
            above, below = furthest[diagonal + 1], furthest[diagonal - 1]
            down = diagonal == -edits or (diagonal != edits and below < above)
            x = above if down else below + 1
            y = x - diagonal
            while x < rows and y < columns and a[from_a + x] == b[from_b + y]:
                x += 1
                y += 1
            furthest[diagonal] = x
            if x >= rows and y >= columns:
                return _path(history, edits, x, y, from_a, from_b), end_a, end_b
    candidates = [
        (furthest[diagonal], furthest[diagonal] - diagonal) for diagonal in range(-most, most + 1, 2)
    ]
    x, y = max(
        (end for end in candidates if end[0] <= rows and end[1] <= columns), key=lambda end: (sum(end), end)
    )
    return _path(history, most, x, y, from_a, from_b), from_a + x, from_b + y


def _path(history: list[list[int]], edits: int, x: int, y: int, from_a: int, from_b: int) -> list[Pair]:
    pairs: list[Pair] = []
    for count in range(edits, -1, -1):
        before = history[count]
        diagonal = x - y
        down = diagonal == -count or (diagonal != count and before[diagonal - 1] < before[diagonal + 1])
        previous = diagonal + 1 if down else diagonal - 1
        start_x = before[previous] if count else 0
        start_y = start_x - previous if count else 0
        while x > start_x and y > start_y and x > 0 and y > 0:
            x -= 1
            y -= 1
            pairs.append((from_a + x, from_b + y))
        if count:
            x, y = start_x, start_y
    pairs.reverse()
    return pairs


def _slide(
    pairs: list[Pair], a: Sequence[str], b: Sequence[str], alike: Callable[[int, int], int]
) -> list[Pair]:
    """Move each insertion and removal to where the pairs beside it agree most."""
    pairs = _slide_insertions(pairs, len(a), b, alike)
    # A removal is an insertion with the graphs exchanged.
    flipped = _slide_insertions([(j, i) for i, j in pairs], len(b), a, lambda j, i: alike(i, j))
    return [(i, j) for j, i in flipped]


def _slide_insertions(
    pairs: list[Pair], length_a: int, b: Sequence[str], alike: Callable[[int, int], int]
) -> list[Pair]:
    found = [(-1, -1), *pairs, (length_a, len(b))]
    for index in range(1, len(found)):
        before, after = found[index - 1], found[index]
        gap = after[1] - before[1] - 1
        if gap > 0 and after[0] == before[0] + 1:
            count = _best_slide(found, index, gap, b, alike)
            found[index - count : index] = [(i, j + gap) for i, j in found[index - count : index]]
    return found[1:-1]


def _best_slide(
    pairs: list[Pair], index: int, gap: int, b: Sequence[str], alike: Callable[[int, int], int]
) -> int:
    """Return how many pairs before an insertion agree more with the end of what is inserted."""
    gain = best = best_count = 0
    for count in range(1, index):
        i, j = pairs[index - count]
        if (count > 1 and pairs[index - count + 1] != (i + 1, j + 1)) or b[j + gap] != b[j]:
            break
        gain += alike(i, j + gap) - alike(i, j)
        if gain > best:
            best, best_count = gain, count
    return best_count
