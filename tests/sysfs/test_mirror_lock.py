"""Which directory a mirror may have, and that it ends when the directory goes."""

from __future__ import annotations

import os
import shutil

import pytest

from neurontools.errors import NeuronToolsError
from neurontools.sysfs.mirror import MARK, MirrorLostError
from tests.sysfs.machines import machine


def test_a_directory_with_other_things_in_it_is_refused(root, mirrored):
    root.mkdir()
    (root / "thesis.tex").write_text("x")
    with pytest.raises(NeuronToolsError, match="neither empty nor a sysfs mirror"):
        mirrored()
    assert os.listdir(root) == ["thesis.tex"]


def test_a_false_mark_does_not_count(root, mirrored):
    (root / "sys").mkdir(parents=True)
    (root / MARK).write_text("something else\n")
    with pytest.raises(NeuronToolsError, match="neither empty nor a sysfs mirror"):
        mirrored()


def test_a_file_is_refused(root, mirrored):
    root.write_text("x")
    with pytest.raises(NeuronToolsError, match="a link or a file"):
        mirrored()


def test_the_mirror_of_another_machine_is_refused(mirrored):
    mirrored(name="a").close()
    with pytest.raises(NeuronToolsError, match="is the mirror of machine 'a'"):
        mirrored(name="b")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_the_directory_of_another_user_is_refused(root, mirrored):
    root.mkdir()
    os.chown(root, 12345, 12345)
    with pytest.raises(NeuronToolsError, match="belongs to uid 12345"):
        mirrored()


def test_two_at_once_are_refused_one_after_the_other_not(mirrored):
    first = mirrored()
    with pytest.raises(NeuronToolsError, match=rf"kept current by another process \(pid {os.getpid()}\)"):
        mirrored()
    first.close()
    mirrored().update(machine("trn1.2xlarge"))


@pytest.mark.parametrize("how", ["deleted", "replaced", "emptied"])
def test_a_directory_that_goes_away_ends_it(root, home, mirrored, how):
    mirror = mirrored()
    mirror.update(machine("trn1.2xlarge"))
    match how:
        case "deleted":
            shutil.rmtree(root)
        case "replaced":
            os.rename(root, root.parent / "moved")
            root.mkdir()
        case "emptied":
            (root / MARK).unlink()
    with pytest.raises(MirrorLostError, match="was deleted or replaced"):
        mirror.update(machine("trn1.2xlarge"))
    if how == "replaced":
        assert os.listdir(root) == []
