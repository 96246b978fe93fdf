"""Whether a cache has changed since one looked: times of its directories, no contents."""

from __future__ import annotations

import os


def stamp_of(root: str) -> int:
    """Return a number that is another one when an entry came, went or changed.

    One stat for each name in the root and one level below; what cannot be read counts as empty.
    """
    parts = [_stamp(root)]
    for name in _names(root):
        path = f"{root}/{name}"
        parts.append(_stamp(path))
        try:
            with os.scandir(path) as listing:
                parts += [item.stat(follow_symlinks=False).st_mtime_ns for item in listing]
        except OSError:
            continue
    return hash(tuple(parts))


def _stamp(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _names(root: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(root) if not name.startswith("."))
    except OSError:
        return []
