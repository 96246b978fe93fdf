import os
import threading

import pytest

from neurontools.base import locks


def test_an_exclusive_lock_keeps_others_out_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    holder, waiter = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert locks.flock(holder)
    assert not locks.flock(waiter, wait=False)
    assert not locks.flock(waiter, locks.SHARED, wait=False)
    locks.unlock(holder)
    assert locks.flock(waiter, wait=False)
    os.close(holder)
    os.close(waiter)


def test_shared_locks_are_shared(tmp_path):
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert locks.flock(first, locks.SHARED)
    assert locks.flock(second, locks.SHARED, wait=False)
    os.close(first)
    os.close(second)


def test_a_lock_file_that_was_replaced_while_waiting_is_opened_again(tmp_path):
    path = tmp_path / "lock"
    waiting, acquired, done = threading.Event(), threading.Event(), threading.Event()
    inodes = []

    def wait_for_it():
        with locks.file_lock(path, on_wait=waiting.set) as descriptor:
            inodes.append(os.fstat(descriptor).st_ino)
            acquired.set()
            done.wait(30)

    thread = threading.Thread(target=wait_for_it)
    with locks.file_lock(path) as descriptor:
        thread.start()
        assert waiting.wait(30)
        old = os.fstat(descriptor).st_ino
        os.rename(path, tmp_path / "moved")  # keeps the inode in use
    assert acquired.wait(30)
    assert inodes == [path.stat().st_ino]
    assert inodes != [old]
    done.set()
    thread.join()


def test_links_are_not_lock_files(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"), locks.file_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_is_same_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)
    assert locks.is_same_file(str(path), descriptor)
    path.rename(tmp_path / "g")
    assert not locks.is_same_file(str(path), descriptor)
    path.symlink_to("g")
    assert not locks.is_same_file(str(path), descriptor)
    os.close(descriptor)
