"""Compile caches: entries and their files, NEFFs, HLO graphs, archives, keys in buckets, and this user's journals."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

_ROOT = Path("root").absolute()
_ENTRY_FILES = (
    "compile_flags.json",
    "model.log",
    ".compiled_by.json",
    "model.hlo_module.pb.lock",
    ".waiting-1-a",
)


@cache
def _pristine() -> dict[str, bytes]:
    """Make a cache with a finished and a failed entry; return its files by path."""
    from neurontools.cache.lock_owner import new_lock_owner
    from neurontools.cache.store import CompileCache
    from neurontools.machine.instances.catalogue import instance_type
    from tests.compiler.graphs import mlp

    cache_ = CompileCache.open({**os.environ}, str(_ROOT))
    entry = Path(cache_.get_or_compile(mlp(), instance_type("trn1.2xlarge").device, "mlp").entry)
    cache_.close()
    failed = entry.with_name("MODULE_12345+e30acd3a")
    failed.mkdir()
    (failed / "model.log").write_text("ERROR: [NCC_EVRF004] no\n")
    (failed / "compile_flags.json").write_text('["--target=trn1"]')
    (failed / "model.hlo_module.pb.lock").write_bytes(new_lock_owner().to_bytes())
    (failed / ".waiting-1-a").write_bytes(new_lock_owner().to_bytes())
    (failed / ".tag-v1").touch()
    return {str(path.relative_to(_ROOT)): path.read_bytes() for path in _ROOT.rglob("*") if path.is_file()}


def _restore() -> Path:
    """Write the cache anew; return the directory of its finished entry."""
    files = _pristine()
    shutil.rmtree(_ROOT, ignore_errors=True)
    for name, data in files.items():
        path = _ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (done,) = _ROOT.rglob("model.done")
    return done.parent


def _read_cache(*verbs: str) -> None:
    from neurontools.commands import cache as command

    entries = [str(path) for path in sorted(_ROOT.glob("neuronxcc-*/MODULE_*"))]
    for verb in verbs or ("ls", "show", "verify", "du", "locks", "stats", "why"):
        words = entries[:2] if verb == "why" else entries if verb == "show" else ()
        for flags in ((), ("--json",)):
            run(command.main, verb, *words, "--cache-dir", str(_ROOT), *flags, is_json=bool(flags))


def _entry_seeds() -> list[bytes]:
    entry = _restore()
    failed = next(path for path in entry.parent.iterdir() if path != entry)
    files = {name: _read(entry / name) or _read(failed / name) for name in _ENTRY_FILES}
    return [json.dumps({**files, "name": failed.name, "compiler": entry.parent.name}).encode()]


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _check_entry(data: bytes) -> None:
    """Write the texts of a JSON object as files of an entry whose name is in it, too."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = {}
    texts = (
        {key: value for key, value in given.items() if isinstance(value, str)}
        if isinstance(given, dict)
        else {}
    )
    entry = _restore()
    try:
        place = _ROOT / _name(texts.pop("compiler", "neuronxcc-1")) / _name(texts.pop("name", "MODULE_1+a"))
        place.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            for directory in (entry, place):
                (directory / _name(name)).write_bytes(text.encode("utf-8", "surrogatepass"))
    except OSError:
        return
    _read_cache()


def _name(text: str) -> str:
    return (
        (text.replace("/", "").replace("\0", "").strip(".") or "x")
        .encode("utf-8", "surrogatepass")[:200]
        .decode("utf-8", "surrogateescape")
    )


def _file_seeds(name: str) -> list[bytes]:
    return [data for path, data in _pristine().items() if path.rpartition("/")[2] == name]


def _check_file(name: str, data: bytes) -> None:
    entry = _restore()
    for directory in (entry, *(path for path in entry.parent.iterdir() if path != entry)):
        (directory / name).write_bytes(data)
    _read_cache("ls", "show", "verify", "why", "locks")


def _cost_seeds() -> list[bytes]:
    return [_neff_files()["cost.bin"]]


def _kernel_seeds() -> list[bytes]:
    return [_kernel_files()["kernels/0.json"]]


