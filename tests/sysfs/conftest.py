"""Golden trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

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
