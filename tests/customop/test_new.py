"""new and debug: projects that pass their own tests, and gdb on a kernel."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.commands.customop import main
from neurontools.commands.new import main as new_main
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.debugging import debugger_for
from neurontools.customop.package import read_package
from neurontools.customop.scaffold import AccessStyle, create_project
from neurontools.errors import MissingDependencyError, NeuronToolsError
from tests.pytest.conftest import UNUSED

Library = Callable[[str], Path]
SAMPLE = Path(__file__).parents[2] / "fixtures" / "customops" / "relu_tcm"


def test_projects_of_every_style_build_and_pass_their_own_tests(
    scratch: Path, capsys: pytest.CaptureFixture[str], torch_python: str
) -> None:
    for style in AccessStyle:
        assert new_main(["customop", f"new_{style}", "--style", style]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"new_{style}/new_{style}.cpp"
        assert "relu_" not in Path(f"new_{style}/new_{style}.cpp").read_text(encoding="utf-8")
        assert main(["build", "--project", f"new_{style}"]) == 0
        assert f"new_{style}::forward(Tensor _0) -> Tensor" in capsys.readouterr().out
    before = {style: (scratch / f"new_{style}" / f"libnew_{style}.so").stat().st_ino for style in AccessStyle}
    done = subprocess.run(
        [
            torch_python,
            "-m",
            "pytest",
            "-q",
            *(word for name in ("cacheprovider", *UNUSED) for word in ("-p", f"no:{name}")),
            *(f"new_{style}" for style in AccessStyle),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "24 passed" in done.stdout, done.stdout
    # What customop.yaml says is what the Python file says: it found the library built.
    assert {
        style: (scratch / f"new_{style}" / f"libnew_{style}.so").stat().st_ino for style in AccessStyle
    } == before


@pytest.mark.parametrize("name", ["aten", "builtin", "a-b", "1a", "_a", "for", "double", "torch", "", "a/b"])
def test_names_that_cannot_be(scratch: Path, name: str) -> None:
    with pytest.raises(NeuronToolsError, match="invalid operator name"):
        create_project(name, scratch / "x")
    assert not (scratch / "x").exists()


def test_no_file_is_written_over(scratch: Path) -> None:
    (scratch / "op").mkdir()
    (scratch / "op" / "README.md").write_text("mine")
    with pytest.raises(NeuronToolsError, match=r"op/README.md already exists"):
        create_project("op", scratch / "op")
    assert [path.name for path in (scratch / "op").iterdir()] == ["README.md"]
    (scratch / "op" / "README.md").rename(scratch / "op" / "mine.md")
    assert len(create_project("op", scratch / "op")) == 7
    with pytest.raises(NeuronToolsError, match="cannot write"):
        create_project("op", scratch / "op" / "mine.md" / "below")


def test_gdb_gets_a_library_without_optimisation(
    library: Library, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gdb = home / "bin" / "gdb"
    gdb.parent.mkdir()
    gdb.write_text('#!/bin/sh\nprintf "%s\\n" "$NEURONTOOLS_CUSTOMOP_INPROCESS" "$@"\n')
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gdb.parent}:{os.environ['PATH']}")
    words = ["debug", str(library("relu_tcm")), "forward", "--input", "4x4:float32", "--ex", "bt", "--batch"]
    code = "import sys; from neurontools.commands.customop import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "1"
    assert "-batch" in lines
    order = ["run", "break relu_forward", "continue", "bt", "--args"]
    assert [line for line in lines[: lines.index("--args") + 1] if line in order] == order
    assert lines[-4:-2] == [lines[-4], "relu_tcm::forward"]
    assert read_package(lines[-4]).manifest.cflags == ("-O0", "-g3")


def test_without_gdb_or_sources(library: Library, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("relu.cpp", "shape.cpp"):
        shutil.copy(SAMPLE / name, scratch)
    request = BuildRequest("x", (Path("relu.cpp"),), (Path("shape.cpp"),), Path(), ("-O0",))
    package = read_package(build(request).path)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    (scratch / "relu.cpp").unlink()
    said: list[str] = []
    debugger = debugger_for(package, "relu_forward", ["x::forward"], on_progress=said.append)
    assert package.path in debugger
    assert said == [f"debugging the optimized library: {scratch}/relu.cpp does not exist"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingDependencyError, match="debugging needs gdb"):
        debugger_for(package, "relu_forward", [], on_progress=said.append)


LOOP = """#include <torch/torch.h>
static volatile int more = 1;
torch::Tensor endless(const torch::Tensor& x) {
  while (more) continue;  // loop
  return x;
}
"""
LOOP_SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(looping, m) { m.def("loop", &same, "endless"); }
"""


class Terminal:
    """A program that has a terminal of its own, as it has in a shell."""

    def __init__(self, *words: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execv(words[0], words)
        self.text = ""
        self._read = 0

    def until(self, word: str, unless: str | None = None) -> None:
        """Read until a word comes behind the last one that was waited for; another one skips the test."""
        while word not in self.text[self._read :]:
            if unless and unless in self.text:
                pytest.skip(unless)
            data = self._some()
            assert data, self.text
            self.text += data
        self._read = self.text.index(word, self._read) + len(word)

    def _some(self) -> str:
        assert select.select([self._fd], [], [], 60)[0], self.text
        try:
            return os.read(self._fd, 4096).decode(errors="replace")
        except OSError:  # what a terminal says whose program ended
            return ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def kill(self) -> None:
        """End it, if it is still there; what it debugs ends with it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        while more := self._some():
            self.text += more
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Wait until a process that is not ours has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@pytest.mark.torch
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_gdb_stops_in_the_kernel_has_the_interrupt_and_leaves_nothing_behind(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no colours within words
    (scratch / "loop.cpp").write_text(LOOP)
    (scratch / "shape.cpp").write_text(LOOP_SHAPE)
    library = build(BuildRequest("loop", (Path("loop.cpp"),), (Path("shape.cpp"),), Path(), ("-O0",))).path
    words = ("debug", str(library), "loop", "--input", "3:float32", "--ex", "info source")
    code = "import sys; from neurontools.commands.customop import main; main(sys.argv[1:])"
    terminal = Terminal(sys.executable, "-c", code, *words, "--ex", "echo is here\\n")
    try:
        interrupt_and_quit(terminal, scratch)
    finally:
        terminal.kill()


def interrupt_and_quit(terminal: Terminal, scratch: Path) -> None:
    terminal.until("is here", unless="ptrace: Operation not permitted")
    assert "Breakpoint 2, endless (" in terminal.text
    assert f"Located in {scratch}/loop.cpp" in terminal.text
    terminal.type("set confirm off\ncontinue\n")
    terminal.until("Continuing.")
    (debugged,) = children(terminal.pid)
    terminal.type("\x03")
    terminal.until("received signal SIGINT")
    terminal.until("// loop")
    terminal.type("catch syscall exit_group\nset var more = 0\ncontinue\n")
    terminal.until("looping::loop(Tensor _0) -> Tensor")
    terminal.until("(call to syscall exit_group)")
    terminal.type("quit\n")
    assert terminal.close() == 0
    assert gone(debugged)


def test_the_first_file_that_exists_is_named(tmp_path: Path) -> None:
    files = create_project("again", tmp_path, AccessStyle.TCM)
    with pytest.raises(NeuronToolsError) as refused:
        create_project("again", tmp_path, AccessStyle.TCM)
    assert refused.value.message == f"{files[0]} already exists"
    for file in files[1:]:
        file.unlink()
    with pytest.raises(NeuronToolsError, match="already exists"):
        create_project("again", tmp_path, AccessStyle.TCM)
