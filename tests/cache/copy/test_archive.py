"""Export and import: what arrives is what left, or nothing; no archive writes anywhere else."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.cache import layouts
from neurontools.cache.copy import archive, plan
from neurontools.cache.copy.archive import CopyError
from neurontools.cache.copy.runner import CopyOutcome
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.locks import hold, release, try_lock
from neurontools.commands.cache import main
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.copies import copy_all
from tests.cache.trees import lay_out
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


@pytest.fixture
def packed(entry: Path, home: Path) -> Path:
    assert main(["copy", "--to", str(home / "x.tar")]) == 0
    return home / "x.tar"


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and plan.is_portable(path.name)
    }


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_what_arrives_is_what_left_and_is_hit(
    entry: Path,
    home: Path,
    suffix: str,
    open_cache: Callable[..., CompileCache],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if suffix == ".tar.zst":
        pytest.importorskip("zstandard", reason="the optional package zstandard is not installed")
    root = entry.parents[1]
    assert main(["tag", "v1", entry.name]) == 0
    assert main(["pin", entry.name]) == 0
    packed, other = str(home / f"x{suffix}"), str(home / "other")
    assert main(["copy", "--to", packed]) == 0
    assert "1 entry copied" in capsys.readouterr().out
    assert main(["copy", "--from", packed, "--cache-dir", other]) == 0
    assert f", to {other}\n" in capsys.readouterr().out
    assert content(Path(other)) == content(root)
    (arrived,) = scan(other).entries
    assert (arrived.state, arrived.tags, arrived.pinned) == (State.DONE, ("v1",), False)
    assert main(["verify", "--cache-dir", other]) == 0
    assert open_cache(other).get_or_compile(mlp(), TRN1, "mlp").hit
    assert main(["copy", "--from", packed, "--cache-dir", other]) == 0
    assert f"to {other}; 1 already there\n" in capsys.readouterr().out


def test_unpacked_by_tar_it_is_a_cache(packed: Path, home: Path) -> None:
    with tarfile.open(packed) as opened:
        chosen = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later
        opened.extractall(home / "by-tar", **chosen)
    (found,) = scan(str(home / "by-tar")).entries
    assert found.state is State.DONE


def test_only_what_is_finished_sound_and_chosen_is_exported(
    entry: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = entry.parent / layouts.module_name("77", ())
    failed.mkdir()
    (failed / layouts.LOG).write_text("ERROR: [NCC_EVRF004] no\n")
    damaged = entry.parent / layouts.module_name("78", ())
    damaged.mkdir()
    (damaged / layouts.NEFF).write_bytes(b"x" * 2000)
    (damaged / layouts.DONE).touch()
    assert main(["copy", "--to", str(home / "x.tar"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in shown["copied"]] == [str(entry)]
    reasons = {os.path.basename(row["path"]): row["reason"] for row in shown["left_out"]}
    assert reasons[failed.name] == "failed"
    assert reasons[damaged.name].startswith("damaged: ")
    assert main(["copy", "--filter", "state=failed", "--to", str(home / "y.tar")]) == 1
    assert "nothing to copy" in capsys.readouterr().err
    assert main(["copy", "--filter", "state=done", "--to", str(home / "x.tar")]) == 1
    assert "the file exists" in capsys.readouterr().err
    assert main(["copy", "--force", "--filter", "name=mlp", "state=done", "--to", str(home / "x.tar")]) == 0
    assert sorted(name for name in os.listdir(home) if "tar" in name) == ["x.tar"]


def test_entries_of_the_real_compiler_travel_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = lay_out("generations", home / "compile-cache")
    main(["copy", "--to", str(home / "x.tar"), "--cache-dir", str(root), "--json"])
    exported = [row["path"] for row in json.loads(capsys.readouterr().out)["copied"]]
    assert exported
    assert main(["copy", "--from", str(home / "x.tar"), "--cache-dir", str(home / "other"), "--json"]) == 0
    arrived = [row["path"] for row in json.loads(capsys.readouterr().out)["copied"]]
    assert arrived == [os.path.relpath(path, root) for path in exported]


def test_for_ci_takes_what_would_be_hit(
    entry: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = str(home / "x.tar.gz")
    assert main(["copy", "--for-ci", "--to", packed]) == 0
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1")
    assert main(["copy", "--for-ci", "--from", packed, "--cache-dir", str(home / "other"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert [row["reason"] for row in shown["left_out"]] == ["other compiler flags"]
    assert main(["copy", "--for-ci", "--to", str(home / "y.tar")]) == 1
    monkeypatch.delenv("NEURON_CC_FLAGS")
    foreign = entry.parents[1] / layouts.compiler_name("2.99.0.0+abcd") / entry.name
    entry.parent.rename(foreign.parent)
    assert main(["copy", "--for-ci", "--to", str(home / "z.tar")]) == 1
    assert "other compiler version" in capsys.readouterr().err


def test_an_unfinished_entry_is_completed_and_a_locked_one_left(
    entry: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(entry.parents[1])
    (entry / layouts.NEFF).unlink()
    (entry / layouts.DONE).unlink()
    (entry / layouts.LOG).write_text("ERROR: [NCC_EVRF004] no\n")
    lock = try_lock(root, str(entry))
    assert lock is not None
    assert [item.reason for item in copy_all(packed, root).copied] == ["a process is compiling it there"]
    lock.release()
    held = hold(str(entry))
    assert [item.outcome for item in copy_all(packed, root).copied] == [CopyOutcome.COPIED]
    release(held)
    assert scan(root).entries[0].state is State.DONE
    assert not (entry / layouts.LOG).exists()
    assert main(["verify"]) == 0


def repacked(packed: Path, target: Path, change: Callable[[dict[str, bytes]], object]) -> str:
    """Write an archive anew after a change of its files."""
    with tarfile.open(packed) as opened:
        files = {name: opened.extractfile(name).read() for name in opened.getnames()}  # type: ignore[union-attr]
    change(files)
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as written:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            written.addfile(member, io.BytesIO(data))
    return str(target)


def rename(files: dict[str, bytes], old: str, new: str) -> None:
    name = next(name for name in files if old in name)
    files[name.replace(old, new)] = files.pop(name)
    files[archive.END] = files.pop(archive.END)  # it stays the last


def flip(files: dict[str, bytes], name: str) -> None:
    path = next(path for path in files if path.endswith(name))
    files[path] = files[path][:-1] + bytes([files[path][-1] ^ 1])


CHANGES = {
    "another version": lambda files: files.update({archive.END: b'{"version": 99, "entries": 1}'}),
    "no end": lambda files: files.pop(archive.END),
    "a wrong end": lambda files: files.update({archive.END: b'{"version": 1, "entries": 2}'}),
    "a damaged end": lambda files: files.update({archive.END: b"[]"}),
    "a large end": lambda files: files.update({archive.END: b" " * 5000}),
    "more behind the end": lambda files: files.update({"more": b""}),
    "a path that leads out": lambda files: rename(files, COMPILER_VERSION, "../../evil"),
    "an absolute path": lambda files: rename(files, "neuronxcc-", "/neuronxcc-"),
    "a lock": lambda files: rename(files, layouts.DONE, layouts.LOCK),
    "a name that leads out": lambda files: rename(files, layouts.DONE, "../../evil"),
    "no marker": lambda files: files.pop(next(name for name in files if name.endswith(layouts.DONE))),
    "a changed NEFF": lambda files: flip(files, layouts.NEFF),
    "changed flags": lambda files: flip(files, layouts.FLAGS),
    "a missing file": lambda files: files.pop(next(name for name in files if name.endswith(layouts.NEFF))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_archive_imports_nothing(
    packed: Path, home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = repacked(packed, home / "forged.tar", CHANGES[name])
    before = sorted(os.listdir(home))
    assert main(["copy", "--from", forged, "--cache-dir", str(home / "other")]) == 1
    assert capsys.readouterr().err.startswith(f"error: cannot read {forged}: ")
    assert scan(str(home / "other")).entries == ()
    assert sorted({*os.listdir(home)} - {"other"}) == before
    assert not (home / "other" / layouts.IMPORTING).exists()


def test_a_sound_neff_of_another_graph_is_refused(packed: Path, home: Path) -> None:
    other = compile_graph(mlp(width=16), TRN1, (), "other")
    forged = repacked(
        packed,
        home / "forged.tar",
        lambda files: files.update({name: other for name in files if name.endswith(layouts.NEFF)}),
    )
    with pytest.raises(CopyError, match="its graph does not match"):
        copy_all(forged, home / "other")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(home: Path, kind: bytes) -> None:
    with tarfile.open(home / "x.tar", "w") as written:
        member = tarfile.TarInfo("file")
        member.type, member.linkname = kind, "/etc/passwd"
        written.addfile(member)
    with pytest.raises(CopyError, match="which is a"):
        copy_all(home / "x.tar", home / "other")


@pytest.mark.parametrize(
    "data",
    [b"", b"nothing", gzip.compress(b"nothing", mtime=0), b"\x1f\x8b\x08", bytes(5000)],
    ids=["empty", "text", "compressed text", "cut gzip", "zeros"],
)
def test_what_is_not_an_archive_is_refused(home: Path, data: bytes) -> None:
    (home / "x.tar").write_bytes(data)
    with pytest.raises(CopyError, match=r"x\.tar: "):
        copy_all(home / "x.tar", home / "other")


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n" * 100, bytes(5000)])
def test_what_is_not_an_archive_says_what_it_is(home: Path, data: bytes) -> None:
    (home / "x.tar").write_bytes(data)
    found = f"it starts with {data[:16]!r}" if data else "it is empty"
    with pytest.raises(CopyError) as refused:
        copy_all(home / "x.tar", home / "other")
    assert refused.value.message.endswith(f"not an archive of 'neuron-cache copy': {found}")
    assert not (home / "other").exists()


@pytest.mark.parametrize("verb", ["export", "import"])
def test_without_the_package_for_zst_the_hint_names_it_and_another_way(
    entry: Path, home: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (home / "in.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(400))
    name = {"export": "out.tar.zst", "import": "in.tar.zst"}[verb]
    flag = {"export": "--to", "import": "--from"}[verb]
    assert main(["copy", flag, str(home / name), "--cache-dir", str(entry.parents[1])]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert ".tar.zst needs the package zstandard" in error
    assert hint == "hint: pip install 'neurontools[archive]', or name the file .tar.gz"
    assert sorted(path.name for path in home.glob("*zst*")) == ["in.tar.zst"]


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_archive_that_is_cut_imports_nothing(entry: Path, home: Path, suffix: str, share: float) -> None:
    if suffix == ".tar.zst":
        pytest.importorskip("zstandard", reason="the optional package zstandard is not installed")
    whole = home / f"x{suffix}"
    if not whole.exists():
        assert main(["copy", "--to", str(whole)]) == 0
    data = whole.read_bytes()
    # Zeros at the end of a plain tar, and a compressor's own checksum, are not missed: the end's list is read before.
    cut = home / f"cut{suffix}"
    cut.write_bytes(data[: int((len(data.rstrip(b"\0")) - 8) * share)])
    with pytest.raises(CopyError):
        copy_all(cut, home / "other")
    assert scan(str(home / "other")).entries == ()
    assert entry.exists()


def test_invalid_input_is_refused(packed: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy"]) == 2
    assert main(["copy", "--from", str(home / "nowhere.tar")]) == 1
    os.mkfifo(home / "pipe.tar")
    assert main(["copy", "--from", str(home / "pipe.tar")]) == 1
    assert "not a regular file" in capsys.readouterr().err
    assert main(["copy", "--from", str(packed), "--max-size", "1kB", "--cache-dir", str(home / "other")]) == 1
    assert "more than 1000 bytes" in capsys.readouterr().err
    assert (
        main(["copy", "--from", str(packed), "--filter", "stat=done", "--cache-dir", str(home / "other")])
        == 2
    )
    (home / "photos").mkdir()
    (home / "photos" / "cat.jpg").touch()
    assert main(["copy", "--from", str(packed), "--cache-dir", str(home / "photos")]) == 1
    assert os.listdir(home / "photos") == ["cat.jpg"]


def test_a_full_disk_leaves_no_entry(
    packed: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(archive, "sync_file_system", full)
    assert main(["copy", "--from", str(packed), "--cache-dir", str(home / "other")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert main(["copy", "--to", str(home / "y.tar")]) == 1
    monkeypatch.undo()
    assert scan(str(home / "other")).entries == ()
    assert not (home / "other" / layouts.IMPORTING).exists()
    assert [name for name in os.listdir(home) if name.startswith("y.tar")] == []


def test_a_directory_that_a_removal_takes_away_is_made_again(
    packed: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, taken = os.rename, []

    def after_a_removal(source: str, target: str, *, dst_dir_fd: int | None = None) -> None:
        if not taken and dst_dir_fd is not None:
            taken.append(target)
            os.rmdir(os.readlink(f"/proc/self/fd/{dst_dir_fd}"))
        rename(source, target, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", after_a_removal)
    assert len(copy_all(packed, home / "other").copied) == len(taken) == 1


def test_what_a_killed_import_left_is_cleared_by_the_next(packed: Path, entry: Path) -> None:
    root = entry.parents[1]
    left = root / layouts.IMPORTING / "4711-dead" / "neuronxcc-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    assert len(scan(str(root)).entries) == 1
    copy_all(packed, root)
    assert not (root / layouts.IMPORTING).exists()
