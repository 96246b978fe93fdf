"""What full-screen programs do on terminals that cannot show all that they draw."""

from __future__ import annotations

import io
import sys

import pytest

from neurontools.commands import console


class Stream(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("term", "obstacle"),
    [("xterm-256color", ""), ("dumb", "TERM is dumb"), (None, "TERM is not set"), ("", "TERM is not set")],
)
def test_a_dumb_terminal_has_no_screen(
    monkeypatch: pytest.MonkeyPatch, term: str | None, obstacle: str
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Stream())
    monkeypatch.delenv("TERM", raising=False) if term is None else monkeypatch.setenv("TERM", term)
    assert console.screen_obstacle() == obstacle
    assert console.has_screen() is (obstacle == "")


def test_nothing_is_drawn_into_a_file_that_takes_the_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, stream in (("stdin", Stream()), ("stdout", Stream()), ("stderr", io.StringIO())):
        monkeypatch.setattr(sys, name, stream)
    assert console.screen_obstacle() == "not a terminal"
