"""The session of docs/how-to/slow-steps.md: a GPT is profiled, changed as the advice says, and profiled again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from neurontools import fixtures
from neurontools.base.units import format_ns
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SAMPLES = Path(fixtures.__path__[0]) / "samples"
PAGE = Path(__file__).parents[3] / "docs/how-to/slow-steps.md"

PROGRAM = """
import json, sys
import neurontools, torch_xla
sys.path.insert(0, sys.argv[1])
import slow_gpt
torch_xla.device()
for name, changes in json.loads(sys.argv[2]).items():
    with neurontools.profile(name):
        slow_gpt.main(**changes, steps=3)
"""


@pytest.fixture
def advise(tool: Any, torch_python: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs variants of the program in one process and returns the advice on each."""

    (home / "program.py").write_text(PROGRAM)
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))

    def run(variants: dict[str, dict[str, Any]], flags: str = "") -> dict[str, dict[str, Any]]:
        monkeypatch.setenv("NEURON_CC_FLAGS", flags)
        ran = tool("neuron-run", "--", torch_python, "program.py", str(SAMPLES), json.dumps(variants))
        assert ran.returncode == 0, ran.stderr
        found = {}
        for name in variants:
            done = tool("neuron-profile", "advise", name, "--json")
            assert done.returncode == 0, done.stderr
            found[name] = json.loads(done.stdout)
        return found

    return run


def modelled(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the advice about the graph by rule."""
    return {each["rule"]: each for each in report["advice"] if each["gain"]["clock"] == "modelled"}


def test_each_advice_gains_what_it_says_and_all_of_them_what_the_page_shows(advise: Any) -> None:
    page = PAGE.read_text()
    alone = advise({
        "slow": {},
        "widths": {"width": 256},
        "batch": {"batch": 8},
        "attention": {"fused": True},
    })  # fmt: skip
    slow = alone["slow"]
    advice = modelled(slow)
    assert set(advice) == {"dtype", "widths", "batch", "attention"}
    (flags,) = re.findall(r'NEURON_CC_FLAGS="(.*?)"', advice["dtype"]["change"])
    assert f'export NEURON_CC_FLAGS="{flags}"' in page
    changed = advise({"dtype": {}, "fast": {"width": 256, "batch": 8, "fused": True}}, flags)

    steps = {name: report["step_ns"] for name, report in (alone | changed).items()}
    gains = {rule: each["gain"]["ns"] for rule, each in advice.items()}
    assert gains["dtype"] == pytest.approx(steps["slow"] - steps["dtype"], rel=0.01)
    assert gains["widths"] == pytest.approx(steps["slow"] - steps["widths"], rel=0.02)
    assert gains["batch"] == pytest.approx(steps["slow"] - steps["batch"] / 2, rel=0.02)
    assert gains["attention"] == pytest.approx(steps["slow"] - steps["attention"], rel=0.02)
    assert set(modelled(changed["fast"])) == {"batch"}

    for rule, step_ns in steps.items():
        if rule in advice:
            advised, ran = format_ns(steps["slow"] - gains[rule]), format_ns(step_ns)
            if rule == "batch":
                advised = f"{format_ns((steps['slow'] - gains[rule]) / 4)} a sample"
                ran = f"{format_ns(step_ns / 8)} a sample, {ran} a step"
            assert f"| {advised} | {ran} |" in page

    words = " ".join(page.split())
    for name in ("slow", "fast"):
        assert f"Step: {format_ns(steps[name])} (modelled)" in page
    before, after = steps["slow"] / 4e6, steps["fast"] / 8e6
    assert (
        f"{after:.3f} ms a sample instead of {before:.3f} ms, {1 - after / before:.0%} less"
        in words.replace(" %", "%")
    )
    for rule, each in advice.items():
        assert each["title"] in words
        gain = f"-{format_ns(each['gain']['ns'])} of {format_ns(slow['step_ns'])} a step"
        if rule == "batch":
            gain = (
                f"{format_ns(steps['slow'] / 4)} -> {format_ns((steps['slow'] - gains[rule]) / 4)} a sample"
            )
        assert f"{gain} (modelled)" in words
