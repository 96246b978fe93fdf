"""neuron-top inside a real tmux: what is copied arrives in its buffer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from neurontools.machine.pages.page import PageWriter

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
SIZE_AND_COLOUR = {"NO_COLOR", "COLUMNS", "LINES"}
Tmux = Callable[..., str]


@pytest.fixture
def tmux(home: Path, working: PageWriter) -> Iterator[Tmux]:
    """A tmux of its own with neuron-top in it, on the page of processes, as tmux is without a configuration."""
    command = ["tmux", "-S", str(home / "tmux"), "-f", "/dev/null"]
    environment = {name: value for name, value in os.environ.items() if name not in SIZE_AND_COLOUR}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True, env=environment
        )
        return done.stdout

    program = f"{Path(sys.executable).parent / 'neuron-top'} --page processes"
    run("new-session", "-d", "-x", "120", "-y", "30", program)
    yield run
    run("kill-server")


def until(tmux: Tmux, text: str, *what: str) -> str:
    for _ in range(300):
        shown = tmux(*(what or ("capture-pane", "-p")))
        if text in shown:
            return shown
        time.sleep(0.05)
    raise AssertionError(f"{text!r} never came, only {shown}")


def test_what_is_copied_is_in_tmuxs_buffer(tmux: Tmux) -> None:
    until(tmux, "busy-job")
    tmux("send-keys", "y")
    until(tmux, "into tmux's buffer too")
    assert tmux("show-buffer") == str(os.getpid())
    tmux("send-keys", "Y")
    until(tmux, "copied the command line")
    assert tmux("show-buffer") == "python train.py"


def test_no_answer_of_the_terminal_becomes_a_key(tmux: Tmux) -> None:
    shown = until(tmux, "busy-job")
    assert "Processes (" in shown
    assert "paused" not in shown
