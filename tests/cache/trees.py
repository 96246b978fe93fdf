"""Cache roots laid out from the hand-written lists in fixtures/caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from neurontools.compiler.neff_header import write_header
from tests.cache.conftest import DAY, NOW

CACHES = Path(__file__).parents[2] / "fixtures" / "caches"


def lay_out(name: str, root: Path) -> Path:
    """Make the files of a list below a root and return the root."""
    for line in yaml.safe_load((CACHES / f"{name}.yaml").read_text()):
        _make(root / line["path"], line)
    return root


def _make(path: Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "link" in line:
        path.symlink_to(line["link"])
        return
    if "dir" in line:
        path.mkdir()
    elif "neff" in line:
        path.write_bytes(
            write_header(b"neffdata", name=line["neff"], build_version="1.0", lnc=1) + b"neffdata"
        )
    else:
        path.write_text(line.get("text", ""))
    moment = NOW - DAY * line.get("age", 0)
    os.utime(path, (moment, moment))
