"""A root in which another user makes links, pipes and directories: nothing outside is changed, nothing waits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.base.directories import Directory
from neurontools.cache import layouts, location, pins_and_tags, verify
from neurontools.cache.copy import endpoints
from neurontools.cache.copy.endpoints import BucketTarget, DirectorySource, staging_directory
from neurontools.cache.entries import scan
from neurontools.cache.events import STAMP_PERIOD_S, Usage
from neurontools.cache.remote.bucket import Bucket
from neurontools.cache.store import CacheResult, CompileCache
from neurontools.commands.cache import main
from tests.cache.conftest import DAY, TRN1, Tree
from tests.cache.entries import entry_path
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Opener = Callable[..., CompileCache]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A directory of the user outside the root; it must be unchanged after the test."""
    folder = tmp_path / "precious"
    (folder / "inner").mkdir(parents=True)
    for number in range(40):
        (folder / f"file-{number:02}").write_text("x")
    (folder / "inner" / "file").touch()
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    before = state_of(folder)
    yield folder
    assert state_of(folder) == before


def state_of(folder: Path) -> dict[str, tuple[int, float]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime) for path in folder.rglob("*")}


def look_up(open_cache: Opener) -> CacheResult:
    cache = open_cache()
    try:
        return cache.get_or_compile(mlp(), TRN1, "mlp")
    finally:
        cache.close()


def damage(path: Path) -> None:
    (path / layouts.NEFF).write_bytes(b"x")


