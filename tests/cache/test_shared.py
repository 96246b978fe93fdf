"""A root that several users share: nobody closes it to the others, and what one may not read is not called damaged."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import layouts, verify
from neurontools.cache.copy import runner
from neurontools.cache.copy.endpoints import staging_directory
from neurontools.cache.locks import directory_lock
from neurontools.commands.cache import main
from tests.cache.remote.conftest import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache.conftest import Tree


@pytest.fixture
def for_the_group() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def group_may_write(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IWGRP)


def refuse(monkeypatch: pytest.MonkeyPatch, path: Path, number: int = errno.EACCES) -> None:
    """Let the verification fail to open a file."""
    open_unseen = verify.open_unseen

    def refusing(name: str) -> Any:
        if name == str(path):
            raise OSError(number, os.strerror(number), name)
        return open_unseen(name)

    monkeypatch.setattr(verify, "open_unseen", refusing)


@pytest.mark.usefixtures("for_the_group")
def test_the_place_of_imports_goes_with_them(tree: Tree) -> None:
    place = tree.root / layouts.IMPORTING
    with staging_directory(str(tree.root)) as inner:
        assert group_may_write(place)
        assert not group_may_write(Path(inner))
    assert not place.exists()


def test_who_waits_for_a_turn_gets_a_directory_that_is_there(tmp_path: Path) -> None:
    place = tmp_path / "turn"
    found: list[bool] = []

    def take() -> None:
        for _ in range(50):
            with directory_lock(str(tmp_path), "turn"):
                found.append(place.is_dir() and not any(place.iterdir()))
                (place / "mine").touch()
                (place / "mine").unlink()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), all(found), place.exists()) == (200, True, False)


def test_what_is_not_a_directory_is_not_a_turn(tmp_path: Path) -> None:
    (tmp_path / "turn").touch()
    for root in (str(tmp_path), "/proc/nowhere"):
        with pytest.raises(OSError, match=r"not a directory|No such file"), directory_lock(root, "turn"):
            pass


def test_what_is_left_in_a_turn_stays_for_the_next(tmp_path: Path) -> None:
    place = tmp_path / "turn"
    with directory_lock(str(tmp_path), "turn"):
        (place / "left").touch()
    with directory_lock(str(tmp_path), "turn"):
        assert (place / "left").exists()


@pytest.mark.parametrize("name", [layouts.NEFF, layouts.FLAGS])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_is_reported_and_left_alone(
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    number: int,
) -> None:
    path = tree.done()
    refuse(monkeypatch, path / name, number)
    assert main(["verify"]) == 1
    assert f"unreadable  cannot be read: {os.strerror(number)}" in capsys.readouterr().out
    assert main(["verify", "--fix"]) == 1
    assert f"unchanged, cannot be read: {os.strerror(number)}: {path / name}" in capsys.readouterr().out
    assert (path / name).exists()


def test_what_cannot_be_read_is_not_carried_elsewhere(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min(fill(home / "compile-cache", 2).rglob(layouts.NEFF)).parent
    refuse(monkeypatch, path / layouts.NEFF)
    words = f"left out {path}: cannot be read: Permission denied"
    assert main(["copy", "--to", str(home / "x.tar")]) == 0
    assert words in capsys.readouterr().err


def test_a_full_disk_is_reported_with_the_archive(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill(home / "compile-cache", 1)
    monkeypatch.setattr(runner.os, "fsync", full)
    target = home / "x.tar"
    assert main(["copy", "--to", str(target)]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: cannot write to {target}: No space left on device\nhint: "
    )
    assert list(home.glob("x.tar*")) == []


_DYING = """
import os, signal, sys
from neurontools.cache.copy import runner
runner.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
from neurontools.commands.cache import main
main(["copy", "--to", sys.argv[1]])
"""


def test_an_export_removes_what_a_killed_one_left_and_no_running_ones(home: Path) -> None:
    fill(home / "compile-cache", 1)
    target = home / "x.tar"
    subprocess.run([sys.executable, "-c", _DYING, str(target)], check=False)
    (left,) = home.glob("x.tar.writing-*")
    running = home / "x.tar.writing-1"
    with running.open("wb") as file:
        assert runner.flock(file.fileno())
        assert main(["copy", "--to", str(target)]) == 0
    assert (left.exists(), running.exists(), target.exists()) == (False, True, True)
