"""Building and calling operators in directories and with sources of any letters, in locales of any encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.customop.conftest import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

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