@cache
def _kernel_files() -> dict[str, bytes]:
    """Return the files of a NEFF that is a kernel."""
    from neurontools.compiler.archive import unpack_files
    from neurontools.compiler.engines.estimate import estimate
    from neurontools.compiler.engines.instructions import Instruction, InstructionFacts, KernelProgram
    from neurontools.compiler.engines.placement import Engine
    from neurontools.compiler.graph import Node
    from neurontools.compiler.neff import pack
    from neurontools.compiler.neff_header import HEADER_BYTES
    from neurontools.machine.instances.catalogue import instance_type
    from tests.compiler.graphs import graph_of, tensor

    instructions = (
        Instruction(Engine.DMA, "DMA_DIRECT2D", 1, 900.5, (), (0,), read_bytes=64, source="k.py:3"),
        Instruction(Engine.VECTOR, "TENSOR_COPY", 1, 60.0, (0,), (1,), scalar_ns=70.5, source="k.py:4"),
    )
    facts = InstructionFacts(0, 128, 256, 0, 64, is_scratch=True), InstructionFacts(1, 128, could_ns=70.5)
    kernel = KernelProgram(instructions, facts, ((0, 64), (2, 0)), ((1, 1),))
    graph = graph_of(Node("nki.k.default", (tensor(0, 4, 4),), (), (tensor(1, 4, 4),)))
    cost = estimate(graph, instance_type("trn2.48xlarge").device, lnc=1, custom={0: kernel})
    flags = ("--target=trn2", "--logical-nc-config=1")
    neff = pack(graph, cost, name="k", build_version="2.16", flags=flags, kernels={0: kernel})
    return unpack_files(neff[HEADER_BYTES:])


def _check_kernel(data: bytes) -> None:
    """Read a kernel in a NEFF, and make its schedule."""
    from neurontools.compiler.neff import parse
    from neurontools.profiler.advice.rules_kernel import kernel_findings
    from neurontools.profiler.advice.subject import ProfiledProgram
    from neurontools.profiler.analysis.programs import core_of, schedule_of

    neff = parse(_packed({**_kernel_files(), "kernels/0.json": data}))
    planned = schedule_of(neff, core_of(neff))
    planned.sbuf_use()
    planned.psum_use()
    kernel_findings(ProfiledProgram(neff, "k"))


@cache
def _neff_files() -> dict[str, bytes]:
    from neurontools.compiler.archive import unpack_files
    from neurontools.compiler.neff_header import HEADER_BYTES

    (neff,) = _file_seeds("model.neff")
    return unpack_files(neff[HEADER_BYTES:])


def _check_part(name: str, data: bytes) -> None:
    """Put a file into a NEFF and read it as programs and tools do."""
    from neurontools.commands import packager
    from neurontools.compiler.neff import parse
    from neurontools.profiler.capture.format import program_of_neff

    neff = _packed({**_neff_files(), name: data})
    Path("fuzz.neff").write_bytes(neff)
    run(packager.main, "info", "fuzz.neff")
    run(packager.main, "info", "fuzz.neff", "--json-output", is_json=True)
    parse(neff)
    assert program_of_neff(neff).operations is not None


def _packed(files: dict[str, bytes]) -> bytes:
    from neurontools.compiler.archive import pack_files
    from neurontools.compiler.neff_header import write_header

    body = pack_files(files)
    return write_header(body, name="mlp", build_version="2.16", lnc=1) + body


def _check_neff(data: bytes) -> None:
    from neurontools.commands import packager
    from neurontools.compiler.neff import parse

    Path("fuzz.neff").write_bytes(data)
    run(packager.main, "info", "fuzz.neff")
    shutil.rmtree("parts", ignore_errors=True)
    run(packager.main, "unpack", "fuzz.neff", "-o", "parts")
    parse(data, validate_hash=True)


