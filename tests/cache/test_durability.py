"""The order in which files are published: a power cut leaves the old or the new content, never an empty file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.base.directories import Directory
from neurontools.base.files import atomic_file, write_atomic
from neurontools.cache.entry_io import publish
from neurontools.commands.cache import main
from neurontools.machine.journal import Definition, Journal, save_journal
from neurontools.machine.snapshot import History

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record what is written, synced and renamed: action and name, temporary names as `~`."""
    recorded: list[tuple[str, str]] = []

    def record(action: str, name: str) -> None:
        base = os.path.basename(name)
        recorded.append((action, "~" if ".tmp-" in base or base.startswith(".") else base))

    def on_descriptor(action: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *rest: Any) -> Any:
            record(action, os.readlink(f"/proc/self/fd/{descriptor}"))
            return real(descriptor, *rest)

        return call

    def on_names(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: str, target: str, **places: Any) -> Any:
            record("rename to", target)
            return real(source, target, **places)

        return call

    for name in ("write", "fsync"):
        monkeypatch.setattr(os, name, on_descriptor(name, getattr(os, name)))
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, on_names(getattr(os, name)))
    return recorded


def published(name: str, directory: str) -> list[tuple[str, str]]:
    return [("write", "~"), ("fsync", "~"), ("rename to", name), ("fsync", directory)]


def _with_atomic_file(folder: Path) -> None:
    with atomic_file(folder / "a") as file:
        file.write(b"x" * (1 << 20))  # beyond the buffer: `os.write` is not used


def _with_directory(folder: Path) -> None:
    with Directory.open(str(folder)) as directory:
        directory.write("a", b"x")


def _with_journal(folder: Path) -> None:
    save_journal(str(folder / "a"), Journal(Definition("m", "trn1.2xlarge", 1, 0.0), "b", True, History()))


@pytest.mark.parametrize(
    ("write", "is_written_by_os"),
    [
        (lambda folder: write_atomic(folder / "a", "x"), True),
        (_with_atomic_file, False),
        (_with_directory, True),
        (_with_journal, True),
    ],
)
def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, steps: list[tuple[str, str]], write: Callable[[Path], None], is_written_by_os: bool
) -> None:
    write(tmp_path)
    assert steps == published("a", tmp_path.name)[0 if is_written_by_os else 1 :]
    assert os.path.getsize(tmp_path / "a")


def test_a_cache_entry_is_done_after_its_neff_is_on_the_disk(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    entry = tmp_path / "neuronxcc-1" / "MODULE_1+a"
    entry.mkdir(parents=True)
    publish(str(entry), b"neff")
    done = [step for step in published("model.done", entry.name) if step[0] != "write"]
    assert steps == [*published("model.neff", entry.name), *done]


def test_an_archive_is_on_the_disk_before_its_name_is(
    entry: Path, home: Path, steps: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", "--to", str(home / "kept.tar")]) == 0, capsys.readouterr().err
    synced = [name for action, name in steps[: steps.index(("rename to", "kept.tar"))] if action == "fsync"]
    assert any(name.startswith("kept.tar") for name in synced)
