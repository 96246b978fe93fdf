"""The text of a failed TORCH_CHECK: what a stream would print, with the stream's headers and without.

Building and calling operators in directories and with sources of any letters, in locales of any encoding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from neurontools.customop import backtrace
from neurontools.customop.building import toolchain
from neurontools.customop.building.toolchain import BASE_FLAGS, INCLUDE, SOURCE, find_compiler
from neurontools.customop.errors import CustomOpBuildError
from tests.customop.conftest import SAMPLES

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


COMMAND = "from neurontools.commands.customop import main; raise SystemExit(main())"
LOCALES = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0"},
    "utf-8": {"LC_ALL": "C.UTF-8"},
    "utf-8 mode": {"LC_ALL": "C", "PYTHONUTF8": "1"},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "größe 数"
    directory.mkdir()
    text = (SAMPLES / "relu_tcm" / "relu.cpp").read_text(encoding="utf-8")
    checked = 'TORCH_CHECK(input.numel() < 100, "zu groß");\n  auto source'
    (directory / "kernelé.cpp").write_text(text.replace("auto source", checked), encoding="utf-8")
    wrong = text.replace("float* take_piece", "flöat* take_piece")
    (directory / "wrong.cpp").write_text(wrong, encoding="utf-8")
    (directory / "shape.cpp").write_bytes((SAMPLES / "relu_tcm" / "shape.cpp").read_bytes())
    return directory


def run(place: Path, locale: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        cwd=place,
        env={**environ, **LOCALES[locale]},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("locale", LOCALES)
def test_letters_of_any_script(place: Path, locale: str) -> None:
    sources = ("build", "k", "--shape", "shape.cpp", "-o", "aus gängig", "--compute")
    for state in (b"built in", b"up to date"):
        built = run(place, locale, *sources, "kernelé.cpp")
        assert built.returncode == 0, built.stderr
        assert state in built.stdout
    library = "aus gängig/libk.so"
    assert run(place, locale, "inspect", library).returncode == 0
    called = run(place, locale, "run", library, "forward", "--input", "100:float32")
    assert called.returncode == 1
    assert b"check: zu gro" in called.stderr
    commands = json.loads((place / "aus gängig" / "compile_commands.json").read_bytes())
    assert {entry["file"] for entry in commands} == {
        str(place / name) for name in ("kernelé.cpp", "shape.cpp")
    }
    failed = run(place, locale, *sources, "wrong.cpp")
    assert failed.returncode == 1
    assert failed.stderr.startswith(b"error: cannot compile wrong.cpp\nwrong.cpp:")
    assert b"Traceback" not in failed.stderr


def test_a_library_of_another_locale_is_built_again(place: Path) -> None:
    for locale in LOCALES:
        built = run(place, locale, "build", "k", "--shape", "shape.cpp", "--compute", "kernelé.cpp")
        assert built.returncode == 0, built.stderr
