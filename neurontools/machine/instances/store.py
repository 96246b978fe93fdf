"""The compiled catalogue: the YAML files as one checked JSON document, kept in the cache directory.

The document holds the digest of its YAML files. It is compiled again when the digest differs or the document is
damaged; a cache directory that is not writable only costs time.
"""

from __future__ import annotations

import json
import os
from importlib.util import source_hash
from typing import Any

from neurontools import paths
from neurontools.base.files import write_atomic

_FORMAT = 2


def load(*, fresh: bool = False) -> dict[str, Any]:
    """Return the compiled catalogue.

    Args:
        fresh: compile the YAML files even when a compiled form exists.

    Raises:
        CatalogueError: a YAML file is missing, unreadable or does not follow the schema.
    """
    files = _yaml_files()
    digest = _digest(files)
    compiled = None if fresh else _read(digest)
    if compiled is None:
        from neurontools.machine.instances.schema import compile_catalogue

        compiled = compile_catalogue(files)
        _write(digest, compiled)
    return compiled


def compiled_path() -> str:
    """Return the path of the compiled form."""
    return f"{paths.cache_home()}/instances.json"


def _yaml_files() -> dict[str, bytes]:
    directory = f"{paths.fixtures_dir()}/instances"
    files = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".yaml"):
            with open(f"{directory}/{name}", "rb") as file:
                files[name] = file.read()
    return files


def _digest(files: dict[str, bytes]) -> str:
    return source_hash(b"\0".join(name.encode() + b"\0" + data for name, data in files.items())).hex()


def _read(digest: str) -> dict[str, Any] | None:
    try:
        with open(compiled_path(), "rb") as file:
            document = json.loads(file.read())
        if document["format"] == _FORMAT and document["digest"] == digest:
            catalogue: dict[str, Any] = document["catalogue"]
            return catalogue
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _write(digest: str, compiled: dict[str, Any]) -> None:
    path = compiled_path()
    document = {"format": _FORMAT, "digest": digest, "catalogue": compiled}
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(document), sync=False)
    except OSError:
        pass
