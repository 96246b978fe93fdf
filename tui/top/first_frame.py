"""The first frame of neuron-top: drawn like all others, but before Textual is loaded."""

from __future__ import annotations

import os
import shutil
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console

from neurontools.dashboard.monitor import MachineMonitor
from neurontools.tui.names import TEXTUAL_THEMES
from neurontools.tui.top.layout import too_small
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.page import PageOptions
from neurontools.tui.top.pages.registry import make_pages
from neurontools.tui.top.screen import whole_frame
from neurontools.tui.top.source import SourceProblem, TimedSnapshot, UpdateReader
from neurontools.tui.widgets.lines import Line, ascii_only, line_sequences, style_sequences
from neurontools.tui.widgets.start_screen import StartScreen, hinted_dark, may_be_asked
from neurontools.tui.widgets.theme import ADAPTING, MONOCHROME, theme_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.tui.top.settings import TopSettings

_FIRST_UPDATE_S = 0.1
_ANSWER_S = 0.01


def show_first_frame(
    screen: StartScreen,
    reader: UpdateReader,
    settings: TopSettings,
    *,
    source: str,
    colour: bool,
    process_filter: str,
) -> None:
    """Draw the first page with the first update, or without if none comes soon; nothing where only Textual can.

    Args:
        screen: the terminal.
        reader: of the source, one live machine; it is started.
        settings: of the user.
        source: its name.
        colour: False draws without any colour.
        process_filter: initial filter of the process page.
    """
    needs_textual = settings.theme in TEXTUAL_THEMES
    if needs_textual or too_small(*shutil.get_terminal_size()) or not screen.open():
        return
    asks = colour and settings.theme in ADAPTING and may_be_asked(os.environ)
    if asks:
        screen.ask_background()
    reader.start()
    system = _colour_system()
    model = TopModel(colour=colour, source=source, monitor=MachineMonitor(settings.rules))
    first = reader.first(_FIRST_UPDATE_S)
    if isinstance(first, TimedSnapshot | SourceProblem):
        model.update(first)
    lines = _lines(model, settings, process_filter)
    if asks:
        screen.wait_for_background(_ANSWER_S)
    dark = hinted_dark(os.environ) if screen.is_dark is None else screen.is_dark
    theme = theme_for(settings.theme, dark=dark) if colour else MONOCHROME
    begins = style_sequences(theme.backed_styles, system)
    text = "".join(
        [f"\x1b[{y};1H{line_sequences(line, begins)}" for y, line in enumerate(lines, 1)],
    )
    screen.draw(ascii_only(text) if settings.ascii else text)


def _colour_system() -> ColorSystem:
    # As Textual's own console: the name of its setting, full colour where nothing is known.
    wanted: Any = os.environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    name = Console(force_terminal=True, color_system=wanted).color_system
    return COLOR_SYSTEMS[name] if name else ColorSystem.TRUECOLOR


def _lines(model: TopModel, settings: TopSettings, process_filter: str) -> Iterator[Line]:
    pages = make_pages(PageOptions(settings.columns, process_filter=process_filter))
    size = shutil.get_terminal_size()
    frame = whole_frame(
        pages, pages.named(settings.page), model, size, settings.keys, classic=settings.classic
    )
    return chain.from_iterable(frame.values())
