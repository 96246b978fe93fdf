"""A variant of a library that counts how often each part of its kernels runs, compiled from the same sources."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.bench import assembly, dialects, instructions
from neurontools.customop.bench.arithmetic_rates import arithmetic_rates
from neurontools.customop.bench.assembly import Block, CountedUnit, Segment, count_blocks, defined_symbols
from neurontools.customop.bench.dialects import dialect_of
from neurontools.customop.building.compilation import link
from neurontools.customop.building.compilers import find_compiler
from neurontools.customop.building.freshness import changed_sources, file_sha256
from neurontools.customop.building.toolchain import Toolchain, home, prepare, user_flags
from neurontools.customop.building.units import assign_kernels, kernel_unit
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.package import Package, Parts
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.bench.dialects import Dialect
    from neurontools.customop.building.compilers import Compiler

_COMMON = ("-O2", "-fno-lto", "-gdwarf-4", "-w", "-S")  # version 4: every assembler takes its line tables
_GCC = ("-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-tree-loop-distribute-patterns")
_CLANG = ("-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops")
_UNUSED_S = 30 * 86400.0


class CountingError(NeuronToolsError):
    """Own arithmetic cannot be counted; the message says why."""


@dataclass(frozen=True, slots=True)
class CountingLibrary:
    """The variant.

    Args:
        package: as the library itself, with other kernels.
        blocks: what each counter counts.
        compiler: what compiled it.
    """

    package: Package
    blocks: tuple[Block, ...]
    compiler: str


def counting_library(package: Package, say: Callable[[str], None]) -> CountingLibrary:
    """Return the variant of a library, compiled now unless it was lately.

    Args:
        package: the library.
        say: called with one line before something is compiled.

    Raises:
        CountingError: it cannot be made, and why.
    """
    if dialect_of(platform.machine()) is None:
        raise CountingError(f"that takes x86-64 or aarch64, this computer is {platform.machine()}")
    if package.manifest.sanitize:
        raise CountingError("the library was built with sanitizers")
    changed = changed_sources(package.manifest.sources)
    if changed:
        raise CountingError(f"{changed[0]} is gone, or has changed since the library was built")
    try:
        compiler = find_compiler()
        directory = home() / "counting" / _key(package, compiler)
        if not (directory / "kernel.so").is_file():
            say(f"compiling {package.manifest.name} once more to count its arithmetic")
            _make(package, prepare(compiler, say), directory)
        os.utime(directory)
        return _read(package, compiler, directory)
    except NeuronToolsError as error:
        raise CountingError(error.message.splitlines()[0]) from error
    except (OSError, ValueError, KeyError) as error:
        raise CountingError(f"its variant cannot be kept: {error}") from error


def _key(package: Package, compiler: Compiler) -> str:
    from neurontools.customop.building.toolchain import toolchain_key

    ours = [file_sha256(Path(module.__file__ or "")) for module in (assembly, dialects, instructions)]
    facts = (
        package.sha256,
        toolchain_key(compiler, sanitize=False),
        *ours,
        file_sha256(Path(__file__)),
        repr(arithmetic_rates()),
    )
    return sha256(repr(facts).encode()).hexdigest()[:24]


def _make(package: Package, toolchain: Toolchain, directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _forget_old(directory.parent)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=directory.parent) as name:
        scratch = Path(name) / "made"
        scratch.mkdir()
        blocks = _compile(package, toolchain, scratch)
        (scratch / "blocks.json").write_text(json.dumps([asdict(block) for block in blocks]))
        try:
            os.rename(scratch, directory)
        except OSError:
            if not directory.is_dir():  # else somebody else was faster
                raise


def _compile(package: Package, toolchain: Toolchain, scratch: Path) -> list[Block]:
    sources = [Path(path) for path in package.manifest.compute]
    kernels = [entry.kernel for entry in package.manifest.operators]
    texts = [kernel_unit(unit) for unit in assign_kernels(sources, kernels)]
    compiler = toolchain.compiler
    dialect = dialect_of(platform.machine())
    assert dialect is not None
    assemblies = [
        _assembly(package, compiler, scratch, index, text, dialect) for index, text in enumerate(texts)
    ]
    defined = frozenset[str]().union(*map(defined_symbols, assemblies))
    units = [count_blocks(text, os.getcwd(), defined, arithmetic_rates(), dialect) for text in assemblies]
    objects = [_assemble(compiler, scratch, index, unit) for index, unit in enumerate(units)]
    link(toolchain, objects, scratch / "kernel.so", sources)
    for left in [*scratch.glob("*.s"), *scratch.glob("*.cpp"), *objects]:
        left.unlink()
    return _joined(units)


def _assembly(
    package: Package, compiler: Compiler, scratch: Path, index: int, text: str, dialect: Dialect
) -> str:
    unit = scratch / f"kernel_{index}.cpp"
    unit.write_text(text, encoding="utf-8", errors="surrogateescape")
    result = unit.with_suffix(".s")
    kind = _CLANG if compiler.is_clang else _GCC
    flags = (*user_flags(compiler), *package.manifest.cflags, *_COMMON, *kind, *dialect.flags)
    _run((*compiler.command, *flags, str(unit), "-o", str(result)))
    return result.read_text(encoding="utf-8", errors="surrogateescape")


def _assemble(compiler: Compiler, scratch: Path, index: int, unit: CountedUnit) -> Path:
    source = scratch / f"counted_{index}.s"
    source.write_text(unit.text, encoding="utf-8", errors="surrogateescape")
    result = source.with_suffix(".o")
    _run((*compiler.command, "-c", str(source), "-o", str(result)))
    return result


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "rror" in line] or done.stderr.splitlines()
        raise CustomOpBuildError(
            f"{command[0]} does not compile it for counting: {(lines or ['no message'])[0]}"
        )


def _joined(units: Sequence[CountedUnit]) -> list[Block]:
    """Return the blocks of all units as the linker puts their counters and addresses together."""
    blocks: list[Block] = []
    begin = 0
    for unit in units:
        blocks += (
            Block([replace(segment, number=segment.number + begin) for segment in block.segments])
            for block in unit.blocks
        )
        begin += sum(len(block.segments) for block in unit.blocks)
    return blocks


def _read(package: Package, compiler: Compiler, directory: Path) -> CountingLibrary:
    document = json.loads((directory / "blocks.json").read_bytes())
    blocks = tuple(Block([Segment(**segment) for segment in block["segments"]]) for block in document)
    parts = Parts(package.parts.shape, (directory / "kernel.so").read_bytes(), package.parts.worker)
    return CountingLibrary(replace(package, parts=parts), blocks, compiler.version)


def _forget_old(everyone: Path) -> None:
    limit = time.time() - _UNUSED_S
    for other in everyone.iterdir():
        try:
            if other.stat().st_mtime < limit:
                shutil.rmtree(other, ignore_errors=True)
        except FileNotFoundError:
            continue
