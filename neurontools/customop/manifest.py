"""The manifest of a library: operators, build options, sources."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import cast

from neurontools.customop.signature import schema

FORMAT = 2


class Access(StrEnum):
    """How a kernel's source accesses tensors; determines the modelled time before the first run."""

    ELEMENT = "element"
    STREAM = "stream"
    TCM = "tcm"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a library.

    Args:
        library: namespace under `torch.ops`.
        name: operator name.
        kernel: name of the kernel function.
        kernel_index: index of the kernel in the compiled library.
        parameters: kinds of the parameters (`tensor`, `const-tensor`, `scalar`, `double`, `int64`).
        access: how the kernel accesses tensors.
    """

    library: str
    name: str
    kernel: str
    kernel_index: int
    parameters: tuple[str, ...]
    access: Access

    @property
    def qualified(self) -> str:
        """`library::operator`."""
        return f"{self.library}::{self.name}"

    @property
    def schema(self) -> str:
        """The torch schema."""
        return schema(self.name, self.parameters)


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A source file of a library: its absolute path at the build and the SHA-256 of its contents."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a library.

    Args:
        name: the library is `lib<name>.so`.
        abi: version of the ABI between host and library.
        multicore: whether every kernel runs on all cores.
        release: whether it was built without accessor checks.
        sanitize: whether it was built with the compiler's sanitizers.
        stack_bytes: declared stack size, 0 if not declared.
        cflags: the user's compiler flags.
        compiler: version line of the compiler.
        machine: processor architecture of the code.
        build_key: digest of everything that determines the result except the contents of the sources.
        parts_sha256: digest of the compiled parts.
        compute: absolute paths of the kernels' sources.
        shape: absolute paths of the shape functions' sources.
        operators: the operators.
        sources: the files that it was built from, including the user's headers.
    """

    name: str
    abi: int
    multicore: bool
    release: bool
    sanitize: bool
    stack_bytes: int
    cflags: tuple[str, ...]
    compiler: str
    machine: str
    build_key: str
    parts_sha256: str
    compute: tuple[str, ...]
    shape: tuple[str, ...]
    operators: tuple[OperatorEntry, ...]
    sources: tuple[SourceEntry, ...]

    def to_bytes(self) -> bytes:
        """Return the JSON form."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, indent=1).encode()


def manifest_from_bytes(data: bytes) -> Manifest:
    """Parse the JSON form.

    Raises:
        ValueError: it is not a manifest.
    """
    try:
        raw = cast("dict[str, object]", json.loads(data))
        if raw.pop("format") != FORMAT:
            raise ValueError("the manifest has another format")
        operators = tuple(_operator(entry) for entry in cast("list[dict[str, object]]", raw.pop("operators")))
        sources = tuple(SourceEntry(**entry) for entry in cast("list[dict[str, str]]", raw.pop("sources")))
        lists = {name: tuple(cast("list[str]", raw.pop(name))) for name in ("cflags", "compute", "shape")}
        return Manifest(operators=operators, sources=sources, **lists, **raw)  # type: ignore[arg-type]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the manifest has wrong fields: {error}") from error


def _operator(raw: dict[str, object]) -> OperatorEntry:
    parameters = tuple(cast("list[str]", raw.pop("parameters")))
    access = Access(cast("str", raw.pop("access")))
    return OperatorEntry(parameters=parameters, access=access, **raw)  # type: ignore[arg-type]
