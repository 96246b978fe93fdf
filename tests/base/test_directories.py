from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from neurontools.base.directories import Directory, check_ours, open_below, open_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with Directory.open(str(tmp_path)) as opened:
        yield opened


def test_a_file_is_replaced_and_read(directory: Directory) -> None:
    directory.write("name", "old")
    directory.write("name", b"new", sync=False)
    assert (directory.read("name"), directory.read("name", 1), directory.names()) == (b"new", b"n", ["name"])


def test_a_failed_write_leaves_nothing(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            directory.write("name", b"x")
    assert directory.names() == []


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_regular_files_are_opened(directory: Directory, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    if kind == "link":
        (tmp_path / "name").symlink_to(tmp_path / "file")
    elif kind == "pipe":
        os.mkfifo(tmp_path / "name")
    else:
        (tmp_path / "name").mkdir()
    for flags in (os.O_RDONLY, os.O_RDWR):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links|a directory|No such device"):
            directory.open_file("name", flags)
    assert not directory.has_file("name")


def test_a_link_is_replaced_not_followed(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("target")
    (tmp_path / "name").symlink_to(tmp_path / "target")
    directory.write("name", b"new")
    assert ((tmp_path / "target").read_text(), (tmp_path / "name").read_text()) == ("target", "new")


def test_the_root_may_be_a_link_and_nothing_below_it(tmp_path: Path) -> None:
    (tmp_path / "real" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "link").symlink_to(tmp_path / "real" / "a")
    root = str(tmp_path / "root")
    with open_below(root, f"{root}/a/b") as found:
        assert found.path == f"{root}/a/b"
    with pytest.raises(NotADirectoryError, match="root/link is a link"):
        open_below(root, f"{root}/link/b")
    for outside in (f"{root}/../x", "/elsewhere", f"{root}x"):
        with pytest.raises(OSError, match="is not below"):
            open_below(root, outside)


def test_missing_directories_are_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_below(str(tmp_path), f"{tmp_path}/a/b")
    above, name = open_parent(str(tmp_path), f"{tmp_path}/a/b/c", create=True)
    with above:
        assert (name, (tmp_path / "a" / "b").is_dir(), above.names()) == ("c", True, [])


def test_a_tree_is_removed_and_its_links_are_not_followed(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "link").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "tree" / "pipe")
    directory.remove_tree("tree")
    directory.remove_tree("missing")
    assert (directory.names(), os.listdir(tmp_path / "kept")) == (["kept"], ["file"])


def test_a_very_deep_tree_ends_no_program(directory: Directory, tmp_path: Path) -> None:
    deep = tmp_path.joinpath("tree", *["d"] * 60)
    deep.mkdir(parents=True)
    directory.remove_tree("tree")
    directory.remove_tree("tree", levels=100)
    assert directory.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(directory: Directory, tmp_path: Path) -> None:
    check_ours(directory)
    os.chown(tmp_path, 1002, 1002)
    with pytest.raises(PermissionError, match="belongs to uid 1002"):
        check_ours(directory)
