"""What a program says on a terminal when it ends and has compiled more than its first steps need."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from neurontools.cache.location import DEFAULT_ROOT
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import Frame, python_frames, report_compiles


def test_the_frames_of_a_program_are_those_outside_the_device_the_innermost_first() -> None:
    code = compile("def of_the_device(): return python_frames()", "<neurontools generated>", "exec")
    names: dict[str, Any] = {"python_frames": python_frames}
    exec(code, names)
    found = names["of_the_device"]()
    own = sys._getframe()
    assert found[0] == Frame(own.f_code.co_name, __file__, own.f_lineno - 2)
    assert all("<neurontools" not in frame.file for frame in found)


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
