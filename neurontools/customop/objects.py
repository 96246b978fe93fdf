"""Object files of earlier builds: a unit is compiled anew only when it, its files, flags or compiler changed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import file_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """What an object file was made of.

    Args:
        key: digest of the command and the unit's text.
        object_sha256: digest of the object file: a machine that lost power may leave half of one.
        sources: files of the user that were read, with their digests.
        warnings: what the compiler warned about.
    """

    key: str
    object_sha256: str
    sources: dict[str, str]
    warnings: tuple[str, ...]


def unit_key(command: Sequence[str], text: str, toolchain: str) -> str:
    """Return a digest of what decides an object file, but for the contents of the user's files."""
    return hashlib.sha256(repr((tuple(command), text, toolchain)).encode()).hexdigest()


def reusable(path: Path, key: str) -> ObjectRecord | None:
    """Return the record of an object file that compiling would make again just so, else None."""
    try:
        raw = json.loads(_record(path).read_bytes())
        record = ObjectRecord(raw["key"], raw["object_sha256"], dict(raw["sources"]), tuple(raw["warnings"]))
        current = (
            record.key == key
            and file_sha256(path) == record.object_sha256
            and all(file_sha256(Path(source)) == digest for source, digest in record.sources.items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if current else None


def keep(fresh: Path, path: Path, record: ObjectRecord) -> None:
    """Put a fresh object file in its place, with its record."""
    os.replace(fresh, path)
    _record(path).write_text(json.dumps(asdict(record)), encoding="utf-8")


def _record(path: Path) -> Path:
    return path.with_suffix(".json")
