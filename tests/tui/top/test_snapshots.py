"""Pictures of the classic screen. After a wanted change: `pytest tests/tui/top --snapshot-update`, then look at them."""

from __future__ import annotations

import pytest

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import SourceProblem
from tests.tui.top.fixed_source import Compare, FixedSource, pressing

SMALL, MEDIUM, LARGE = (80, 24), (120, 40), (200, 60)
OPENED = ("down", "enter", "down", "enter", "down")
GONE = SourceProblem("machine not running, waiting for it")


@pytest.mark.parametrize(
    ("machine", "size", "keys", "colour"),
    [
        pytest.param("training", SMALL, OPENED, True, id="trn1_32xlarge-80x24"),
        pytest.param("training", MEDIUM, OPENED, True, id="trn1_32xlarge-120x40"),
        pytest.param("training", LARGE, OPENED, True, id="trn1_32xlarge-200x60"),
        pytest.param("trn2", MEDIUM, (), True, id="trn2_48xlarge"),
        pytest.param("single", SMALL, ("x",), True, id="trn1_2xlarge"),
        pytest.param("training", MEDIUM, ("2", "f"), True, id="flops_of_one_process"),
        pytest.param("gone", MEDIUM, (), True, id="the_daemon_is_gone"),
        pytest.param("training", SMALL, ("question_mark",), True, id="help"),
        pytest.param("training", (50, 12), (), True, id="too_small"),
        pytest.param("training", SMALL, ("down",), False, id="without_colour"),
    ],
)
def test_classic(
    snap_compare: Compare,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    size: tuple[int, int],
    keys: tuple[str, ...],
    colour: bool,
) -> None:
    monkeypatch.setattr("neurontools.tui.top.pages.rows.__version__", "1.2.3")
    if colour:
        monkeypatch.delenv("NO_COLOR")
    is_gone = machine == "gone"
    ticks = request.getfixturevalue("training" if is_gone else machine)
    source = FixedSource(*ticks, GONE) if is_gone else FixedSource(*ticks)
    app = TopApp(source, colour=colour, settings=TopSettings(classic=True))
    assert snap_compare(app, terminal_size=size, run_before=pressing(*keys))
