"""Mixins for the apps of full-screen programs: a queue of keys, themes, and the command palette.

Textual delivers a key to the widget that has the focus when the key is read. Input right after a key that
changes the page or opens a prompt would go to the wrong widget, or nowhere.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message

from neurontools.tui.names import AUTO, TEXTUAL_THEMES, THEME_NAMES, shown_key
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.start_screen import QUESTION, hinted_dark, may_be_asked
from neurontools.tui.widgets.terminal_driver import AdaptiveApp, TerminalDriver
from neurontools.tui.widgets.theme import ADAPTING, MONOCHROME, Theme, meaning_of, theme_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.screen import Screen

    from neurontools.tui.widgets.screens import HelpRows


# A key may post messages, such as a submitted prompt; the second lap comes after them.
_LAPS = 2
# A message to a widget that was removed never arrives.
_LONGEST_LAP_S = 0.5


class KeyQueue(App[int]):
    """Delivers keys and pastes one after the other."""

    class Passed(Message, bubble=True):
        """Follows a key, from the widget that received it up to the app.

        Args:
            lap: number of this run.
        """

        def __init__(self, lap: int) -> None:
            super().__init__()
            self.lap = lap

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._typed: deque[events.Key | events.Paste] = deque()
        self._lap: KeyQueue.Passed | None = None
        self._lap_end: asyncio.TimerHandle | None = None

    @property
    def has_keys(self) -> bool:
        """Whether any input is still being processed."""
        return self._lap is not None

    async def on_event(self, event: events.Event) -> None:
        """Queue keys and pastes; Textual handles all other events."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        if self._lap is None:
            await self._hand_on()

    async def on_key_queue_passed(self, passed: Passed) -> None:
        """Deliver the next key once the current one is fully processed."""
        if passed is not self._lap:
            return
        if passed.lap < _LAPS:
            self._run(passed.lap + 1)
        else:
            await self._hand_on()

    async def _hand_on(self) -> None:
        self._end_lap()
        if self._typed:
            await super().on_event(self._typed.popleft())
            self._run(1)

    def _run(self, lap: int) -> None:
        self._end_lap()
        self._lap = self.Passed(lap)
        self._lap_end = asyncio.get_running_loop().call_later(_LONGEST_LAP_S, self._give_up, self._lap)
        (self.focused or self.screen).post_message(self._lap)

    def _end_lap(self) -> None:
        self._lap = None
        if self._lap_end is not None:
            self._lap_end.cancel()

    def _give_up(self, lap: Passed) -> None:
        lap.lap = _LAPS
        self.post_message(lap)


_LEFT_OUT = frozenset({"command_palette", "suspend_process"})


class ThemedApp(AdaptiveApp, App[int]):
    """Draws its panes in one of our themes; its command palette offers every key and every theme.

    Args:
        theme: name of a theme, or "auto".
        colour: False draws without any colour.
        dark: whether the terminal is dark; None if it is not known yet.
        options: of Textual's app.
    """

    def __init__(
        self, *, theme: str = AUTO, colour: bool = True, dark: bool | None = None, **options: Any
    ) -> None:
        super().__init__(driver_class=TerminalDriver, **options)
        self.theme_name = theme
        self.is_dark = hinted_dark(os.environ) if dark is None else dark
        self.look = theme_for(theme, dark=self.is_dark) if colour else MONOCHROME
        """The theme; the monochrome one stays, as the user wants no colours."""

    def on_mount(self) -> None:
        """Draw everything again when the program continues after a stop: the terminal is empty then."""
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    @property
    def follows_background(self) -> bool:
        """Whether the theme depends on the terminal's background."""
        return self.look is not MONOCHROME and self.theme_name in ADAPTING

    def ask_background(self) -> None:
        """Query the terminal's background if the theme depends on it; `set_background` gets the answer."""
        if self._driver is not None and self.follows_background and may_be_asked(os.environ):
            self._driver.write(QUESTION)

    def set_background(self, dark: bool) -> None:
        """Apply the variant for the terminal's background, if the theme is adaptive."""
        self.is_dark = dark
        theme = theme_for(self.theme_name, dark=dark)
        if self.follows_background and theme is not self.look:
            self.apply_theme(theme)

    def get_system_commands(self, screen: Screen[object]) -> Iterator[SystemCommand]:  # noqa: ARG002
        """Yield what the command palette offers."""
        yield from key_commands(self, self.BINDINGS)
        yield from theme_commands(self.use_theme)

    def action_command_palette(self) -> None:
        """Show the palette."""
        from neurontools.tui.widgets.screens import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def show_help(self, *groups: tuple[str, HelpRows], notes: Sequence[str] = ()) -> None:
        """Show keys in groups, each with a title."""
        from neurontools.tui.widgets.screens import HelpScreen

        self.push_screen(HelpScreen(self.look, groups, notes))

    def action_exit(self, code: int) -> None:
        """End the app with an exit code."""
        self.exit(code)

    def action_save_svg(self) -> None:
        """Save the screen as an SVG picture in the working directory."""
        try:
            path = self.save_screenshot()
        except OSError as error:
            self.notify(f"cannot save the screen: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"saved {path}", markup=False)

    def use_theme(self, name: str) -> None:
        """Switch to a theme by name."""
        if self.look is MONOCHROME:
            self.notify("colours are off (NO_COLOR)", markup=False)
            return
        self.theme_name = name
        self.apply_theme(theme_for(name, dark=self.is_dark))
        self.notify(f"theme {name}: {meaning_of(name)}", markup=False)
        self.ask_background()

    def action_next_theme(self) -> None:
        """Switch to the next theme."""
        self.use_theme(next_theme(self.theme_name, THEME_NAMES))

    def apply_theme(self, theme: Theme) -> None:
        """Change the colours of the first screen and its panes."""
        self.look = theme
        screen = self.screen_stack[0]
        if theme is not MONOCHROME:
            self.theme = theme.textual or ("textual-dark" if theme.dark else "textual-light")
            screen.styles.background = theme.background
        for pane in screen.query(LinePane):
            pane.restyle(theme.styles)


def next_theme(name: str, names: Sequence[str]) -> str:
    """Return the name after one, around the end; the first after a name that is not among them."""
    at = names.index(name) if name in names else -1
    return names[(at + 1) % len(names)]


def key_commands(app: App[int], *groups: Sequence[BindingType]) -> Iterator[SystemCommand]:
    """Yield a command for every key that has a description.

    Args:
        app: runs the actions.
        groups: the bindings.
    """
    for group in groups:
        for binding in group:
            if isinstance(binding, Binding) and binding.description and binding.action not in _LEFT_OUT:
                key = shown_key(binding.key.partition(",")[0])
                yield SystemCommand(
                    binding.description, f"key {key}", partial(app.run_action, binding.action)
                )


def theme_commands(use: Callable[[str], None]) -> Iterator[SystemCommand]:
    """Yield a command for every theme.

    Args:
        use: shows a theme by its name.
    """
    for name in (*THEME_NAMES, *TEXTUAL_THEMES):
        yield SystemCommand(f"theme: {name}", meaning_of(name), partial(use, name))
