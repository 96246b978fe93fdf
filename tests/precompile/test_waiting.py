"""neuron_parallel_compile on graphs that wait: made by hand, since no program is the point here; signals and deaths."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_io import hold
from neurontools.cache.location import copy_dir
from neurontools.cache.lock_list import list_locks
from neurontools.cache.locks import EntryLock, is_in_use
from neurontools.cache.walk import walk
from neurontools.compiler.options import COMPILER_VERSION
from neurontools.precompile import worker
from tests.compiler.graphs import graph_of, mlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tool = Callable[..., subprocess.CompletedProcess[str]]

TOOL = "neuron_parallel_compile"
FLAGS = ("--target=trn1",)
MANY = 60


def waiting(home: Path, number: int) -> list[Path]:
    """Make a cache with so many graphs that wait, and return their directories in order."""
    return waiting_in(home / "compile-cache", number)


def waiting_in(root: Path, number: int) -> list[Path]:
    """Put so many graphs that wait into a root, and return their directories in order."""
    entries = []
    for rows in range(1, number + 1):
        graph = mlp(rows)
        module = layouts.module_name(str(int(graph.digest()[:15], 16)), FLAGS)
        entry = root / layouts.compiler_name(COMPILER_VERSION) / module
        entry.mkdir(parents=True)
        (entry / layouts.GRAPH).write_bytes(graph.to_bytes())
        (entry / layouts.FLAGS).write_text(json.dumps(FLAGS))
        entries.append(entry)
    return sorted(entries)


def states(home: Path) -> list[str]:
    return sorted(entry.state.value for entry in scan(str(home / "compile-cache")).entries)


def compile_processes(root: Path) -> list[int]:
    """Return the processes that compile for a cache."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"neurontools.precompile.worker" in words and os.fsencode(root) in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def compiling(home: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A compile of many graphs of which the first are done, and its cache. It is the leader of its process group."""
    waiting(home, MANY)
    root = home / "compile-cache"
    command = [str(Path(sys.executable).parent / TOOL), "--command", "compile", "--num_parallel", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        # Log lines that no one reads stop the compile: it cannot end before the test acts.
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        while "Call compiler" not in process.stderr.readline():
            assert process.poll() is None
        yield process, root
        process.kill()


def test_ctrl_c_leaves_no_process_and_no_lock(
    compiling: tuple[subprocess.Popen[str], Path], tool: Tool
) -> None:
    process, root = compiling
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert compile_processes(root) == []
    assert list_locks(walk(str(root)).places) == ()
    # A compile that was ended between the NEFF and its marker is told from one that has not begun.
    assert set(states(root.parent)) <= {"done", "todo", "interrupted"}
    assert "todo" in states(root.parent)
    assert tool(TOOL, "--command", "compile", "--num_parallel", "4").returncode == 0
    assert states(root.parent) == ["done"] * MANY


def test_the_death_of_the_tool_ends_its_processes(
    compiling: tuple[subprocess.Popen[str], Path], tool: Tool
) -> None:
    process, root = compiling
    process.kill()
    # The processes hold the other end: it is closed when the last of them has ended.
    _, errors = process.communicate(timeout=600)
    assert "Traceback" not in errors
    assert list_locks(walk(str(root)).places) == ()
    assert set(states(root.parent)) == {"done", "todo"}
    assert tool(TOOL, "--command", "compile", "--num_parallel", "4").returncode == 0
    assert states(root.parent) == ["done"] * MANY


@pytest.mark.parametrize("moment", ["__init__", "release"])
def test_a_signal_while_a_lock_is_taken_or_released_leaves_no_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    (entry,) = waiting(home, 1)
    root = home / "compile-cache"

    def interrupt(*_: object) -> None:
        assert (entry / layouts.LOCK).exists()
        raise SystemExit(143)

    monkeypatch.setattr(EntryLock, moment, interrupt)
    with pytest.raises(SystemExit):
        worker.serve(str(root), io.StringIO(f"{entry}\n"), io.StringIO())
    assert list_locks(walk(str(root)).places) == ()


def test_a_second_signal_does_not_interrupt_the_exit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def serve(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    monkeypatch.setattr(worker, "serve", serve)
    monkeypatch.setattr(worker, "show_cache_lines", lambda: None)  # it would change the log of this process
    monkeypatch.setattr(worker, "apply_level", lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as exited:
            worker.main(str(home))
        # Python writes a traceback for a signal that arrives while its handler is replaced by SIG_IGN or SIG_DFL.
        assert callable(signal.getsignal(signal.SIGTERM))
        signal.raise_signal(signal.SIGTERM)  # while Python ends
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # children would inherit the mask
        signal.signal(signal.SIGTERM, before)
    assert (exited.value.code, cleaned) == (128 + signal.SIGTERM, [True])


def test_a_compile_process_loads_no_torch() -> None:
    code = "import sys, neurontools.precompile.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cache_whose_path_has_blanks(home: Path, tool: Tool) -> None:
    waiting(home, 2)
    (home / "compile-cache").rename(home / "a b")
    variables = {**os.environ, "NEURON_CC_FLAGS": f"--cache_dir='{home / 'a b'}'"}
    done = tool(TOOL, "--command", "compile", env=variables)
    assert "Total successful compilations: 2" in done.stdout
    assert tool(TOOL, "--command", "scan", env=variables).stdout.startswith("todo[0]\nlocked[0]\ndone[2]")


def test_a_graph_whose_library_is_gone_fails_alone(home: Path, tool: Tool) -> None:
    first = min(waiting(home, 2))
    graph = (first / layouts.GRAPH).read_text()
    (first / layouts.GRAPH).write_text(graph.replace('"libraries":[]', f'"libraries":["{"ab" * 32}"]'))
    done = tool(TOOL, "--command", "compile")
    assert done.returncode == 1
    assert (
        f"{first}: 1 libraries of custom operators belong to the graph, and 0 are stored with it"
        in done.stderr
    )
    assert "Total successful compilations: 1" in done.stdout


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (layouts.GRAPH, "{", "not a graph"),
        (layouts.FLAGS, "{", "is not JSON"),
        (layouts.FLAGS, "{}", "is not a list of flags"),
        (layouts.FLAGS, '["--target=trn9"]', "unknown device 'trn9'"),
    ],
)
def test_a_damaged_entry_fails_with_its_reason(
    home: Path, tool: Tool, file: str, content: str, words: str
) -> None:
    entry = home / "compile-cache" / "neuronxcc-2.16.372.0+5eed0002" / "MODULE_1234+e30acd3a"
    entry.mkdir(parents=True)
    (entry / layouts.GRAPH).write_bytes(graph_of().to_bytes())
    (entry / layouts.FLAGS).write_text('["--target=trn1"]')
    (entry / file).write_text(content)
    done = tool(TOOL, "--command", "compile")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_is_logged_with_the_number_of_its_retries(home: Path, tool: Tool) -> None:
    graph = mlp(dtype="complex128")
    (entry,) = waiting(home, 1)
    (entry / layouts.GRAPH).write_bytes(graph.to_bytes())
    done = tool(TOOL, "--command", "compile", env={**os.environ, "NEURON_PARALLEL_COMPILE_MAX_RETRIES": "2"})
    assert done.returncode == 1
    assert [f"after {number} retries." in done.stderr for number in range(4)] == [True, True, True, False]
    assert '"retry": 2' in done.stdout


def test_neffs_are_cleared_and_made_again(home: Path, tool: Tool) -> None:
    entries = waiting(home, 2)
    assert tool(TOOL, "--command", "compile").returncode == 0
    dry = tool(TOOL, "--command", "clear-neffs", "--dry-run")
    assert (dry.stdout.count(layouts.NEFF), states(home)) == (2, ["done", "done"])
    first = min(entries)
    held = hold(str(first))
    assert held is not None
    assert is_in_use(str(first))
    cleared = tool(TOOL, "--command", "clear-neffs")
    os.close(held)
    assert f"spared: {first} (in use)\n1 NEFFs removed" in cleared.stdout
    assert states(home) == ["done", "todo"]
    assert "Total graphs: 1" in tool(TOOL, "--command", "compile").stdout


def test_clean_removes_all_and_clear_locks_what_no_living_process_holds(home: Path, tool: Tool) -> None:
    entries = waiting(home, 2)
    (entries[0] / layouts.LOCK).touch()
    assert tool(TOOL, "--command", "scan").stdout.startswith("todo[1]\nlocked[1]\n")
    dry = tool(TOOL, "--command", "clear-locks", "--dry-run")
    assert "1 of 1 locks to remove" in dry.stdout
    assert "1 of 1 locks removed" in tool(TOOL, "--command", "clear-locks").stdout
    assert "2 entries to remove" in tool(TOOL, "--command", "clean", "--dry-run").stdout
    assert states(home) == ["todo", "todo"]
    assert "2 entries removed" in tool(TOOL, "--command", "clean").stdout
    assert states(home) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "takes a program to run"),
        (("--command", "compile", "python"), "takes no program"),
        (("--command", "clean-cache"), "invalid choice: 'clean-cache'"),
        (("--num_parallel", "0", "python"), "argument --num_parallel: 0 is less than 1"),
        (("--command", "compile", "--node_id", "2", "--world_size", "2"), "node 2 of 2 does not exist"),
    ],
)
def test_a_wrong_command_line_is_refused(tool: Tool, arguments: tuple[str, ...], words: str) -> None:
    done = tool(TOOL, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_for_a_bucket_every_command_works_on_the_copy_that_runs_use(
    home: Path, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg-cache"))
    copy = copy_dir("s3://nowhere/team")
    entries = waiting_in(Path(copy), 2)
    (entries[0] / layouts.LOCK).touch()
    # A bucket that nobody may ask: nothing listens there.
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "s3://nowhere/team")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    scanned = tool(TOOL, "--command", "scan")
    assert (scanned.stdout, scanned.stderr) == ("todo[1]\nlocked[1]\ndone[0]\nfailed[0]\n", "")
    unlocked = tool(TOOL, "--command", "clear-locks")
    assert "1 of 1 locks removed" in unlocked.stdout
    assert f"warning: this removes from {copy}, the copy of s3://nowhere/team; " in unlocked.stderr
    assert "0 NEFFs removed" in tool(TOOL, "--command", "clear-neffs").stdout
    cleaned = tool(TOOL, "--command", "clean")
    assert "2 entries removed" in cleaned.stdout
    assert "until 'neuron-cache rm --all --cache-dir s3://nowhere/team' removes it there" in cleaned.stderr
    assert scan(copy).entries == ()
