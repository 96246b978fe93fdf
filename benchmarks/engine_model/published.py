"""Files of published times in `fixtures/engines`, and the half that the name of a row decides."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import yaml

from neurontools import paths

CALIBRATION, REPORT = "calibration", "report"


def half_of(name: str, salt: str = "") -> str:
    """Return the half of a name, which follows from the name alone."""
    digest = hashlib.sha256(f"{salt}{name}".encode()).hexdigest()
    return CALIBRATION if int(digest[0], 16) < 8 else REPORT


@cache
def read_published(name: str) -> dict[str, Any]:
    """Return a file of `fixtures/engines` as it is stored."""
    with open(f"{paths.fixtures_dir()}/engines/{name}.yaml", encoding="utf-8") as file:
        document: dict[str, Any] = yaml.safe_load(file)
    return document