def test_a_trash_that_is_swapped_during_a_prune_deletes_nothing_else(
    tree: Tree, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [tree.failed(graph=str(number), unused_s=DAY) for number in range(3)]
    remove_content = Directory.remove_content

    def swap(directory: Directory, levels: int = 32) -> None:
        trash = tree.root / layouts.TRASH
        if trash.is_dir() and not trash.is_symlink():
            trash.rename(tree.root / "moved")
            trash.symlink_to(precious)
        remove_content(directory, levels)

    monkeypatch.setattr(Directory, "remove_content", swap)
    assert main(["prune", "--failed", "-y"]) == 0
    assert [path.exists() for path in entries] == [False] * 3


def test_a_directory_that_is_swapped_for_a_link_while_it_is_deleted_stays(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "tree"
    (victim / "inner").mkdir(parents=True)
    names = os.listdir

    def swap(descriptor: int) -> list[str]:
        if victim.is_dir() and not victim.is_symlink():
            victim.rename(tmp_path / "moved")
            victim.symlink_to(precious)
        return names(descriptor)

    with Directory.open(str(tmp_path)) as directory, monkeypatch.context() as patch:
        patch.setattr(os, "listdir", swap)
        directory.remove_tree("tree")
    assert victim.is_symlink()
    assert os.listdir(tmp_path / "moved") == []


@pytest.mark.parametrize("name", [layouts.TRASH, layouts.IMPORTING])
def test_a_work_directory_that_is_a_link_is_refused(tree: Tree, precious: Path, name: str) -> None:
    path = tree.failed(unused_s=DAY)
    (tree.root / name).symlink_to(precious)
    if name == layouts.TRASH:
        assert main(["prune", "--failed", "-y"]) == 1
        assert path.exists()
    else:
        with pytest.raises(OSError, match="is a link"), staging_directory(str(tree.root)):
            pass


def test_a_staging_directory_that_is_swapped_is_still_the_same(tree: Tree, precious: Path) -> None:
    with staging_directory(str(tree.root)) as staged:
        name = os.listdir(tree.root / layouts.IMPORTING)[0]
        (tree.root / layouts.IMPORTING).rename(tree.root / "moved")
        (tree.root / layouts.IMPORTING).symlink_to(precious)
        Path(staged, "file").write_text("staged")
        assert (tree.root / "moved" / name / "file").read_text() == "staged"


@pytest.mark.parametrize("name", [layouts.ROOT_LOCK, layouts.STAMP])
def test_a_dangling_link_makes_no_file_at_its_target(
    entry: Path, tmp_path: Path, open_cache: Opener, name: str
) -> None:
    place = entry.parents[1] if name == layouts.ROOT_LOCK else entry
    (place / name).unlink(missing_ok=True)
    (place / name).symlink_to(tmp_path / "nologin")
    assert look_up(open_cache).hit
    (entry / layouts.DONE).unlink()
    look_up(open_cache)
    main(["prune", "--failed", "-y"])
    assert not (tmp_path / "nologin").exists()


def test_a_hit_touches_no_file_behind_a_link(entry: Path, precious: Path, open_cache: Opener) -> None:
    (entry / layouts.STAMP).symlink_to(precious / "file-00")
    assert look_up(open_cache).hit
    assert (entry / layouts.STAMP).is_symlink()


def test_an_old_stamp_is_renewed(entry: Path, open_cache: Opener) -> None:
    (entry / layouts.STAMP).touch()
    os.utime(entry / layouts.STAMP, (1, 1))
    assert look_up(open_cache).hit
    assert (entry / layouts.STAMP).stat().st_mtime > STAMP_PERIOD_S


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_an_entry_behind_a_link_is_no_entry(
    entry: Path, tmp_path: Path, open_cache: Opener, above: bool, is_finished: bool
) -> None:
    linked = entry.parent if above else entry
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    if not is_finished:
        (entry / layouts.DONE).unlink()
    (entry / f"{layouts.TEMPORARY_PREFIX}1").touch()
    os.utime(entry / f"{layouts.TEMPORARY_PREFIX}1", (1, 1))
    before = state_of(tmp_path / "outside")
    found = look_up(open_cache)
    assert (found.hit, found.entry) == (False, "")
    assert scan(str(entry.parents[1])).entries == ()
    assert state_of(tmp_path / "outside") == before


def test_a_path_through_a_link_names_no_entry(
    entry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry.parent.rename(tmp_path / "outside")
    entry.parent.symlink_to(tmp_path / "outside")
    assert main(["rm", str(entry), "-y"]) == 1
    assert "no entry" in capsys.readouterr().err
    assert entry.exists()


@pytest.mark.parametrize(
    "name",
    [layouts.NEFF, layouts.DONE, layouts.LOCK, layouts.LOG, layouts.FLAGS, layouts.STAMP, layouts.ORIGIN],
)
def test_a_pipe_in_an_entry_hangs_nothing(
    entry: Path, open_cache: Opener, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name in {layouts.LOCK, layouts.LOG}:
        (entry / layouts.NEFF).unlink()
        (entry / layouts.DONE).unlink()
    (entry / name).unlink(missing_ok=True)
    os.mkfifo(entry / name)
    for command in (["ls"], ["show", entry.name], ["verify"], ["locks"], ["stats"], ["why", entry.name]):
        main(command)
    found = look_up(open_cache)
    assert found.hit is (name in {layouts.FLAGS, layouts.STAMP, layouts.ORIGIN})
    assert main(["verify", "--fix"]) in {0, 1}
    assert main(["prune", "--older-than", "0s", "--failed", "-y"]) == 0
    capsys.readouterr()


def test_a_root_lock_that_is_a_pipe_hangs_nothing(entry: Path, open_cache: Opener) -> None:
    lock = entry.parents[1] / layouts.ROOT_LOCK
    lock.unlink()
    os.mkfifo(lock)
    (entry / layouts.DONE).unlink()
    assert not look_up(open_cache).hit
    assert main(["prune", "--locks", "--failed", "-y"]) in {0, 1}


def test_an_archive_that_would_fill_the_disk_is_refused(
    entry: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", "--to", str(home / "x.tar")]) == 0
    disk = list(os.statvfs(home))
    disk[4] = 1
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(disk))
    assert main(["copy", "--from", str(home / "x.tar"), "--cache-dir", str(home / "other")]) == 1
    assert " are free\nhint: nothing was copied" in capsys.readouterr().err
    monkeypatch.undo()
    assert scan(str(home / "other")).entries == ()


@needs_root
def test_the_default_root_of_another_user_is_only_read(
    entry: Path, open_cache: Opener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = entry.parents[1]
    monkeypatch.setattr(location, "DEFAULT_ROOT", str(root))
    os.utime(entry / layouts.NEFF)
    for path in (root, *root.rglob("*")):
        os.chown(path, 1002, 1002)
        os.chmod(path, 0o777)
    before = state_of(root)
    assert look_up(open_cache).hit
    for command in (
        ["prune", "--older-than", "0s", "-y"],
        ["rm", entry.name, "-y"],
        ["rm", "--all", "-y"],
        ["pin", entry.name],
        ["tag", "mine", entry.name],
    ):
        assert main(command) == 1
        assert "belongs to uid 1002; use another with --cache-dir" in capsys.readouterr().err
    damage(entry)
    before[str(entry / layouts.NEFF)] = state_of(root)[str(entry / layouts.NEFF)]
    found = look_up(open_cache)
    assert (found.hit, found.entry) == (False, "")
    assert main(["verify", "--fix"]) == 1
    assert state_of(root) == before


@needs_root
def test_work_directories_of_another_user_block_nobody(
    tree: Tree, entry: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's killed prune, import and verify left their directories in a shared root."""
    root = entry.parents[1]
    left = {}
    for name in (layouts.TRASH, layouts.IMPORTING):
        (root / name / "1-left").mkdir(parents=True)
        for path in (root / name, root / name / "1-left"):
            os.chown(path, 1002, 1002)
        left[name] = state_of(root / name)
    assert main(["copy", "--to", str(home / "x.tar")]) == 0
    failed = tree.failed(unused_s=DAY)
    assert main(["prune", "--failed", "-y"]) == 0
    assert not failed.exists()
    damage(entry)
    assert main(["verify", "--fix"]) == 0
    assert not entry.exists()
    assert main(["copy", "--from", str(home / "x.tar")]) == 0
    assert entry.exists()
    (root / f"{layouts.TRASH}-0" / "1-killed").mkdir(parents=True)
    assert main(["rm", "--all", "-y"]) == 0
    assert [path.name for path in root.iterdir() if path.name.endswith("-0")] == []
    assert {name: state_of(root / name) for name in left} == left
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert "skipped" not in capsys.readouterr().out


def test_an_entry_that_is_swapped_for_a_link_is_not_pinned(
    entry: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = pins_and_tags.hold

    def swap(path: str) -> int | None:
        held = hold(path)
        entry.parent.rename(entry.parents[1] / "moved")
        (precious.parent / "outside" / entry.name).mkdir(parents=True)
        entry.parent.symlink_to(precious.parent / "outside")
        return held

    monkeypatch.setattr(pins_and_tags, "hold", swap)
    assert main(["pin", entry.name]) == 1
    assert list((precious.parent / "outside" / entry.name).iterdir()) == []


@pytest.mark.parametrize("command", ["export", "sync", "upload"])
def test_an_entry_that_is_swapped_for_a_link_after_the_check_is_not_copied(
    entry: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """The link leads to an entry of a private cache of the user, which must not get into a copy for others."""
    shutil.copytree(entry.parent, home / "private")
    private = home / "private" / entry.name / layouts.NEFF
    private.write_bytes(b"private")
    damage_reason = verify.damage_reason

    def swap(findings: Sequence[verify.VerifyProblem]) -> str:
        entry.parent.rename(home / "moved")
        entry.parent.symlink_to(home / "private")
        return damage_reason(findings)

    monkeypatch.setattr(verify, "damage_reason", swap)
    if command == "export":
        assert main(["copy", "--to", str(home / "x.tar")]) == 1
        assert f"cannot be read: {entry.parent} is a link" in capsys.readouterr().err
        assert not (home / "x.tar").exists()
    elif command == "sync":
        monkeypatch.setattr(
            endpoints, "files_to_copy", lambda path, _: swap(()) or [f"{path}/{layouts.NEFF}"]
        )
        assert main(["copy", "--from", str(entry.parents[1]), "--to", str(home / "other")]) == 1
        assert f"cannot be read: {entry.parent} is a link" in capsys.readouterr().err
        assert list((home / "other").rglob(layouts.NEFF)) == []
    else:
        monkeypatch.setattr(Bucket, "__init__", lambda *_: None)
        source = DirectorySource(str(entry.parents[1]))
        (found,) = scan(source.root).entries
        with pytest.raises(NotADirectoryError, match="is a link"):
            BucketTarget("s3://bucket/prefix").put(found, source)


_VICTIM = """
import os, sys, tempfile
sys.path.append(sys.argv[1])
from neurontools.cache.remote.bucket import Bucket
from neurontools.cache.store import CacheResult, CompileCache
from neurontools.cache.copy import endpoints
from neurontools.cache.copy.endpoints import BucketTarget, DirectorySource, NotCopiedError
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp
import neurontools.cache.copy.archive, neurontools.cache.pruning.removal, neurontools.cache.verify
device = instance_type("trn1.2xlarge").device
# The interpreter may be in a directory that only root can enter, so everything is imported before the change of user.
with tempfile.TemporaryDirectory() as warm:
    CompileCache.open({"NEURON_COMPILE_CACHE_URL": warm}).get_or_compile(mlp(), device, "mlp")
    main([*sys.argv[2:], "--cache-dir", warm])
os.setgroups([]); os.setgid(1001); os.setuid(1001)
cache = CompileCache.open()
found = cache.get_or_compile(mlp(), device, "mlp")
cache.close()
print(found.hit, bool(found.entry), flush=True)
os._exit(main(sys.argv[2:]) if sys.argv[2:] else 0)
"""


@needs_root
def test_a_strangers_root_cannot_make_the_user_delete_files(home: Path, open_cache: Opener) -> None:
    """The attacker makes the root with a damaged entry, and a trash that leads to the victim's files."""
    victim = home / "victim"
    (victim / "precious").mkdir(parents=True)
    for number in range(46):
        (victim / "precious" / f"{number:019}-MODULE_{number}").mkdir()
    for path in (victim, *victim.rglob("*")):
        os.chown(path, 1001, 1001)
    home.chmod(0o755)
    root = home / "compile-cache"
    cache = open_cache()
    entry = Path(entry_path(cache, mlp()))
    entry.mkdir(parents=True)
    (entry / layouts.NEFF).write_bytes(b"junk")
    (entry / layouts.DONE).touch()
    (root / layouts.TRASH).symlink_to(victim / "precious")
    for path in (root, *root.rglob("*")):
        os.lchown(path, 1002, 1002)
        if not path.is_symlink():
            path.chmod(0o777)
    environ = {
        **os.environ,
        "HOME": str(victim),
        "XDG_STATE_HOME": str(victim),
        "XDG_CACHE_HOME": str(victim),
    }
    command = [sys.executable, "-c", _VICTIM, str(Path(__file__).parents[2]), "verify", "--fix"]
    done = subprocess.run(command, env=environ, text=True, capture_output=True, check=False)
    assert "False True\n" in done.stdout, done.stderr
    assert len(os.listdir(victim / "precious")) == 46


def test_counters_are_kept_without_a_stamp(entry: Path) -> None:
    Usage(str(entry.parents[1])).count_hit(str(entry.parents[1] / "gone" / "MODULE_1"))
    assert not (entry.parents[1] / "gone").exists()
