"""NEFF files of any origin: told and unpacked whole, and nothing ever leaves the directory."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.compiler import neff_file
from neurontools.compiler.archive import ArchiveError, TarReader
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.neff_file import DATA_NAME, read_neff_file, unpack_neff
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, write_header
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from pathlib import Path

OURS = compile_graph(mlp(), instance_type("trn2.48xlarge").device, ("--target=trn2",), "mlp")
DEFINITION = {
    "var": {"input0": {"type": "input", "size": 64}, "w": {"type": "file"}, "odd": 3},
    "dma_queue": {},
}
FILES = {
    "info.json": b"{}",
    "sg00/def.json": json.dumps(DEFINITION).encode(),
    "sg00/PE.bin": bytes(5000),
    "debug_info/" + "long/" * 40 + "name.json": b"deep",
}
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def tar_of(files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT, *others: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        top = tarfile.TarInfo("./")
        top.type = tarfile.DIRTYPE
        archive.addfile(top)
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in others:
            archive.addfile(member)
    return buffer.getvalue()


def neff(path: Path, data: bytes) -> str:
    path.write_bytes(write_header(data, name="bert", build_version="2.16", lnc=1) + data)
    return str(path)


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_a_foreign_neff_is_reported_and_unpacked(tmp_path, kind, compress):
    data = compress(tar_of(FILES, kind))
    path = neff(tmp_path / "f.neff", data)
    found = read_neff_file(path)
    assert (found.problem, found.is_simulated, found.header.name) == ("", False, "bert")
    assert {member.name: member.size_bytes for member in found.members if not member.is_directory} == {
        name: len(content) for name, content in FILES.items()
    }
    assert [(item.name, item.kind, item.size_bytes) for item in found.variables] == [
        ("input0", "input", 64),
        ("w", "file", None),
    ]
    unpack_neff(path, str(tmp_path / "out"))
    assert tree(tmp_path / "out") == FILES | {DATA_NAME: data}


def test_ours_has_shapes(tmp_path):
    (tmp_path / "o.neff").write_bytes(OURS)
    found = read_neff_file(str(tmp_path / "o.neff"))
    assert found.is_simulated
    inputs = [item for item in found.variables if item.kind == "input" and item.subgraph == "sg01"]
    assert [(item.shape, item.dtype) for item in inputs] == [((4, 8), "float32"), ((8, 8), "float32")]


def test_an_unpacked_neff_can_be_unpacked_by_tar(tmp_path):
    (tmp_path / "o.neff").write_bytes(OURS)
    unpack_neff(str(tmp_path / "o.neff"), str(tmp_path / "new" / "out"))
    with tarfile.open(tmp_path / "new" / "out" / DATA_NAME) as archive:
        assert "sg01/def.json" in archive.getnames()


def hostile(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "../../outside"
    return member


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (hostile("/etc/evil"), "leads out"),
        (hostile("a/../../evil"), "leads out"),
        (hostile("link", tarfile.SYMTYPE), "is a link"),
        (hostile("link", tarfile.LNKTYPE), "is a hard link"),
        (hostile("node", tarfile.CHRTYPE), "is a device"),
        (hostile("node", tarfile.FIFOTYPE), "is a pipe"),
        (hostile("info.json"), "twice"),
        (hostile("info.json/below"), "twice"),
        (hostile(DATA_NAME), "a file named neff.tgz"),
        (hostile("a\nb"), "not allowed"),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_what_could_leave_the_directory_is_refused_and_nothing_is_left(tmp_path, member, words, kind):
    path = neff(tmp_path / "f.neff", gzip.compress(tar_of(FILES, kind, member)))
    with pytest.raises(NeffError, match=words):
        unpack_neff(path, str(tmp_path / "in" / "out"))
    assert os.listdir(tmp_path / "in") == []
    assert sorted(os.listdir(tmp_path)) == ["f.neff", "in"]


def test_the_limit_counts_what_is_announced_and_what_is_compressed(tmp_path):
    path = neff(tmp_path / "f.neff", gzip.compress(tar_of({"zeros": bytes(3_000_000)})))
    with pytest.raises(NeffError, match="more than 1000000 bytes"):
        unpack_neff(path, str(tmp_path / "out"), limit_bytes=1_000_000)
    assert os.listdir(tmp_path) == ["f.neff"]


@pytest.mark.parametrize("parts", [1, 2, 500])
def test_a_bomb_is_unpacked_only_up_to_the_default_limit(tmp_path, parts):
    bomb = gzip.compress(tar_of({f"z{number}": bytes((16 << 20) // parts + 1) for number in range(parts)}))
    path = neff(tmp_path / "f.neff", bomb)
    with pytest.raises(NeffError, match="more than 16777216 bytes"):
        unpack_neff(path, str(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["f.neff"]
    assert len(unpack_neff(path, str(tmp_path / "out"), limit_bytes=17 << 20)) >= parts


def test_a_packed_neff_may_have_100_times_its_size(tmp_path):
    files = {"zeros": bytes(20_000_000), "weights": os.urandom(300_000)}
    unpack_neff(neff(tmp_path / "f.neff", gzip.compress(tar_of(files))), str(tmp_path / "out"))
    assert (tmp_path / "out" / "zeros").stat().st_size == 20_000_000


@pytest.mark.parametrize("compress", [gzip.compress, bytes], ids=["packed", "plain"])
def test_a_neff_with_too_many_files_is_refused_whole(tmp_path, compress, monkeypatch):
    monkeypatch.setattr(neff_file, "_MOST_FILES", 20)
    path = neff(tmp_path / "f.neff", compress(tar_of(dict.fromkeys(map(str, range(20)), b""))))
    with pytest.raises(NeffError, match="too many files"):
        unpack_neff(path, str(tmp_path / "out"), limit_bytes=1 << 40)
    assert "too many files" in read_neff_file(path).problem
    assert os.listdir(tmp_path) == ["f.neff"]


def test_a_packed_bomb_is_a_problem_that_is_found_early(tmp_path):
    data = gzip.compress(tar_of({"zeros": bytes(20_000_000)}))
    assert read_neff_file(neff(tmp_path / "f.neff", data)).problem == (
        "the archive's files have more than 16777216 bytes"
    )
    larger = {"zeros": bytes(20_000_000), "weights": os.urandom(300_000)}
    assert read_neff_file(neff(tmp_path / "f.neff", gzip.compress(tar_of(larger)))).problem == ""


def test_a_full_directory_is_not_touched(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(NeffError, match="not empty"):
        unpack_neff(neff(tmp_path / "f.neff", gzip.compress(tar_of(FILES))), str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_damage_is_named_and_not_unpacked(tmp_path):
    cut = tmp_path / "cut.neff"
    cut.write_bytes(OURS[:-1])
    assert "bytes of data" in read_neff_file(str(cut)).problem
    flipped = tmp_path / "flipped.neff"
    flipped.write_bytes(OURS[:-9] + bytes([OURS[-9] ^ 1]) + OURS[-8:])
    assert "does not match" in read_neff_file(str(flipped)).problem
    for path in (cut, flipped):
        with pytest.raises(NeffError):
            unpack_neff(str(path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_package_version_1_has_an_md5(tmp_path):
    import hashlib

    data = OURS[HEADER_BYTES:]
    digest = hashlib.md5(data).digest() + bytes(16)
    old = struct.pack("<5Q", 1, 1024, len(data), 1, 1) + OURS[40:172] + digest + OURS[204:1024] + data
    (tmp_path / "old.neff").write_bytes(old)
    found = read_neff_file(str(tmp_path / "old.neff"))
    assert (found.problem, found.header.version) == ("", (1, 1))


@pytest.mark.parametrize("content", [b"", b"no neff", bytes(2000)], ids=["empty", "text", "zeros"])
def test_what_is_not_a_neff_is_refused_by_name(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(NeffError, match=r"x: not a NEFF"):
        read_neff_file(str(tmp_path / "x"))


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(NeffError, match=r"not a regular file|Is a directory"):
            read_neff_file(str(path))


@given(st.binary(max_size=1500) | st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(drawn):
    data = bytearray(tar_of(FILES))
    if isinstance(drawn, bytes):
        data[: len(drawn)] = drawn
    else:
        for _ in range(3):
            data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    reader = TarReader(io.BytesIO(bytes(data)), 1 << 20)
    try:
        for member in reader.members():
            assert sum(len(chunk) for chunk in reader.chunks()) == member.size_bytes
            assert not member.name.startswith(("/", "../"))
    except ArchiveError:
        return


def read_all(data: bytes) -> list[str]:
    reader = TarReader(io.BytesIO(data), 1 << 30)
    return [f"{member.name} {sum(map(len, reader.chunks()))}" for member in reader.members()]


def test_members_and_sizes_of_a_sound_archive():
    assert read_all(tar_of({"a": b"12", "b/c": b""})) == ["a 2", "b/c 0"]
    assert read_all(bytes(1024)) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (tar_of({"a": bytes(5000)})[:3000], "cut short"),
        (tar_of({"a": bytes(512)})[:-10240], "cut short"),  # ends where a header should begin
        (tar_of({"a": b"", "b": b""}).replace(b"./b\0", b"./c\0"), "damaged"),
        (tar_of({"a": b""}) + b"x", "followed by other data"),
        (tar_of({"a": b""}) + bytes(2 << 20), "followed by other data"),
        (tar_of({"x" * 5000: b""}), "not allowed"),
        (tar_of({"x" * 400_000: b""}), "too large"),
    ],
    ids=["empty", "in-content", "at-header", "checksum", "tail", "long-tail", "name", "header"],
)
def test_unsound_archives_are_refused(data, words):
    with pytest.raises(ArchiveError, match=words):
        read_all(data)


def test_a_chain_of_extension_headers_ends():
    link = tarfile.TarInfo("x" * 200)
    extension = link.tobuf(tarfile.GNU_FORMAT)[:1024]
    with pytest.raises(ArchiveError):
        read_all(extension * 10_000)


def test_sparse_files_and_directories_with_content_are_refused():
    sparse = tarfile.TarInfo("s")
    sparse.pax_headers = {"GNU.sparse.size": "10", "GNU.sparse.major": "0"}
    with pytest.raises(ArchiveError, match="sparse"):
        read_all(sparse.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    directory = tarfile.TarInfo("d")
    directory.type, directory.size = tarfile.DIRTYPE, 512
    header = bytearray(directory.tobuf(tarfile.USTAR_FORMAT))
    with pytest.raises(ArchiveError, match="wrong size"):
        read_all(bytes(header) + bytes(2048))


def test_the_number_of_members_is_limited():
    reader = TarReader(io.BytesIO(tar_of(dict.fromkeys("abcde", b""))), 1 << 20, max_members=5)
    with pytest.raises(ArchiveError, match="too many files"):
        list(reader.members())
