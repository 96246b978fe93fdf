"""Mixins of the app: switch pages, themes and machines, carry out the requests of pages, and the command palette."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding, BindingsMap
from textual.command import DiscoveryHit, Hit, Hits, Provider

from neurontools.tui.top.layout import MIN_HEIGHT
from neurontools.tui.top.screen import CLASSIC_PANES
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.requests import Choose, Copy, Notice, Prompt, Request
from neurontools.tui.widgets.themed_app import ThemedApp, theme_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.style import Style

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page, Pages
    from neurontools.tui.top.pages.machines import MachinesPage
    from neurontools.tui.top.playback import MonitoredMachine, PlaybackController
    from neurontools.tui.top.settings import TopSettings
    from neurontools.tui.widgets.lines import Line, Role


# With -w (tmux 3.2) tmux also passes it to its own terminal; older versions keep it in their buffer.
_WAYS = (("load-buffer", "-w", "-"), ("load-buffer", "-"))

_NOTES = (
    "Utilization: share of wall time in which a core executed.",
    "FLOPS: from the cost model of the executed models.",
    "Click to select, click again to open; the wheel scrolls.",
    "~ and 'modelled': values of a scenario's processes.",
)


class PagePane(LinePane, can_focus=True):
    """The pane of a page: shows its lines and takes its keys, which the app runs.

    Args:
        page: the page.
        styles_by_role: the style of every role.
    """

    def __init__(self, page: Page, styles_by_role: Mapping[Role, Style]) -> None:
        super().__init__(styles_by_role, id=f"page-{page.name}")
        self.page = page
        self.display = False
        self._bindings = BindingsMap(
            Binding(name, f"app.page_key('{key.name}')", key.text, id=f"{page.name}.{key.name}")
            for key in page.bindings()
            for name in key.keys.split(",")
        )


def _describe(binding: Binding) -> tuple[str, str]:
    """Return text and key of a binding for the help; similar bindings get the same text."""
    if ".tab-" in (binding.id or ""):
        return "tab by its number", binding.key
    if ".sort-" in (binding.id or "") and binding.key.isupper():
        return "sort by that column; again: reverse", "letter in head"
    return binding.description, binding.key


async def copy_into_tmux(text: str) -> bool:
    """Copy a text into tmux's newest buffer and the outer terminal's clipboard; return whether tmux accepted it."""
    for arguments in _WAYS:
        try:
            tmux = await asyncio.create_subprocess_exec(
                "tmux", *arguments, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
            )
        except OSError:
            return False
        await tmux.communicate(text.encode())
        if tmux.returncode == 0:
            return True
    return False


class PageActions(ThemedApp):
    """Actions of pages; `paint` shows the changed model."""

    model: TopModel
    pages: Pages
    page: Page
    settings: TopSettings

    @property
    def is_ascii(self) -> bool:
        """Whether only ASCII is drawn."""
        return self.settings.ascii

    panes: tuple[LinePane, ...] = ()
    """Title, pages that were shown, and bottom bar."""
    shows_classic = False
    """Whether the overview is the real tool's screen."""

    @property
    def is_overview(self) -> bool:
        """Whether the page is the overview."""
        return self.page.name == self.pages.names[0]

    @property
    def is_classic(self) -> bool:
        """Whether the real tool's screen is shown."""
        return self.shows_classic and self.is_overview

    def action_classic(self) -> None:
        """Show the real tool's screen as the overview, or the dashboard again."""
        self.shows_classic = not self.shows_classic
        self.turn_to(self.page)

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def turn_to(self, page: Page) -> None:
        """Show a page and focus it."""
        self.page = page
        screen = self.screen_stack[0]
        screen.set_focus(None)
        if missing := self.missing_panes():
            screen.mount(*missing, before="#bottom")
        for pane in screen.query(PagePane):
            pane.display = pane.page is page and not self.is_classic
            if pane.page is page and not self.is_overview:
                screen.set_focus(pane)
        self.panes = tuple(screen.query(LinePane))
        self.paint()

    def missing_panes(self) -> tuple[LinePane, ...]:
        """Return new panes for the page if it was never shown."""
        known = {pane.id for pane in self.screen_stack[0].query(LinePane)}
        if not self.is_classic:
            pane = PagePane(self.page, self.look.styles)
            return () if pane.id in known else (pane,)
        return tuple(LinePane(self.look.styles, id=name) for name in CLASSIC_PANES if name not in known)

    def carry_out(self, request: Request | None) -> None:
        """Carry out the request of a page."""
        match request:
            case Notice():
                severity = "error" if request.problem else "information"
                self.notify(request.text, severity=severity, markup=False)  # type: ignore[arg-type]
            case Copy():
                self._copy(request)
            case Prompt():
                from neurontools.tui.widgets.screens import PromptScreen

                self.push_screen(PromptScreen(request, self.look, self.paint))
            case Choose():
                from neurontools.tui.widgets.screens import ChooseScreen

                self.push_screen(
                    ChooseScreen(request, self.look),
                    lambda at: None if at is None else self._take(request.on_choice(at)),
                )

    def action_page(self, name: str) -> None:
        """Switch to a page by name."""
        self.turn_to(self.pages.named(name))

    def action_page_key(self, name: str) -> None:
        """Run a key of the page, unless the page has changed since it was pressed."""
        key = next((key for key in self.page.bindings() if key.name == name), None)
        if key is not None:
            self._take(key.run(self.model))

    def action_help(self) -> None:
        """Show the keys of the page, and those of every page."""
        from neurontools.tui.widgets.screens import key_rows

        named = [found.binding for found in self.screen_stack[0].active_bindings.values() if found.binding.id]
        name = self.page.name
        own = [binding for binding in named if (binding.id or "").startswith(f"{name}.")]
        anywhere = [binding for binding in named if "." not in (binding.id or "")]
        self.show_help(
            (f"Keys of this page: {name}", key_rows(own, _describe)),
            ("Keys on every page", key_rows(anywhere, _describe)),
            notes=_NOTES,
        )

    def _copy(self, request: Copy) -> None:
        self.copy_to_clipboard(request.text)
        if os.environ.get("TMUX"):
            self.run_worker(self._copy_into_tmux(request))
        else:
            self.notify(f"copied {request.what} (if the terminal allows it)", markup=False)

    async def _copy_into_tmux(self, request: Copy) -> None:
        where = "into tmux's buffer too" if await copy_into_tmux(request.text) else "if tmux allows it"
        self.notify(f"copied {request.what} ({where})", markup=False)

    def _take(self, request: Request | None) -> None:
        self.carry_out(request)
        self.paint()


