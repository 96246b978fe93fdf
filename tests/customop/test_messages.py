"""The text of a failed TORCH_CHECK: what a stream would print, with the stream's headers and without."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from neurontools.customop import backtrace
from neurontools.customop.building import toolchain
from neurontools.customop.building.toolchain import BASE_FLAGS, INCLUDE, SOURCE, find_compiler
from neurontools.customop.errors import CustomOpBuildError

PROGRAM = Path(__file__).parent / "kernels" / "messages.cpp"
TEXT = """\
text string cde
1 0 -1 -2 -3 -4 5 6 18446744073709551615
1.5 0.333333 1.23457e+07 1e-09 -0 inf
0 0x10 5 5
BFloat16 [2, 3][] 0.52
"""


def compiled(program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile the program that prints messages."""
    command = [*find_compiler().command, *BASE_FLAGS, "-isystem", str(INCLUDE), *flags]
    command += [str(PROGRAM), str(SOURCE / "messages.cpp"), "-Wl,--unresolved-symbols=ignore-all"]
    return subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("flags", "more"), [((), ""), (("-DSTREAMS",), "xff one[2, 3]Int1.5\n")])
def test_messages_are_what_a_stream_prints(tmp_path: Path, flags: tuple[str, ...], more: str) -> None:
    made = compiled(tmp_path / "program", "-O1", *flags)
    assert made.returncode == 0, made.stderr
    printed = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout
    assert printed == TEXT + more


def test_a_type_without_text_is_reported_at_compile_time(tmp_path: Path) -> None:
    made = compiled(tmp_path / "program", "-DSCOPED")
    assert made.returncode != 0
    assert "TORCH_CHECK: a part of the message is no number" in made.stderr


@pytest.mark.parametrize(
    ("tools", "used"), [(("addr2line",), True), (("llvm-addr2line",), True), ((), False)]
)
def test_either_tool_for_addresses_is_enough(
    monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...], used: bool
) -> None:
    def run(command: tuple[str, ...], **_: object) -> SimpleNamespace:
        assert command[0] in tools
        return SimpleNamespace(stdout="/src/kernel.cpp:12\n")

    monkeypatch.setattr(backtrace.shutil, "which", lambda name: name if name in tools else None)
    monkeypatch.setattr(backtrace, "run_program", run)
    backtrace.user_location.cache_clear()
    found = backtrace.user_location(b"library", (1,), ("/src/kernel.cpp",))
    backtrace.user_location.cache_clear()
    assert found == ("/src/kernel.cpp:12" if used else "")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["/usr/include/c++/12/vector:3", "/lib/helper.h:7", "/src/kernel.cpp:12"], "/src/kernel.cpp:12"),
        (["??:0", "/lib/helper.h:7", "/lib/other.h:8"], "/lib/helper.h:7"),
        (["/src/kernel.cpp:?", "/usr/lib/x.cpp:3"], ""),
    ],
)
def test_the_place_is_the_user_s_own_line_or_else_the_first_of_another_library(
    lines: list[str], found: str
) -> None:
    assert backtrace._first_user_line(lines, {"/src/kernel.cpp"}) == found


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("warning: x\nerror: broken", "error: broken"),
        ("cannot run\nat all", "cannot run"),
        ("", "no message"),
    ],
)
def test_the_first_error_of_a_compiler_is_shown(tmp_path: Path, printed: str, shown: str) -> None:
    with pytest.raises(CustomOpBuildError) as refused:
        toolchain._run(("sh", "-c", f"printf '{printed}' >&2; exit 1"), tmp_path, "made")
    assert refused.value.message == f"sh cannot compile the custom operator runtime: {shown}"
