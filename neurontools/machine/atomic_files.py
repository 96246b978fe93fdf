"""Files that are replaced in one go: written aside, then renamed."""

from __future__ import annotations

import os


def write_aside(path: str, text: str, *, sync: bool, mode: int | None = None) -> None:
    """Replace a file's content so that a reader sees the old or the new one, whatever happens.

    Args:
        path: the file.
        text: its new content.
        sync: whether it is on the disk when this returns.
        mode: permissions of the file, None for what the umask leaves.

    Raises:
        OSError: the file can't be written; the old content is still there.
    """
    aside = f"{path}.{os.getpid()}"
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise


def remove_asides(path: str) -> None:
    """Delete what writers that were killed left aside of a file. Nobody may be writing it."""
    folder, name = os.path.split(path)
    for found in os.listdir(folder):
        stem, _, pid = found.rpartition(".")
        if stem == name and pid.isdigit():
            os.unlink(f"{folder}/{found}")
