"""The runner of benchmarks: what it prints and keeps, and what a failure ends."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from benchmarks import run
from benchmarks.report import BenchmarkRow, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Main = Callable[..., int]


def measured(limit: float = 2.0) -> list[BenchmarkRow]:
    return [
        BenchmarkRow.at_most("a start", 1.0, "ms", limit),
        BenchmarkRow.info("a stop", 1234.5, "ms", "a note"),
    ]


def broken() -> list[BenchmarkRow]:
    raise RuntimeError("the tool has another option now")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, home: Path) -> Main:
    """Run the runner with three benchmarks, of which the first is broken and the second is over its budget."""
    for name, function in {"broken": broken, "over": lambda: measured(0.5), "good": measured}.items():
        module = ModuleType(f"benchmarks.{name}")
        module.main = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run, "BENCHMARKS", ("broken", "over", "good"))
    monkeypatch.setattr(run, "RESULTS", home / "RESULTS.md")
    monkeypatch.setenv("BENCHMARKS_SHORT", "")  # restores it after --short
    monkeypatch.delenv("BENCHMARKS_SHORT")

    def start(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        return run.main()

    return start


def test_a_benchmark_that_fails_does_not_end_the_others(
    main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 1
    printed = capsys.readouterr()
    assert "the tool has another option now" in printed.err
    assert printed.out == f"broken ...\nover ...\n{table(measured(0.5))}\ngood ...\n{table(measured())}\n"


@pytest.mark.parametrize(
    ("words", "code"), [(("good",), 0), (("over",), 1), (("--short", "over"), 0), (("--short", "broken"), 1)]
)
def test_the_exit_code_tells_failures_and_in_full_runs_budgets(
    main: Main, words: tuple[str, ...], code: int
) -> None:
    assert main(*words) == code


def test_results_are_kept_by_section(main: Main, home: Path) -> None:
    main("--write", "good")
    main("--write", "over")
    text = (home / "RESULTS.md").read_text()
    assert text.index("## over") < text.index("## good")
    assert "| a start | 1 ms | at most 0.5 ms | **no** |  |" in text
    assert "| a start | 1 ms | at most 2 ms | yes |  |" in text
    assert "| a stop | 1,234 ms |  |  | a note |" in text


def test_short_forms_are_not_kept(main: Main, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main("--short", "--write")
    assert end.value.code == 2
    assert "--short measures nothing to keep" in capsys.readouterr().err
    assert not (home / "RESULTS.md").exists()
