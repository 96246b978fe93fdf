"""neuron-customop bench as a command: text, JSON, projects, comparisons, bad input."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.customop import build_parser, main
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.customop.conftest import Library

pytestmark = pytest.mark.torch

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["bench", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def project(scratch: Path) -> Path:
    """A project in the current directory."""
    shutil.copytree(SAMPLES / "relu_multicore", scratch / "relu")
    return scratch / "relu"


def test_the_text(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, library("relu_element"), "forward", "--shape", "32x4K", "--repeat", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        "relu_element::forward(Tensor _0) -> Tensor",
        "  input    32x4096:float32:0",
        "  modelled 52.43 ms on one GPSIMD core of a NeuronCore-v2",
    ]
    assert re.search(r"^    element accesses +262,144 +1,048,576 +52\.43 ms +100\.0 %$", out, re.MULTILINE)
    assert re.search(r"^      relu\.cpp:6 input 0 +131,072 +524,288 +26\.21 ms$", out, re.MULTILINE)
    assert out.count("  excluded arithmetic of the kernel's own loops") == 1
    assert "on this computer: says nothing about the device" in " ".join(out.split())
    assert "the element accessor costs over 99 % of the time: move to TCM copies" in " ".join(out.split())
    assert "\x1b" not in out


def test_a_narrow_terminal(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    _, out, _ = run(capsys, library("relu_multicore"), "forward", "--shape", "32x4K", "--repeat", "2")
    lines = [line for line in out.splitlines() if not line.startswith(("relu", "  modelled"))]
    assert max(map(len, lines)) <= 50
    assert re.search(r"^      relu\.cpp:39 input 0 +16 +39\.32 us$", out, re.MULTILINE)


def test_a_project_is_built_first_and_all_operators_are_benched(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    code, out, _ = run(capsys, "--shape", "64x64", "--repeat", "0")
    assert code == 0
    assert out.startswith("relu_multicore::forward(Tensor _0) -> Tensor\n")
    assert "\nrelu_multicore::backward(Tensor _0, Tensor _1) -> Tensor\n" in out
    code, out, _ = run(capsys, "backward", "--shape", "64x64", "--repeat", "0")
    assert code == 0
    assert out.startswith("relu_multicore::backward(")
    monkeypatch.chdir(project.parent)
    for place in ("relu", "relu/customop.yaml"):
        code, out, _ = run(capsys, place, "forward", "--shape", "64x64", "--repeat", "0")
        assert code == 0


def test_the_json(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    code, out, err = run(capsys, "forward", "--shape", "8x1024", "--cores", "2", "--repeat", "0", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out.replace(str(project), "PROJECT"))
    assert document == json.loads((GOLDEN / "bench.json").read_text())


def test_two_libraries_side_by_side(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = library("relu_element"), library("relu_multicore")
    call = (first, "forward", "--shape", "32x4K", "--repeat", "0", "--compare")
    code, out, _ = run(capsys, *call, second)
    assert code == 0
    assert f"first    {first}  relu_element::forward" in out
    assert re.search(r"^  TCM copies +- +78\.64 us$", out, re.MULTILINE)
    assert re.search(r"^  modelled +52\.43 ms +79\.64 us +second is 658 times faster$", out, re.MULTILINE)
    _, out, _ = run(capsys, *call, f"{library('advice')}:large_tiles", "--json")
    document = json.loads(out)
    assert document["compared"][0]["op"] == "advice::large_tiles"
    assert document["compared"][0]["inputs"] == document["reports"][0]["inputs"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere.so", "forward"), 1, "cannot read nowhere.so: No such file or directory"),
        (("LIB", "none"), 1, "has no operator none"),
        (("LIB", "forward", "--input", "0.5"), 2, "relu_tcm::forward: input 0 must be a tensor"),
        (("LIB", "forward", "--input", "8:float32", "--input", "8:float32"), 2, "takes 1 input, 2 given"),
        (("LIB", "forward", "--input", "8:int64"), 2, "the device does not support dtype int64"),
        (("LIB", "forward", "--input", "8:int8"), 1, "custom operator relu_tcm::forward failed"),
        (("LIB", "forward", "--shape", "8y"), 2, "invalid sizes '8y'"),
        (("LIB", "forward", "--shape", "8", "--compare", ""), 1, "cannot read "),
        (("LIB", "forward", "--dtype", "float64"), 2, "--dtype float64: not supported by the device"),
        (("LIB", "forward", "--input", "N:float32"), 2, "invalid input N:float32"),
        (("LIB", "forward", "--cores", "9"), 2, "invalid --cores 9: must be 1 to 8"),
        (("LIB", "forward", "--cores", "2", "--shape", "8"), 2, "was built for one core"),
        (("LIB", "forward", "--repeat", "-1"), 2, "--repeat and --warm-up must be at least 0"),
        (("LIB", "--input", "8:float32"), 2, "--input and --compare need one operator"),
        (("LIB", "forward", "more"), 2, "too many arguments: expected a library and an operator"),
        (("forward",), 2, "no customop.yaml in "),
        ((), 2, "no customop.yaml in "),
        (("LIB", "forward", "--shape", "8", "--compare", "LIB:none"), 1, "has no operator none"),
        (("LIB", "forward", "--shape", "1Mx1M"), 2, "exceeds the limit, a quarter of this computer's memory"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    library: Library,
    scratch: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    path = str(library("relu_tcm"))
    got, out, err = run(capsys, *(word.replace("LIB", path) for word in words))
    assert (got, out) == (code, "")
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert scratch.is_dir()


def test_a_library_without_checks_gets_a_note(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SAMPLES / "relu_element", project.parent / "element")
    release = project.parent / "element" / "customop.yaml"
    release.write_text(release.read_text() + "release: true\n")
    code, out, _ = run(capsys, "element", "backward", "--shape", "32x64", "--repeat", "0")
    assert code == 0
    assert re.search(r"element accesses +6,144 ", out)
    assert "does not count single element accesses" in " ".join(out.split())


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["bench", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "neuron-customop bench librelu.so forward --shape 32x4096\n" in out
    assert "say nothing about the device" in out


def test_an_interrupt_ends_it_and_its_worker(library: Library, home: Path) -> None:
    path = library("faults")
    command = "from neurontools.commands.customop import main; raise SystemExit(main())"
    words = ("bench", str(path), "nap", "--input", "4:float32", "--input", "30.0")
    bench = subprocess.Popen(
        [sys.executable, "-c", command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    worker = _child_of(bench.pid)
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=600)
    assert (bench.returncode, out, err) == (130, "", "")
    wait_until(lambda: not Path(f"/proc/{worker}").exists())  # its parent's end ends it a moment later
    assert home.is_dir()


def _child_of(pid: int) -> int:
    """Return a process's worker, once it has one."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while True:
        for child in children.read_text().split():
            if "neuron-customop-worker" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        time.sleep(0.02)
