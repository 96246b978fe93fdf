"""Golden trees, and a place for mirrors."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.sysfs.mirror import SysfsMirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], str]:
    """Return the text of a golden file; WRITE_GOLDEN=1 writes what was made first."""

    def read(name: str, made: str) -> str:
        path = GOLDEN / name
        if os.environ.get("WRITE_GOLDEN") == "1":
            path.write_text(made)
        return path.read_text()

    return read


@pytest.fixture
def root(home: Path) -> Iterator[Path]:
    """Where mirrors go; in memory, because a disk takes its time for ten thousand small files."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="nt-", dir=memory if os.access(memory, os.W_OK) else home))
    yield place / "mirror"
    shutil.rmtree(place)


@pytest.fixture
def mirrored(root: Path) -> Iterator[Callable[..., SysfsMirror]]:
    """Make mirrors that are closed at the end."""
    made: list[SysfsMirror] = []

    def make(
        path: Path = root,
        name: str = "default",
    ) -> SysfsMirror:
        made.append(SysfsMirror(str(path), name))
        return made[-1]

    yield make
    for mirror in made:
        mirror.close()