def _hlo_seeds() -> list[bytes]:
    from tests.cache.hlo_modules import Op, computation, data, shape

    ops = [
        Op(1, "parameter", shape("f32", 4, 8)),
        Op(2, "exponential", shape("f32", 4, 8), (1,), source="a.py:3"),
    ]
    entry = computation("main", 1, 2, ops)
    return [
        data(1, "module") + data(2, "main") + data(3, entry) + b"\x30\x01",
        *_file_seeds("model.hlo_module.pb"),
    ]


def _check_hlo(data: bytes) -> None:
    entry = _restore()
    (entry / "model.hlo_module.pb").write_bytes(data)
    _read_cache("show", "why", "verify")


def _archive_seeds() -> list[bytes]:
    from neurontools.commands import cache as command

    _restore()
    Path("fuzz.tar").unlink(missing_ok=True)
    run(command.main, "copy", "--to", "fuzz.tar", "--cache-dir", str(_ROOT))
    found = Path("fuzz.tar").read_bytes()
    Path("fuzz.tar").unlink()
    return [found, gzip.compress(found, 1)]


def _check_archive(data: bytes) -> None:
    from neurontools.commands import cache as command

    Path("fuzz.tar").write_bytes(data)
    shutil.rmtree("imported", ignore_errors=True)
    run(command.main, "copy", "--from", "fuzz.tar", "--cache-dir", str(Path("imported").absolute()))


def _names_seeds() -> list[bytes]:
    with tarfile.open(fileobj=io.BytesIO(_archive_seeds()[0])) as archive:
        members = {
            member.name: (archive.extractfile(member) or io.BytesIO()).read()
            for member in archive
            if member.isfile()
        }
    return [json.dumps({name: data.decode("latin-1") for name, data in members.items()}).encode()]