class MachineActions(PageActions):
    """Mixin of the app: switches between several machines."""

    machines: tuple[MonitoredMachine, ...]
    """All machines; empty if there is only one."""
    machine = 0
    """Index of the current machine."""
    playback: PlaybackController

    def turn_to_machine(self, index: int) -> None:
        """Show a machine on the current page, or on the overview instead of the list."""
        self.machine = index
        self.model, self.playback = self.machines[index].model, self.machines[index].playback
        self.machines_page.select(index)
        if self.lists_machines:
            self.turn_to(self.pages[0])
        self.paint()

    def strip(self, width: int, height: int) -> tuple[Line, ...]:
        """Return the machine bar; nothing for one machine, or in a terminal without a spare line."""
        if not self.machines or height <= MIN_HEIGHT:
            return ()
        from neurontools.tui.top.pages.machines import format_machine_bar

        return (format_machine_bar(self.machines, self._shown_machine, width),)

    def click_strip(self, x: int) -> None:
        """Switch to the machine, or the list of all, at a column of the bar."""
        from neurontools.tui.top.pages.machines import choice_at

        match choice_at(self.machines, self._shown_machine, self.size.width, x):
            case (None,):
                self.turn_to(self.machines_page)
            case (int(index),):
                self.turn_to_machine(index)

    @property
    def _shown_machine(self) -> int | None:
        return None if self.lists_machines else self.machine

    @property
    def lists_machines(self) -> bool:
        """Whether the page is the list of all machines."""
        return bool(self.machines) and self.page.name == self.pages.names[-1]

    @property
    def machines_page(self) -> MachinesPage:
        """The page that lists them, the last one."""
        page: MachinesPage = self.pages[-1]  # type: ignore[assignment]
        return page

    def action_turn_machine(self, steps: int) -> None:
        """Show the next or previous machine, around the ends."""
        if self.machines:
            self.turn_to_machine((self.machine + steps) % len(self.machines))


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
