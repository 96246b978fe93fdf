from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from neurontools import paths
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "NEURONTOOLS_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_private_directories_ignore_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths.make_private(str(tmp_path / "a" / "b" / "c"))
        paths.make_private(str(tmp_path / "a" / "b" / "c"))
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        paths.make_private(str(tmp_path / "file" / "x"))


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_home_directory_nothing_is_made(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a uid without a name
        reason = f"HOME is not set, uid {os.getuid()} has no name"
    else:
        monkeypatch.setenv("HOME", home)
        reason = "HOME is 'relative'"
    for find in (paths.state_dir, paths.cache_home):
        with pytest.raises(UsageError, match=re.escape(f"no home directory: {reason}")):
            find()


def test_relative_xdg_directories_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada/")
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "relative")
    assert paths.state_dir() == "/home/ada/.local/state/neurontools"
    assert paths.cache_home() == "/home/ada/.cache/neurontools"
    assert paths.runtime_dir() == f"/tmp/neurontools-{os.getuid()}"
