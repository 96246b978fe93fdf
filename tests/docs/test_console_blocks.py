"""The examples with a prompt are run as they stand on their pages, and print what the pages say that they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BIN = str(Path(sys.executable).parent)
# page -> what has to be there before, what stands for the paths and programs of the page
PAGES = {
    "first-steps": ("", {}),
    "faults": ("neurond start --instance trn1.32xlarge", {}),
    "kernels": ("", {}),
    "links": ("", {"/opt/aws/neuron": "opt", "unshare -rm .*": "true"}),
    "nccom-test": ("neurond start", {}),
    "neuron-ls": (
        "neurond start; exec 2>/dev/null",
        {r"--watch --filter 'command~python'": "--filter pid=1"},
    ),
    "sysfs": (
        "neurond start --instance trn2.48xlarge",
        {
            "/run/neuron": "mirror",
            "--watch &": "",
            "cat (.*mem_ecc)": r"neurontools sysfs export mirror >/dev/null; cat \1",
            "unshare -rm .*": "true",
        },
    ),
}
VOLATILE = re.compile(r"pid \d+|\bi-[0-9a-f]{16,17}|\S*/bin/|\b\d+ written|\b\d+m(?:\d+s)?$")


def steps(page: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page's blocks, each with the lines that follow it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\n(\$ .*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").splitlines()
            found.append((command, [line for line in lines if line and not line.startswith("modelled: ")]))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page(home, monkeypatch, name):
    monkeypatch.setenv("PATH", BIN + os.pathsep + os.environ["PATH"])
    before, instead = PAGES[name]
    page = next(DOCS.rglob(f"{name}.md")).read_text()
    if name == "kernels":
        Path("scale.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    for old, new in instead.items():
        page = re.sub(old, new, page)
    subprocess.run(["bash", "-c", before], check=True, capture_output=True)
    for command, said in steps(page):
        run = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert run.returncode == 0, (command, run.stdout)
        if said:
            assert_printed(run.stdout, said)


def assert_printed(printed: str, said: list[str]) -> None:
    shown = [VOLATILE.sub("~", line) for line in printed.splitlines() if line]
    wanted = [VOLATILE.sub("~", line) for line in said]
    if "..." not in wanted:
        assert sorted(shown) == sorted(wanted)  # stderr has its own pace
    else:
        assert [line for line in wanted if line not in shown and line != "..."] == []


@pytest.mark.parametrize(
    ("name", "before", "printed"),
    [
        ("faults", "neurond start --instance trn1.32xlarge", r"\(Fault\(.*hang"),
        ("xla-device", "neurond start", r"-?\d+\.\d+ .*(?s:.*)UncachedCompile"),
        ("nccom-test", "", r"^0\.00\d+ kangaring \d+\.\d+$"),
    ],
)
def test_the_python_example_of_a_page(request, name, before, printed):
    code = re.findall(
        r"^```python\n(.*?)^```", next(DOCS.rglob(f"{name}.md")).read_text(), re.MULTILINE | re.DOTALL
    )[0]
    subprocess.run(["bash", "-c", f"PATH={BIN}:$PATH; {before}"], check=True, capture_output=True)
    python = request.getfixturevalue("torch_python") if "import torch" in code else sys.executable
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    assert re.search(printed, run.stdout), run.stdout


def test_there_are_blocks():
    assert {name: len(steps(next(DOCS.rglob(f"{name}.md")).read_text())) for name in PAGES} == {
        "first-steps": 3,
        "faults": 6,
        "kernels": 5,
        "links": 4,
        "nccom-test": 2,
        "neuron-ls": 5,
        "sysfs": 8,
    }
