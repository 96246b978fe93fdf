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


@pytest.mark.parametrize(("term", "has_screen"), [("xterm-256color", True), ("dumb", False), (None, False)])
def test_a_dumb_terminal_has_no_screen(
    monkeypatch: pytest.MonkeyPatch, term: str | None, has_screen: bool
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Stream())
    monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM", raising=False)
    assert console.has_screen() is has_screen


def test_nothing_is_drawn_into_a_file_that_takes_the_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, stream in (("stdin", Stream()), ("stdout", Stream()), ("stderr", io.StringIO())):
        monkeypatch.setattr(sys, name, stream)
    assert not console.has_screen()
