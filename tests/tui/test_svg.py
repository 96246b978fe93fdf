"""Pictures of the documentation: smaller without a loss, and animated."""

from __future__ import annotations

import io
from xml.etree import ElementTree as ET

from rich.console import Console

from tests.tui.svg import animated, slim


def picture(*lines: str) -> str:
    console = Console(record=True, width=20, file=io.StringIO(), color_system="truecolor")
    for line in lines:
        console.print(line)
    return console.export_svg(title="test")


def test_a_slim_picture_has_all_texts_and_is_smaller() -> None:
    whole = picture("[red]one[/] two", "[on blue]three[/] [on green]four[/] [on green]five[/]")
    small = slim(whole)
    assert len(small) < len(whole)
    ET.fromstring(small)
    for word in ("one", "two", "three", "four", "five"):
        assert word in small
    assert 'id="clip-terminal"' in small


def test_an_animated_picture_draws_once_what_all_frames_have() -> None:
    frames = [
        slim(picture("[red]same[/]", f"[{colour} on white]{word}[/]", "[on blue]x[/]"))
        for colour, word in (("green", "first"), ("yellow", "second"))
    ]
    moving = animated(frames, [1.0, 3.0])
    ET.fromstring(moving)
    assert moving.count(">same<") == 1
    assert moving.count(">first<") == moving.count(">second<") == 1
    assert moving.index('class="f f0"') < moving.index(">first<") < moving.index(">second<")
    assert "25.00% { visibility: visible }" in moving
    assert "4s step-end infinite" in moving
