"""What a program says on a terminal when it ends and has compiled more than its first steps need."""

from __future__ import annotations

import sys

import pytest

from neurontools.cache.location import DEFAULT_ROOT
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import report_compiles


@pytest.mark.parametrize(
    ("compiled", "root", "rank", "on_terminal", "said"),
    [
        (4, DEFAULT_ROOT, "0", True, "4 graphs compiled; to see why: neuron-cache why\n"),
        (3, "/c d", "", True, "3 graphs compiled; to see why: neuron-cache why --cache-dir '/c d'\n"),
        (2, DEFAULT_ROOT, "0", True, ""),
        (4, DEFAULT_ROOT, "1", True, ""),
        (4, DEFAULT_ROOT, "0", False, ""),
    ],
)
def test_compiles_beyond_the_usual_are_reported_once_to_a_person(
    compiled: int,
    root: str,
    rank: str,
    on_terminal: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "counters", lambda: {"UncachedCompile": compiled})
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    report_compiles(root)
    assert capsys.readouterr().err == said
