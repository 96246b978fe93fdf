"""neuron-profile steps, top --by, roofline, gaps, critical-path and ranks, as a user calls them."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

VERBS = ("steps", "top", "roofline", "gaps")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def run(tool: Tool, *arguments: str) -> Any:
    done = tool("neuron-profile", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_text_json_and_csv_of_a_verb_agree(tool: Tool, profile_dir: Path, verb: str) -> None:
    text = run(tool, verb, str(profile_dir))
    assert max(map(len, text.splitlines())) <= 80
    document = json.loads(run(tool, verb, str(profile_dir), "--json"))
    rows = rows_of(run(tool, verb, str(profile_dir), "--csv"))
    match verb:
        case "steps":
            listed = document[0]["steps"]
        case "roofline":
            listed = document["points"]
        case "gaps":
            listed = document["gaps"]
        case _:
            listed = document
    assert len(rows) == len(listed)
    key = next(key for key in listed[0] if key.endswith("_ns"))
    assert [int(row[key]) for row in rows] == [each[key] for each in listed]


def test_filters_of_steps_and_engines_choose_a_part(tool: Tool, profile_dir: Path) -> None:
    part = "--steps", "2-3", "--engine", "Tensor,dma", "--by", "engine", "--json"
    groups = json.loads(run(tool, "top", str(profile_dir), *part))
    assert [(group["name"], group["count"]) for group in groups] == [("Tensor", 8), ("DMA", 12)]
    assert groups[0]["total_ns"] == 4 * 14_000
    assert "5 steps of pid" in run(tool, "steps", str(profile_dir))
    assert "gaps between executions, measured" in run(tool, "gaps", str(profile_dir), "--nc", "1")
    assert run(tool, "gaps", str(profile_dir), "--min", "1s").startswith("No gaps")


def test_a_core_that_waits_for_another_does_not_wait_for_python(tool: Tool, profile_dir: Path) -> None:
    gaps = json.loads(run(tool, "gaps", str(profile_dir), "--json"))
    assert gaps["host"] == {"other core": 5_100_000, "python": 800_000}


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("top", "--engine", "tenser"), 2, "unknown engine 'tenser'"),
        (("top", "--by", "colour"), 2, "--by"),
        (("steps", "--steps", "9-3"), 2, "--steps 9-3 is not a range of steps"),
        (("steps", "--steps", "0"), 2, "--steps 0 is not a range of steps"),
        (("steps", "--steps", "9"), 1, "no step 9: the profile has 5 steps"),
        (("gaps", "--json", "--csv"), 2, "--json and --csv exclude each other"),
        (("ranks",), 1, "the profile has 1 worker"),
        (("top", "--from", "1s"), 1, "no events match the filters"),
    ],
)
def test_bad_requests_are_one_clear_line(
    tool: Tool, profile_dir: Path, arguments: tuple[str, ...], code: int, error: str
) -> None:
    verb, *rest = arguments
    done = tool("neuron-profile", verb, str(profile_dir), *rest)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert error in done.stderr.splitlines()[0]


@pytest.mark.parametrize("verb", [*VERBS, "critical-path"])
def test_a_run_without_executions_is_explained(tool: Tool, home: Path, maker: Maker, verb: str) -> None:
    maker.finished(home / "none", steps=0)
    done = tool("neuron-profile", verb, str(home / "none"))
    if verb == "gaps":
        assert done.stdout.startswith("No gaps")
    else:
        assert done.returncode == 1
        assert done.stderr.startswith("error: the profile has no ")


def test_workers_are_compared_and_missing_ones_named(tool: Tool, home: Path, maker: Maker) -> None:
    for rank in range(2):
        capture = maker.worker(home / "ranks", rank, 3)
        maker.train(capture, wall_ns=3_000_000 * (1 + rank))
        capture.on_close()
    text = run(tool, "ranks", str(home / "ranks"))
    assert "missing in the profile: rank 2" in text
    assert text.count("straggler") == 1
    rows = rows_of(run(tool, "ranks", str(home / "ranks"), "--csv"))
    assert [row["is_straggler"] for row in rows] == ["False", "True"]
