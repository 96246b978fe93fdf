"""Lists of indices as people write them: `0,2`, `0-3`, `1,4-7`. Imports nothing."""

from __future__ import annotations

MAX_DIGITS = 4


def parse_indices(text: str) -> list[int]:
    """Return the indices of a list in the order in which they are written.

    Args:
        text: indices and ranges joined by commas; blanks around them do not count.

    Raises:
        ValueError: it is no such list; the text says why.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)):
            raise ValueError(f"{part.strip()!r} is no index and no range" if part.strip() else "it is empty")
        if int(last) < int(first):
            raise ValueError(f"range {part.strip()!r} runs backwards")
        found += range(int(first), int(last) + 1)
    return found


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
