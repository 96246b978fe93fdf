import os
import stat

import pytest

from neurontools.base import files


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path, sync):
    path = tmp_path / "f"
    files.write_atomic(path, b"old", sync=sync)
    files.write_atomic(str(path), "néw", sync=sync)
    assert path.read_bytes() == "néw".encode()
    assert names(tmp_path) == ["f"]


def test_permissions_are_the_mode_less_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_atomic(tmp_path / "open", b"")
        files.write_atomic(tmp_path / "private", b"", mode=0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "private")] == [0o640, 0o600]


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomic(tmp_path / "d", b"x")
    assert names(tmp_path) == ["d"]


def test_a_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write_atomic("f", b"x")
    assert (tmp_path / "f").read_bytes() == b"x"


def test_a_written_block_replaces_the_file_only_when_it_ends_well(tmp_path):
    path = tmp_path / "f"
    with files.atomic_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), files.atomic_file(path) as file:
        file.write(b"two" * (1 // 0))
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["f"]


def test_temporary_files_have_the_known_prefix(tmp_path):
    path = files.write_temporary(str(tmp_path), b"x" * 100_000)
    assert os.path.basename(path).startswith(files.TEMPORARY_PREFIX)
    assert os.path.getsize(path) == 100_000


def test_syncing(tmp_path):
    files.sync_directory(str(tmp_path))
    files.sync_file_system(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        files.sync_file_system(str(tmp_path / "gone"))


def test_quiet_removals(tmp_path):
    (tmp_path / "there").touch()
    files.remove_quietly(str(tmp_path / "gone"))
    files.remove_quietly(str(tmp_path / "there"))
    assert names(tmp_path) == []
