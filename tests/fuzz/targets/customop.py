"""Custom operators: the library file, its manifest and customop.yaml."""

from __future__ import annotations

import platform
import struct
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

_MACHINES = {"x86_64": 62, "aarch64": 183}


def _elf() -> bytes:
    """Return the header of a shared library without anything in it."""
    machine = _MACHINES[platform.machine()]
    return struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)


def _parts() -> Any:
    from neurontools.customop.package import Parts

    return Parts(_elf(), _elf(), b"\x7fELF")


def _manifest() -> Any:
    from neurontools.customop.package import Access, Manifest, OperatorEntry, SourceEntry
    from neurontools.customop.signature import ABI_VERSION

    return Manifest(
        name="relu",
        abi=ABI_VERSION,
        multicore=True,
        release=False,
        sanitize=False,
        stack_bytes=400,
        cflags=("-O2",),
        compiler="g++ 12",
        machine=platform.machine(),
        build_key="00ff",
        parts_sha256=_parts().sha256,
        compute=("/a/relu.cpp",),
        shape=("/a/shape.cpp",),
        operators=(
            OperatorEntry(
                "my_ops", "relu", "relu_fwd", 0, ("const-tensor", "scalar", "tensor"), Access.ELEMENT
            ),
        ),
        sources=(SourceEntry("/a/relu.cpp", "00"),),
    )


def _write(manifest: bytes) -> bytes:
    parts = _parts()
    body = parts.shape + parts.kernel + parts.worker
    lengths = len(parts.shape), len(parts.kernel), len(parts.worker), len(manifest)
    return body + manifest + struct.pack("<QQQQ8s", *lengths, b"NTCUSTOP")


def _check_manifest(data: bytes) -> None:
    _check_library(_write(data))


def _check_library(data: bytes) -> None:
    from neurontools.commands import customop

    Path("librelu.so").write_bytes(data)
    run(customop.main, "inspect", "librelu.so")
    run(customop.main, "inspect", "librelu.so", "--json", is_json=True)


def _projects() -> list[bytes]:
    from neurontools import paths

    samples = Path(paths.fixtures_dir()) / "customops"
    return [path.read_bytes() for path in sorted(samples.glob("r*/customop.yaml"))]


def _check_project(data: bytes) -> None:
    from neurontools.customop.building.request import load_project

    Path("project").mkdir(exist_ok=True)
    Path("project/customop.yaml").write_bytes(data)
    load_project(Path("project/customop.yaml"))


TARGETS = (
    Target("customop/manifest", Format.JSON, lambda: [_manifest().to_bytes()], _check_manifest),
    Target("customop/library", Format.BINARY, lambda: [_write(_manifest().to_bytes())], _check_library),
    Target("customop/project", Format.YAML, _projects, _check_project),
)
