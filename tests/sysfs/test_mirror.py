"""A mirror in a directory: it shows the tree, changes what it must, and goes nowhere else."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from neurontools.errors import NeuronToolsError
from neurontools.sysfs.aggregates import CounterBaseline, _path, _save
from neurontools.sysfs.mirror import MARK, MirrorLostError
from neurontools.sysfs.tree import CLASS, DEVICES, TreeFile
from tests.sysfs.machines import STARTED_S, busy, job, machine, tree_of

CORE = f"{DEVICES}/neuron0/neuron_core0/stats"
EXECUTIONS = f"{CORE}/other_info/inference_count/total"


def contents(root):
    """Everything below sys, proc and dev: path -> (text, mode) or where it links to."""
    found = {}
    for top in ("sys", "proc", "dev"):
        for directory, names, files in os.walk(root / top):
            for name in [*files, *(each for each in names if os.path.islink(os.path.join(directory, each)))]:
                path = os.path.join(directory, name)
                key = os.path.relpath(path, root)
                if os.path.islink(path):
                    found[key] = os.readlink(path)
                else:
                    with open(path) as file:
                        found[key] = file.read(), stat.S_IMODE(os.stat(path).st_mode)
    return found


def expected(snapshot):
    return {
        path: (entry.text, entry.mode) if isinstance(entry, TreeFile) else entry.target
        for path, entry in tree_of(snapshot).items()
    }


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_it_shows_the_tree(root, mirrored, umask):
    before = os.umask(umask)
    try:
        mirror = mirrored()
        assert mirror.update(busy("inf2.24xlarge")) == mirror.file_count
    finally:
        os.umask(before)
    assert contents(root) == expected(busy("inf2.24xlarge"))
    assert stat.S_IMODE((root / CLASS).stat().st_mode) == 0o755
    assert (root / CLASS / "neuron5/connected_devices").read_text() == "4\n"


def test_only_what_changed_is_written(root, mirrored):
    mirror = mirrored()
    idle = machine("trn1.32xlarge")
    mirror.update(idle)
    mirror.update(idle)  # power utilization has data from here on
    before = {path: os.lstat(root / path).st_mtime_ns for path in contents(root)}
    assert mirror.update(idle) == 0
    first = idle.devices[0]
    hurt = replace(idle, devices=(replace(first, unhealthy=("sram",)), *idle.devices[1:]))
    assert mirror.update(hurt) == 1
    changed = {path for path in before if os.lstat(root / path).st_mtime_ns != before[path]}
    assert changed == {f"{DEVICES}/neuron0/stats/hardware/health_status/unhealthy_components"}


def test_a_text_of_the_same_length_is_seen_by_who_has_the_file_open(root, mirrored):
    mirror = mirrored()
    snapshot = replace(machine("trn1.2xlarge"), processes=(job((0,), 1),))
    mirror.update(snapshot)
    with open(root / EXECUTIONS) as reader:
        assert reader.read() == "10\n"
        mirror.update(replace(snapshot, processes=(job((0,), 2),)))
        reader.seek(0)
        assert reader.read() == "20\n"
        mirror.update(replace(snapshot, processes=(job((0,), 100),)))
        reader.seek(0)
        assert reader.read() == "20\n"
    assert (root / EXECUTIONS).read_text() == "1000\n"


def test_a_lost_device_vanishes_and_comes_back(root, mirrored):
    mirror = mirrored()
    whole = machine("trn1.32xlarge")
    mirror.update(whole)
    lost = replace(whole, devices=tuple(replace(each, lost=each.index == 3) for each in whole.devices))
    mirror.update(lost)
    assert not (root / DEVICES / "neuron3").exists()
    assert contents(root) == expected(lost) | _power(root)
    mirror.update(whole)
    assert contents(root) == expected(whole) | _power(root)


def test_a_machine_of_another_type_takes_its_place(root, mirrored):
    mirror = mirrored()
    mirror.update(machine("trn1.32xlarge"))
    mirror.update(busy("inf2.xlarge"))
    assert contents(root) == expected(busy("inf2.xlarge")) | _power(root)


def test_the_same_type_with_another_lnc_divides_anew(root, mirrored):
    mirror = mirrored()
    mirror.update(busy("trn2.3xlarge", 1))
    again = replace(busy("trn2.3xlarge", 2), started_unix_s=STARTED_S + 5)
    mirror.update(again)
    assert contents(root) == expected(again) | _power(root)


def test_a_peak_stays_until_the_machine_or_its_counters_begin_anew(root, mirrored):
    peak = root / CORE / "memory_usage/device_mem/peak"
    mirror = mirrored()
    mirror.update(busy("trn1.2xlarge"))
    mirror.update(machine("trn1.2xlarge"))
    assert peak.read_text() == "1515\n"
    mirror.update(machine("trn1.2xlarge", started_unix_s=STARTED_S + 5))
    assert peak.read_text() == "0\n"
    mirror.update(busy("trn1.2xlarge"))
    mirror.update(machine("trn1.2xlarge"))
    assert peak.read_text() == "1515\n"
    _save(_path("default"), CounterBaseline("i-0", 1, ()))
    mirror.update(machine("trn1.2xlarge"))
    assert peak.read_text() == "0\n"


def test_what_is_not_of_the_tree_is_swept_at_the_start(root, mirrored, home):
    (home / "outside").mkdir()
    (home / "outside" / "precious").write_text("x")
    with mirrored() as mirror:
        mirror.update(machine("trn1.2xlarge"))
    (root / DEVICES / "neuron7").mkdir()
    (root / DEVICES / "neuron7" / "link").symlink_to(home / "outside")
    (root / "sys" / "stray").write_text("x")
    (root / "notes.txt").write_text("kept: not below sys, proc or dev")
    mirrored().update(machine("trn1.2xlarge"))
    assert contents(root) == expected(machine("trn1.2xlarge"))
    assert (home / "outside" / "precious").read_text() == "x"
    assert (root / "notes.txt").exists()


def _power(root):
    return {path: text for path, text in contents(root).items() if "/power/utilization" in path}


def test_a_write_of_somebody_is_replaced_by_the_next_value(root, mirrored):
    mirror = mirrored()
    snapshot = busy("trn1.2xlarge")
    mirror.update(snapshot)
    (root / EXECUTIONS).write_text("17\n")
    assert mirror.update(replace(snapshot, processes=(job((0, 1), scale=2),))) > 1
    assert (root / EXECUTIONS).read_text() == "25\n"


@pytest.mark.parametrize("gone", ["sys", DEVICES, f"{CORE}/other_info", EXECUTIONS])
def test_what_was_deleted_comes_back_with_the_next_changes(root, mirrored, gone):
    mirror = mirrored()
    mirror.update(busy("trn1.2xlarge"))
    if (root / gone).is_dir():
        shutil.rmtree(root / gone)
    else:
        (root / gone).unlink()
    for scale in (2, 3):
        snapshot = replace(busy("trn1.2xlarge"), processes=(job((0, 1), scale=scale),))
        mirror.update(snapshot)
    shown, wanted = contents(root), expected(snapshot)
    assert shown.keys() == wanted.keys()
    assert shown[EXECUTIONS] == wanted[EXECUTIONS]


class TestLinks:
    """What somebody puts in the place of a file is replaced: nothing outside is written."""

    @pytest.fixture
    def victim(self, root):
        path = root.parent / "victim"
        path.write_text("precious")
        return path

    @pytest.fixture
    def steps(self, root, mirrored):
        """Update with other numbers each time, so that the file in question must be written."""
        mirror = mirrored()
        base = machine("trn1.2xlarge")
        scale = iter(range(1, 100))

        def step():
            snapshot = replace(base, processes=(job((0,), next(scale)),))
            mirror.update(snapshot)
            return snapshot

        step()
        return step

    @pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "directory"])
    def test_in_the_place_of_a_file(self, root, steps, victim, kind):
        path = root / EXECUTIONS
        path.unlink()
        match kind:
            case "symlink":
                path.symlink_to(victim)
            case "hard link":
                os.link(victim, path)
            case "pipe":
                os.mkfifo(path)
            case "directory":
                path.mkdir()
                (path / "in").symlink_to(victim.parent)
        steps()
        snapshot = steps()
        assert victim.read_text() == "precious"
        assert victim.stat().st_nlink == 1
        assert contents(root) == expected(snapshot) | _power(root)

    def test_in_the_place_of_a_directory_at_the_start(self, root, mirrored, home):
        mirrored().close()
        outside = home / "outside"
        (outside / "module").mkdir(parents=True)
        (outside / "module" / "precious").write_text("precious")
        (root / "sys").symlink_to(outside)
        mirrored().update(machine("trn1.2xlarge"))
        assert (outside / "module" / "precious").read_text() == "precious"
        assert contents(root) == expected(machine("trn1.2xlarge"))

    def test_in_the_place_of_the_mark(self, root, steps, home):
        os.rename(root / MARK, root.parent / "moved")
        (root / MARK).symlink_to(home)
        with pytest.raises(MirrorLostError):
            steps()

    def test_a_linked_root_is_refused(self, home, mirrored):
        (home / "empty").mkdir()
        (home / "link").symlink_to(home / "empty")
        with pytest.raises(NeuronToolsError, match="it is a link"):
            mirrored(home / "link")
        assert os.listdir(home / "empty") == []


UNPRIVILEGED = """
import os, sys
sys.path.append(sys.argv[2])  # last: the installed package is what is tested
from neurontools.sysfs.layout import driver_release
from neurontools.sysfs.mirror import SysfsMirror
from tests.sysfs.machines import STARTED_S, busy
old = driver_release("2.28")
first, second = busy("trn1.2xlarge"), busy("inf2.xlarge")
os.setgid(65534)
os.setuid(65534)
with SysfsMirror(sys.argv[1], "default", driver=old) as mirror:
    mirror.update(first)
    mirror.update(second)
path = sys.argv[1] + "/sys/class/neuron_device/neuron0/"
print(open(path + "core_count").read(), oct(os.stat(path + "core_count").st_mode & 0o777), os.stat(path).st_uid)
print(open(path + "info/architecture/device_name").read())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_has_a_mirror_of_his_own(root):
    root.parent.chmod(0o777)
    run = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(root), str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("2 0o400 65534\nInferentia2\n\n", "")


def test_a_full_disk_is_one_clear_error(root, mirrored, monkeypatch):
    mirror = mirrored()
    mirror.update(machine("trn1.2xlarge"))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("neurontools.sysfs.mirror._write_file", full)
    with pytest.raises(NeuronToolsError, match=r"cannot write the mirror .*: No space left on device"):
        mirror.update(busy("trn1.2xlarge"))
    monkeypatch.undo()
    mirror.update(busy("trn1.2xlarge"))
    mirror.update(busy("trn1.2xlarge"))
    assert contents(root) == expected(busy("trn1.2xlarge")) | _power(root)
