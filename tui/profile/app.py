"""The profile viewer: pages about a trace in the terminal; the library does all computing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher

from neurontools.base import units
from neurontools.base.text import plural, printable
from neurontools.tui.names import AUTO
from neurontools.tui.profile.compare_page import ComparePage
from neurontools.tui.profile.memory_page import MemoryPage
from neurontools.tui.profile.operators import OperatorsPage, RooflinePage
from neurontools.tui.profile.overview import ProfileOverviewPage
from neurontools.tui.profile.page import ProfilePage
from neurontools.tui.profile.ranks_page import RanksPage
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.profile.timeline_page import TimelinePage
from neurontools.tui.profile.tree_page import SourcePage, TreePage
from neurontools.tui.widgets.chrome import head_line, pages_line, small_screen
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.screens import PromptScreen, TextScreen, key_rows
from neurontools.tui.widgets.theme import MONOCHROME
from neurontools.tui.widgets.themed_app import ThemedApp

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.profile.page import PromptRequested, ShowEvent
    from neurontools.tui.widgets.chrome import ChromeLine
    from neurontools.tui.widgets.theme import Theme


_PAGES: dict[str, type[TimelinePage | ProfilePage]] = {
    "overview": ProfileOverviewPage,
    "timeline": TimelinePage,
    "operators": OperatorsPage,
    "tree": TreePage,
    "roofline": RooflinePage,
    "memory": MemoryPage,
    "ranks": RanksPage,
    "source": SourcePage,
    "compare": ComparePage,
}
PAGE_NAMES = tuple(_PAGES)
PAGE_TITLES = tuple(page.title for page in _PAGES.values())


def make_page(name: str, trace: Trace, look: Theme, other: Trace | None = None) -> TimelinePage | ProfilePage:
    """Return a new page; `other` is the profile to compare with."""
    options = {"other": other} if name == "compare" else {}
    return _PAGES[name](trace, look, id=name, **options)


FIRST_PAGE = "timeline"
SMALLEST = (60, 12)
_HINTS = (("?", "help"), ("^p", "palette"), ("q", "quit"))


class ProfileApp(ThemedApp):
    """Pages about one trace.

    Args:
        trace: what is shown.
        other: a profile to compare it with.
        theme: name of a theme, or "auto".
    """

    TITLE = "neuron-profile"
    CSS = """
    Screen:ansi { background: ansi_default; }
    ContentSwitcher { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                f"f{number},{number % 10}", f"tab('{name}')", name, key_display=f"F{number} {number % 10}"
            )
            for number, name in enumerate(PAGE_NAMES, 1)
        ),
        Binding("ctrl+s,e", "save_svg", "save the screen as SVG", key_display="ctrl+s e"),
        Binding("ctrl+z", "suspend_process", "suspend to the shell (fg resumes)"),
        Binding("ctrl+t", "next_theme", "next theme"),
        Binding("ctrl+p", "command_palette", "command palette"),
        Binding("question_mark", "keys", "help", key_display="?"),
        Binding("q", "exit(0)", "quit"),
        Binding("ctrl+c", "exit(130)", "quit with exit code 130", show=False, priority=True),
    ]

    def __init__(self, trace: Trace, other: Trace | None = None, *, theme: str = AUTO) -> None:
        super().__init__(theme=theme)
        self._other = other
        self._trace = trace
        if self.no_color:
            self.look = MONOCHROME
        self._shown = FIRST_PAGE

    def compose(self) -> ComposeResult:
        """Make the pages between the line of tabs and the line of keys."""
        yield LinePane(self.look.styles, id="head")
        with ContentSwitcher(initial=FIRST_PAGE):
            for name in PAGE_NAMES:
                yield make_page(name, self._trace, self.look, self._other)
        yield LinePane(self.look.styles, id="foot")

    def on_mount(self) -> None:
        """Start in the timeline."""
        self.apply_theme(self.look)
        self.action_tab(FIRST_PAGE)

    def on_resize(self) -> None:
        """Draw the lines at the new width, once the app knows it."""
        self.call_later(self._paint)

    def on_click(self, event: events.Click) -> None:
        """Show the page whose name is clicked."""
        is_on_line = event.screen_y in {0, self.size.height - 1}
        if len(self.screen_stack) > 1 or self._is_small or not is_on_line:
            return
        line = self._head() if event.screen_y == 0 else self._foot()
        position = line.at(event.screen_x)
        if position is not None:
            self.action_tab(PAGE_NAMES[position])

    def action_tab(self, name: str) -> None:
        """Show a page and give it the keys."""
        self._shown = name
        self.screen_stack[0].query_one(ContentSwitcher).current = name
        self.page(name).take_keys()
        self._paint()

    def page(self, name: str) -> TimelinePage | ProfilePage:
        """Return a page."""
        page: TimelinePage | ProfilePage = self.screen_stack[0].query_one(f"#{name}")  # type: ignore[assignment]
        return page

    @property
    def timeline(self) -> TimelineView:
        """The timeline."""
        return self.screen_stack[0].query_one(TimelineView)

    def on_show_event(self, message: ShowEvent) -> None:
        """Show an event in the timeline."""
        self.action_tab(FIRST_PAGE)
        self.timeline.action_change("show_closely", message.event)

    def apply_theme(self, theme: Theme) -> None:
        """Change the colours of the pages too."""
        super().apply_theme(theme)
        for view in self.screen_stack[0].query(TimelineView):
            view.restyle(theme)
        for page in self.screen_stack[0].query(ProfilePage):
            page.look = theme

    def _head(self) -> ChromeLine:
        state = f"{plural(self._trace.event_count, 'event')}, {units.format_ns(self._trace.end_ns)}"
        current = PAGE_NAMES.index(self._shown)
        return head_line("neuron-profile", PAGE_TITLES, current, self.size.width, state=state)

    def _foot(self) -> ChromeLine:
        return pages_line(PAGE_TITLES, PAGE_NAMES.index(self._shown), _HINTS, self.size.width)

    @property
    def _is_small(self) -> bool:
        return self.size.width < SMALLEST[0] or self.size.height < SMALLEST[1]

    def _paint(self) -> None:
        is_small = self._is_small
        pages = self.screen_stack[0].query_one(ContentSwitcher)
        if pages.display is is_small:
            pages.display = not is_small
            # A page that is hidden loses the keys.
            self.call_after_refresh(self.page(self._shown).take_keys)
        small = small_screen("neuron-profile", SMALLEST, self.size)
        head = small if is_small else (self._head().line,)
        foot = () if is_small else (self._foot().line,)
        for name, lines in (("head", head), ("foot", foot)):
            for pane in self.screen_stack[0].query(f"#{name}").results(LinePane):
                pane.show(lines)

    def action_keys(self) -> None:
        """Show every key: of the page, then of all pages."""
        page = self.page(self._shown)
        own = TimelineView.BINDINGS if isinstance(page, TimelinePage) else page.key_bindings()
        self.show_help(
            (f"Keys of this page: {self._shown}", key_rows(own)),
            ("Keys on every page", key_rows(self.BINDINGS)),
        )

    def on_prompt_requested(self, message: PromptRequested) -> None:
        """Ask for a line of text."""
        self.push_screen(PromptScreen(message.prompt, self.look, lambda: None), message.on_answer)

    def on_timeline_view_details_requested(self) -> None:
        """Show the details of an event over the page, where they are not beside it."""
        page = self.page(FIRST_PAGE)
        if not isinstance(page, TimelinePage) or page.is_wide:
            return
        rows = page.details()
        width = max(len(name) for name, _ in rows)
        text = "\n".join(f"{name.ljust(width)}  {printable(value)}" for name, value in rows)
        self.push_screen(TextScreen("Event", text))
