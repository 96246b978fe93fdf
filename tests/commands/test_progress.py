import io

import pytest

from neurontools.commands.console import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_quick_work_shows_nothing_on_a_terminal(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with ProgressLine(clock=clock) as line:
        clock.now_s = 0.9
        line.show("half")
    assert terminal.getvalue() == ""


def test_long_work_shows_one_line_ten_times_a_second_and_clears_it(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with ProgressLine(clock=clock) as line:
        for now_s, done in ((1.0, 10), (1.05, 20), (1.2, 30)):
            clock.now_s = now_s
            line.count("listing", done, 50, "entries")
    assert terminal.getvalue() == ("\r\x1b[Klisting 10 of 50 entries\r\x1b[Klisting 30 of 50 entries\r\x1b[K")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_pipes_and_switched_off_lines_stay_quiet(monkeypatch, clock, stream):
    monkeypatch.setattr("sys.stderr", written := stream())
    with ProgressLine(enabled=stream is not Terminal, clock=clock) as line:
        clock.now_s = 100
        line.show("never")
    assert written.getvalue() == ""
