"""neuron-customop from the command line: output, JSON, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.customop import COMMANDS, build_parser, main
from neurontools.customop import inspection

if TYPE_CHECKING:
    from tests.customop.conftest import Library

pytestmark = pytest.mark.torch

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_build_then_inspect_then_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = SAMPLES / "relu_multicore"
    build = (
        "build",
        "relu",
        "--compute",
        sample / "relu.cpp",
        "--shape",
        sample / "shape.cpp",
        "--multicore",
    )
    code, out, err = run(capsys, *build, "--stack-size", "16384", "--cflag=-DX=1", "-o", "made", "--verbose")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 3)
    assert lines[0].startswith(f"{home}/made/librelu.so  built in ")
    assert lines[1:] == [
        "  relu_multicore::forward(Tensor _0) -> Tensor",
        "  relu_multicore::backward(Tensor _0, Tensor _1) -> Tensor",
    ]
    assert err.splitlines()[-2:] == [f"compiling {sample / name}" for name in ("shape.cpp", "relu.cpp")]
    code, out, err = run(capsys, *build, "--stack-size", "16384", "--cflag=-DX=1", "-o", "made")
    assert (code, err) == (0, "")
    assert out.startswith(f"{home}/made/librelu.so  up to date\n")

    code, out, err = run(capsys, "inspect", "made/librelu.so")
    assert (code, err) == (0, "")
    assert out.startswith(f"{home}/made/librelu.so  all 8 GPSIMD cores, element bounds checked\n")
    assert "  relu_multicore::forward(Tensor _0) -> Tensor  kernel relu_forward, tcm access\n" in out
    assert "  flags     -DX=1 -DSTACK_SIZE=16384\n" in out
    assert "  stack     16384 bytes\n" in out

    code, out, err = run(
        capsys, "run", "made/librelu.so", "forward", "--input", "33x7:float32:3", "--repeat", "3"
    )
    assert (code, err) == (0, "")
    assert out.startswith(
        "relu_multicore::forward(Tensor _0) -> Tensor\n  output    33x7:float32  min 0  max "
    )
    assert " of 3 on this computer\n  modelled  " in out
    assert "overlap of cores" in out
    assert out.endswith("  repeats   gave the same bytes\n")


def test_json_of_inspect_and_run(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", library("faults"), "--json")
    loaded = json.loads(out)
    assert code == 0
    assert loaded["path"] == str(library("faults"))
    assert loaded["manifest"]["operators"][1]["schema"] == "faults::copy(Tensor _0) -> Tensor"
    code, out, _ = run(
        capsys, "run", library("faults"), "faults::nap", "--input", "4:float32", "--input", "0.001", "--json"
    )
    report = json.loads(out)
    assert code == 0
    assert report["schema"].startswith("faults::nap(")
    assert report["output"]["sizes"] == [4]
    assert report["measured_best_ns"] >= 1_000_000
    copied_ns = 1000 + 16 * 0.00488  # the returned tensor goes to the output
    assert report["modelled_ns"] == round(1000 + 8 * 200 + copied_ns)
    assert report["repeatable"] is True


def test_the_same_seed_gives_the_same_input(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for seed in ("1", "1", "2"):
        _, out, _ = run(capsys, "run", library("faults"), "copy", "--input", f"9:float32:{seed}", "--json")
        results.append(json.loads(out)["output"])
    assert results[0] == results[1] != results[2]


def test_an_empty_result_has_no_smallest_element(
    library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "run", library("faults"), "copy", "--input", "0:float32", "--json")
    assert json.loads(out)["output"]["minimum"] is None
    _, out, _ = run(capsys, "run", library("faults"), "copy", "--input", "0:float32")
    assert "  output    0:float32  no elements\n" in out


def test_a_warning_of_the_checks_is_part_of_the_result(
    library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    call = (
        "run",
        library("faults"),
        "fault",
        "--input",
        "8:float32",
        "--input",
        "8:float32",
        "--input",
        "24",
    )
    code, out, _ = run(capsys, *call)
    assert code == 0
    assert "  warning   tcm: 1 TCM block (4096 bytes) not freed when the kernel returned" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("load", "nowhere.so"),
            1,
            "error: cannot read nowhere.so: No such file or directory\nhint: build it first\n",
        ),
        (
            ("inspect", "."),
            1,
            "error: cannot read .: Is a directory\nhint: give the path of a readable lib<name>.so\n",
        ),
        (("run", "LIB", "none"), 1, "has no operator none\nhint: it has faults::fault, faults::copy"),
        (
            ("run", "LIB", "copy"),
            2,
            "error: faults::copy takes 1 input, 0 given\nhint: schema: faults::copy(Tensor _0)",
        ),
        (("run", "LIB", "copy", "--input", "4"), 2, "error: faults::copy: input 0 must be a tensor\n"),
        (
            ("run", "LIB", "copy", "--input", "4:int64"),
            2,
            "error: input 4:int64: the device does not support dtype int64\n",
        ),
        (
            ("run", "LIB", "copy", "--input", "4y4"),
            2,
            "error: invalid input 4y4\nhint: inputs look like",
        ),
        (
            ("run", "LIB", "copy", "--input", "2x2:float32"),
            1,
            "rank: accessor of rank 1 on a tensor of 2 dimensions",
        ),
        (
            ("run", "LIB", "copy", "--input", "2:float32", "--repeat", "0"),
            2,
            "argument --repeat: '0' is not a number above 0",
        ),
        (
            ("build", "x", "--compute", "a.cpp", "--shape", "b.cpp"),
            1,
            "error: compute source a.cpp does not exist\n",
        ),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    library: Library,
    scratch: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    filled = [str(library("faults")) if argument == "LIB" else argument for argument in arguments]
    got, out, err = run(capsys, *filled)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def examples(text: str) -> list[list[str]]:
    """Return the words of each example of a help text, without `neuron-customop`."""
    commands = [part for line in text.partition("examples:\n")[2].splitlines() for part in line.split("&&")]
    lines = [re.split(r" {2,}", line.strip())[0] for line in commands]
    return [shlex.split(line)[1:] for line in lines if line.startswith("neuron-customop ")]


def test_every_help_has_examples_that_the_parser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {words[0] for words in examples(build_parser().format_help())}
    assert shown == set(COMMANDS) - {"doctor"}  # an old name
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            build_parser().parse_args([name, "--help"])
        own = examples(capsys.readouterr().out)
        assert name in {words[0] for words in own}
        for words in own:
            assert build_parser().parse_args(words).command == words[0]


def test_doctor_tells_of_a_cache_that_cannot_be_written(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    code, out, _ = run(capsys, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 1
    for name in ("runtime", "sanitizers"):
        assert findings[name]["detail"].startswith("cannot write ")
        assert findings[name]["remedy"] == "set XDG_CACHE_HOME to another directory"
    assert findings["runtime"]["purpose"] == "build"


def test_only_run_imports_torch(library: Library, scratch: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from neurontools.commands import new\n"
        "from neurontools.commands.customop import main\n"
        "assert new.main(['customop', 'made']) == 0\n"
        "for words in (['load', sys.argv[1]], ['inspect', sys.argv[1]], ['doctor'], ['build', '--project', 'made']):\n"
        "    assert main(words) == 0, words\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library("faults"))], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(("found", "text"), [(object(), "installed"), (None, "not installed")])
def test_the_doctor_says_whether_torch_is_installed(
    monkeypatch: pytest.MonkeyPatch, found: object, text: str
) -> None:
    monkeypatch.setattr(inspection, "find_spec", lambda _: found)
    status = inspection._torch()
    assert (status.ok, status.detail) == (found is not None, text)
