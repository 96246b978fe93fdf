import os
import subprocess
import sys

from neurontools.base import procfs


def test_this_process():
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    assert stat.parent_pid == os.getppid()
    assert not stat.is_dead
    assert stat.resident_bytes > 1 << 20
    assert procfs.read_start_ticks(os.getpid()) == stat.start_ticks > 0
    assert len(procfs.read_boot_id()) == 36


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = procfs.read_stat(child.pid)
    assert stat is not None
    assert stat.is_dead
    assert procfs.read_start_ticks(child.pid) is None
    child.communicate()
    assert procfs.read_stat(child.pid) is None


def test_a_command_name_with_brackets_and_blanks(tmp_path):
    directory = tmp_path / "proc" / "7"
    directory.mkdir(parents=True)
    fields = [b"S", *(str(number).encode() for number in range(4, 53))]
    (directory / "stat").write_bytes(b"7 (a) b (c) " + b" ".join(fields))
    stat = procfs.read_stat(7, root=str(tmp_path))
    assert stat is not None
    assert (stat.parent_pid, stat.user_ticks, stat.system_ticks, stat.start_ticks) == (4, 14, 15, 22)
    assert stat.resident_bytes == 24 * os.sysconf("SC_PAGE_SIZE")


def test_damaged_stat_files_are_no_process(tmp_path):
    directory = tmp_path / "proc" / "7"
    directory.mkdir(parents=True)
    for content in (b"", b"7 (a) S", b"7 (a) S x " + b"y " * 60):
        (directory / "stat").write_bytes(content)
        assert procfs.read_stat(7, root=str(tmp_path)) is None


def test_the_boot_time_of_another_host(tmp_path):
    assert procfs.read_boot_time(str(tmp_path)) == 0.0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("cpu 1 2 3\nbtime 1780000000\nprocesses 7\n")
    assert procfs.read_boot_time(str(tmp_path)) == 1_780_000_000.0
    assert procfs.read_boot_time() > 0


def test_proc_shows_this_process_unless_it_is_of_another_namespace(monkeypatch):
    assert procfs.shows_this_process()
    monkeypatch.setattr(procfs.os, "getpid", lambda: 4)
    assert not procfs.shows_this_process()


def test_the_uid_of_a_process_is_the_effective_one():
    assert procfs.read_uid(os.getpid()) == os.geteuid()
    assert procfs.read_uid(2**22 + 1) is None
