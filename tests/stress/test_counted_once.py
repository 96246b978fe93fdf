"""What processes did is counted once, whatever was killed when."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.machine.client import Client
from neurontools.machine.pages.layout import CORE_STATUS_WORD, FIRST_CORE_SECTION, PageLayout
from neurontools.machine.pages.page import PageIdentity, PageReader, PageWriter, create_page
from neurontools.machine.protocol import CoresBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    Lifetime = Callable[[], dict[str, int]]
    Kill = Callable[[], None]
    Wait = Callable[[Callable[[], bool]], None]

# What a process leaves that is killed after it counted the status and before it counted the rest.
TEAR = (
    "words = page._words; core = page._cores[{slot}]; words[core._sequence_word] |= 1; "
    "words[core._word + 8] += 1"
)


def files() -> list[str]:
    return os.listdir(paths.pages_dir("default"))


def test_who_dies_without_a_daemon_is_counted_by_the_next(
    job: Any, kill_daemon: Kill, lifetime: Lifetime
) -> None:
    kill_daemon()
    job.kill()
    found = lifetime()
    assert (found["executions"], found["flops"], found["processes"]) == (5, 50, 1)
    assert files() == []
    kill_daemon()
    assert lifetime() == found


def test_who_dies_in_the_middle_of_a_change_is_counted_too(
    job: Any, lifetime: Lifetime, wait_until: Wait
) -> None:
    job.do("page.begin(1); page.end(1, 0, 1000, 10)")
    job.do(TEAR.format(slot=0))
    job.kill()
    wait_until(lambda: lifetime().get("executions") == 7)


def test_a_change_half_done_is_counted_by_a_daemon_that_never_saw_another(
    job: Any, kill_daemon: Kill, lifetime: Lifetime
) -> None:
    job.do(TEAR.format(slot=0))
    kill_daemon()
    assert lifetime()["executions"] == 6, "the job lives and stays amid its change"
    kill_daemon()
    job.kill()
    assert lifetime()["executions"] == 6


def test_a_page_that_is_counted_and_was_not_deleted_in_time_is_not_counted_again(
    job: Any, kill_daemon: Kill, lifetime: Lifetime, wait_until: Wait, home: Path
) -> None:
    pages, kept = Path(paths.pages_dir("default")), home / "kept"
    shutil.copytree(pages, kept)
    job.kill()
    wait_until(lambda: files() == [])
    kill_daemon()
    shutil.copytree(kept, pages, dirs_exist_ok=True)
    path = Path(paths.state_dir(), "default", "journal.json")
    journal = json.loads(path.read_text(encoding="utf-8"))
    (record,) = kept.glob("*.json")
    key = json.loads(record.read_text(encoding="utf-8"))["key"]
    path.write_text(json.dumps({**journal, "counted": [key]}), encoding="utf-8")
    assert lifetime()["executions"] == 5
    assert files() == []


@pytest.mark.parametrize("killed_before_there_is_room", [False, True])
def test_executions_are_kept_while_the_journal_cannot_be_written(
    job: Any, kill_daemon: Kill, lifetime: Lifetime, wait_until: Wait, killed_before_there_is_room: bool
) -> None:
    path = Path(paths.state_dir(), "default", "journal.json")
    path.unlink()
    path.mkdir()  # stands for a full disk: nothing can take its place
    job.kill()
    wait_until(lambda: lifetime()["executions"] == 5)
    assert len(files()) == 2
    if killed_before_there_is_room:
        kill_daemon()
        assert lifetime()["executions"] == 5
        assert len(files()) == 2
    path.rmdir()
    wait_until(lambda: files() == [])
    assert json.loads(path.read_text(encoding="utf-8"))["history"]["lifetime"]["executions"] == 5
    kill_daemon()
    assert lifetime()["executions"] == 5


def test_refusals_are_counted_across_a_kill(job: Any, kill_daemon: Kill, lifetime: Lifetime) -> None:
    with Client.connect() as client:
        with pytest.raises(CoresBusyError):
            client.register(cores=(0,))
        client.call("describe")  # answered after the journal was written
    kill_daemon()
    assert lifetime()["claims_refused"] == 1


def test_a_torn_page_gives_what_is_certain(home: Path) -> None:
    identity = PageIdentity("default", 1, 2, "boot", 0, "", "", "", 0)
    fd = create_page(str(home / "page"), identity, (3, 4))
    writer, reader = PageWriter(fd), PageReader(fd)
    for status in (0, 0, 5):
        writer.begin(0)
        writer.end(0, status, 1000, 7)
    writer.begin(1)
    writer.end(1, 0, 1000, 7)
    layout = PageLayout(2)
    sequence = layout.sequences_offset + 8 * FIRST_CORE_SECTION
    torn = os.pread(fd, 8, sequence)
    os.pwrite(fd, bytes([torn[0] | 1]), sequence)
    successes = layout.core_sections[0] + 8 * CORE_STATUS_WORD
    os.pwrite(fd, (3).to_bytes(8, "little"), successes)
    assert reader.read(0) is None
    assert reader.salvage()
    first, second = reader.uses
    assert (first.executions, first.failures, first.flops) == (4, ((5, 1),), 21)
    assert (second.executions, second.flops) == (1, 7)
    os.truncate(fd, layout.page_bytes - 8)
    assert not reader.salvage()
    writer.close()
    os.close(fd)
