"""The keys of neuron-top that are not a page's own, and who may be bound anew."""

from __future__ import annotations

from textual.binding import Binding

from neurontools.tui.top.names import PAGE_LETTERS, PAGE_NAMES
from neurontools.tui.top.playback.keys import TIME_KEYS

INTERRUPTED = 130

ANYWHERE = [
    Binding("q", "exit(0)", "quit", id="quit"),
    Binding("ctrl+c", f"exit({INTERRUPTED})", "quit with exit code 130", priority=True, id="interrupt"),
    Binding("ctrl+z", "suspend_process", "back to the shell for a while (fg)", id="suspend"),
    Binding("question_mark", "help", "this help", id="help"),
    Binding("ctrl+s", "save_svg", "save the screen as SVG", id="save-svg"),
    Binding("ctrl+t", "next_theme", "next theme", id="next-theme"),
    *(
        Binding(f"f{number},{PAGE_LETTERS[name]}", f"page('{name}')", f"page {name}", id=f"page-{name}")
        for number, name in enumerate(PAGE_NAMES, 1)
    ),
    *TIME_KEYS,
]
"""Keys that work on every page."""

CLASSIC = [
    Binding("up", "move(-1)", "select a row of the memory tree", id="overview.up"),
    Binding("down", "move(1)", "select a row of the memory tree", id="overview.down"),
    Binding("pageup", "move(-10)", "ten rows up", id="overview.page-up"),
    Binding("pagedown", "move(10)", "ten rows down", id="overview.page-down"),
    Binding("home", "move(-1000000)", "first row", id="overview.first"),
    Binding("end", "move(1000000)", "last row", id="overview.last"),
    Binding("left", "collapse", "collapse the row, or step out", id="overview.collapse"),
    Binding("right", "expand", "expand the row, or step in", id="overview.expand"),
    Binding("enter", "toggle_row", "expand or collapse the row", id="overview.toggle"),
    Binding("x", "toggle_all", "expand or collapse the entire tree", id="overview.toggle-all"),
    Binding("a", "step_tab(-1)", "previous tab", id="overview.previous-tab"),
    Binding("d", "step_tab(1)", "next tab", id="overview.next-tab"),
    Binding("f,F", "flops", "FLOPS instead of utilization", id="overview.flops"),
    *(
        Binding(str(number), f"tab({number})", f"tab {number}", id=f"overview.tab-{number}")
        for number in range(1, 10)
    ),
]
"""Keys of the classic page, those of the real neuron-top first (system-tools.md section 2.3)."""

CLASSIC_ACTIONS = frozenset(
    {"move", "collapse", "expand", "toggle_row", "toggle_all", "step_tab", "flops", "tab"}
)
"""What the keys of the classic page do; nothing on the other pages."""
