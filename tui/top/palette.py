"""The command palette of neuron-top: pages, themes and all keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import CommandPalette, DiscoveryHit, Hit, Provider
from textual.errors import NoWidget

from neurontools.tui.names import TEXTUAL_THEMES, THEME_NAMES
from neurontools.tui.top.page_actions import PageActions
from neurontools.tui.widgets.theme import meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual import events
    from textual.command import Hits

_ELSEWHERE = frozenset({"exit(130)", "suspend_process", "command_palette"})


class TopCommands(Provider):
    """Finds commands by their text."""

    async def discover(self) -> Hits:
        """Yield all commands, before anything is typed."""
        for text, help_text, run in self._commands():
            yield DiscoveryHit(text, run, help=help_text)

    async def search(self, query: str) -> Hits:
        """Yield matching commands."""
        matcher = self.matcher(query)
        for text, help_text, run in self._commands():
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(text), run, help=help_text)

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        app = self.app
        if not isinstance(app, PageActions):
            return
        for page in app.pages:
            yield f"page: {page.title}", "switch to this page", partial(app.action_page, page.name)
        for name in (*THEME_NAMES, *TEXTUAL_THEMES):
            yield f"theme: {name}", meaning_of(name), partial(app.use_theme, name)
        for key in app.page.bindings():
            yield f"{app.page.title}: {key.text}", f"key {key.keys}", partial(app.action_page_key, key.name)
        for name, binding in app.screen_stack[0].active_bindings.items():
            own = binding.binding
            if (
                binding.node is app
                and own.id
                and own.action not in _ELSEWHERE
                and not own.action.startswith("page(")
            ):
                yield own.description, f"key {name}", partial(app.run_action, own.action)


class TopPalette(CommandPalette):
    """Textual's palette, but robust against clicks outside a terminal that has shrunk."""

    def on_click(self, event: events.Click) -> None:
        """Ignore a click outside the screen."""
        try:
            self.get_widget_at(int(event.screen_x), int(event.screen_y))
        except NoWidget:
            event.prevent_default()