def _check_names(data: bytes) -> None:
    """Import an archive whose members have the names and contents of a JSON object."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in given.items() if isinstance(given, dict) else ():
            content = str(text).encode("latin-1", "replace")
            member = tarfile.TarInfo(name)
            member.size = len(content)
            try:
                archive.addfile(member, io.BytesIO(content))
            except (ValueError, UnicodeError):
                continue
    _check_archive(made.getvalue())


def _key_seeds() -> list[bytes]:
    names = sorted(_pristine())
    older = (
        "USER_neuroncc-1.0/MODULE_1234/model.neff",
        "ab/cd/" + "0" * 64 + ".neff",
        "0" * 32 + "/.compilation_complete",
    )
    return ["\n".join((*names, *older)).encode()]


def _check_keys(data: bytes) -> None:
    """List a bucket that has objects with these keys, one a line."""
    from datetime import UTC, datetime

    from neurontools.cache.remote import bucket
    from neurontools.commands import cache as command

    keys = [key for key in data.decode("utf-8", "replace").split("\n") if key]
    content = _pristine()

    class Client:
        """Answers as s3fs does."""

        def find(self, above: str, prefix: str = "", **_: object) -> dict[str, Any]:
            start = f"{above.removeprefix('s3://')}/{prefix}"
            return {
                f"bucket/{key}": {
                    "size": len(content.get(key, b"x")),
                    "LastModified": datetime(2026, 1, 1, tzinfo=UTC),
                }
                for key in keys
                if f"bucket/{key}".startswith(start)
            }

        def cat_ranges(self, paths: list[str], _start: int, sizes: list[int], **_: object) -> list[bytes]:
            return [self._content(path)[:size] for path, size in zip(paths, sizes, strict=True)]

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            return self._content(path)[start:end]

        def get_file(self, path: str, target: str, **_: object) -> None:
            Path(target).write_bytes(self._content(path))

        def info(self, path: str, **_: object) -> dict[str, Any]:
            return {"size": len(self._content(path)), "Metadata": {}}

        def invalidate_cache(self, *_: object) -> None:
            return

        def metadata(self, *_: object, **__: object) -> dict[str, str]:
            return {}

        def _content(self, path: str) -> bytes:
            return content.get(path.removeprefix("s3://").removeprefix("bucket/"), b"x")

    original = bucket._client
    bucket._client = Client  # type: ignore[assignment]
    shutil.rmtree("copy", ignore_errors=True)
    try:
        for verb in ("ls", "du", "verify", "locks"):
            run(command.main, verb, "--cache-dir", "s3://bucket")
        run(command.main, "show", "MODULE_12345+e30acd3a", "--cache-dir", "s3://bucket")
        run(command.main, "copy", "--from", "s3://bucket", "--to", str(Path("copy").absolute()))
    finally:
        bucket._client = original


def _journal_seeds() -> list[bytes]:
    module = _restore().name
    lines = (
        "1700000000.123 run1 miss 1.500000 ",
        "1700000001.123 run1 hit 2.250000 ",
        "1700000002.0 run2 wait 0.1 ",
    )
    return ["".join(f"{line}{module}\n" for line in lines).encode()]


def _check_journal(data: bytes) -> None:
    from neurontools.cache.events import events_path

    _restore()
    path = Path(events_path(str(_ROOT)))
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in ("events", "removed", "root"):
        (path.parent / name).write_bytes(data)
    try:
        _read_cache("stats", "why", "ls")
    finally:
        shutil.rmtree(path.parent)


def _check_wrapper_log(data: bytes) -> None:
    from neurontools.commands import cache as command

    Path("run.log").write_bytes(data)
    run(command.main, "stats", "--from-log", "run.log")


_LOG = """\
2026-01-02 03:04:05.000123:  1234  INFO ||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile a.pb --target trn1
2026-01-02 03:04:06.000123:  1234  INFO ||NEURON_CACHE||: Compile cache path: /var/tmp/neuron-compile-cache
2026-01-02 03:04:07.000123:  1234  INFO ||NEURON_CC_WRAPPER||: Using a cached neff at /a/MODULE_1+b/model.neff
"""

TARGETS = (
    Target("cache/entry", Format.JSON, _entry_seeds, _check_entry, share=0.3),
    Target(
        "cache/flags",
        Format.JSON,
        lambda: _file_seeds("compile_flags.json"),
        lambda data: _check_file("compile_flags.json", data),
        share=0.3,
    ),
    Target(
        "cache/provenance",
        Format.JSON,
        lambda: _file_seeds(".compiled_by.json"),
        lambda data: _check_file(".compiled_by.json", data),
        share=0.3,
    ),
    Target(
        "cache/lock",
        Format.JSON,
        lambda: _file_seeds("model.hlo_module.pb.lock"),
        lambda data: _check_file("model.hlo_module.pb.lock", data),
        share=0.3,
    ),
    Target("cache/neff", Format.BINARY, lambda: _file_seeds("model.neff"), _check_neff),
    Target(
        "cache/neff-graph",
        Format.JSON_LINES,
        lambda: [_neff_files()["graph.json"]],
        lambda data: _check_part("graph.json", data),
    ),
    Target("cache/neff-cost", Format.BINARY, _cost_seeds, lambda data: _check_part("cost.bin", data)),
    Target("cache/neff-kernel", Format.JSON, _kernel_seeds, _check_kernel),
    Target(
        "cache/neff-manifest",
        Format.JSON,
        lambda: [_neff_files()["neff.json"]],
        lambda data: _check_part("neff.json", data),
    ),
    Target("cache/hlo", Format.BINARY, _hlo_seeds, _check_hlo, share=0.5),
    Target("cache/archive", Format.BINARY, _archive_seeds, _check_archive, share=0.3),
    Target("cache/archive-names", Format.JSON, _names_seeds, _check_names, share=0.3),
    Target(
        "cache/s3-keys",
        Format.TEXT,
        _key_seeds,
        _check_keys,
        words=("/", "\n", "MODULE_", "+", "model.neff", ".."),
        share=0.3,
    ),
    Target(
        "cache/journal",
        Format.TEXT,
        _journal_seeds,
        _check_journal,
        words=("\n", " ", "hit", "miss", "removed"),
        share=0.3,
    ),
    Target(
        "cache/wrapper-log",
        Format.TEXT,
        lambda: [_LOG.encode()],
        _check_wrapper_log,
        words=("\n", " ", "||", ":", "MODULE_"),
    ),
)
