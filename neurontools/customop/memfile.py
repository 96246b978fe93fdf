"""Files without a name: compiled parts to load from, and what a kernel prints."""

from __future__ import annotations

import os


def executable_file(name: str, contents: bytes) -> int:
    """Return a descriptor of an anonymous file with contents that can be loaded or run."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        view = memoryview(contents)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o500)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Collector:
    """Collects what is written to a descriptor of another process, up to a limit that keeps the newest."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def take(self, limit_bytes: int) -> str:
        """Return the newest bytes as text and forget all."""
        size = os.fstat(self.fd).st_size
        if size == 0:
            return ""
        kept = min(size, limit_bytes)
        data = os.pread(self.fd, kept, size - kept)
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Give the file back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
