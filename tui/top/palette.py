"""The command palette of neuron-top: pages, themes and all keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.command import DiscoveryHit, Hit, Provider

from neurontools.tui.top.page_actions import PageActions
from neurontools.tui.widgets.themed_app import theme_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.command import Hits

_ELSEWHERE = frozenset({"exit(130)", "suspend_process", "command_palette"})


class TopCommands(Provider):
    """Finds commands by their text."""

    async def discover(self) -> Hits:
        """Yield all commands, before anything is typed."""
        for command in self._commands():
            yield DiscoveryHit(command.title, command.callback, help=command.help)

    async def search(self, query: str) -> Hits:
        """Yield matching commands."""
        matcher = self.matcher(query)
        for command in self._commands():
            score = matcher.match(command.title)
            if score > 0:
                yield Hit(score, matcher.highlight(command.title), command.callback, help=command.help)

    def _commands(self) -> Iterator[SystemCommand]:
        app = self.app
        if not isinstance(app, PageActions):
            return
        for name, title in zip(app.pages.names, app.pages.titles, strict=True):
            yield SystemCommand(f"page: {title}", "switch to this page", partial(app.action_page, name))
        yield from theme_commands(app.use_theme)
        for key in app.page.bindings():
            run = partial(app.action_page_key, key.name)
            yield SystemCommand(f"{app.page.title}: {key.text}", f"key {key.keys}", run)
        for name, binding in app.screen_stack[0].active_bindings.items():
            own = binding.binding
            if (
                binding.node is app
                and own.id
                and own.action not in _ELSEWHERE
                and not own.action.startswith("page(")
            ):
                yield SystemCommand(own.description, f"key {name}", partial(app.run_action, own.action))
