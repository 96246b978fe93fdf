"""Keys of neuron-top: those of every page, and the names by which users rebind all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from neurontools.base.text import suggest
from neurontools.tui.names import PAGE_NAMES, shown_key
from neurontools.tui.top.pages.registry import make_pages, page_class

if TYPE_CHECKING:
    from collections.abc import Mapping

TIME_KEYS = [
    Binding("space", "playback('toggle_pause')", "pause or continue", id="pause"),
    Binding("left_square_bracket", "playback('step', -1)", "one snapshot back", id="step-back"),
    Binding("right_square_bracket", "playback('step', 1)", "one snapshot forward", id="step-forward"),
    Binding("left_curly_bracket", "playback('seek', -60)", "a minute back", id="minute-back"),
    Binding("right_curly_bracket", "playback('seek', 60)", "a minute forward", id="minute-forward"),
    Binding("left_parenthesis", "playback('go_to_start')", "go to the oldest snapshot", id="oldest-snapshot"),
    Binding("right_parenthesis", "playback('go_to_end')", "follow the newest snapshot", id="newest-snapshot"),
    Binding("minus", "playback('change_speed', -1)", "slow down a replay", id="slower"),
    Binding("plus,equals_sign", "playback('change_speed', 1)", "speed up a replay", id="faster"),
]
"""Keys that work on every page."""


INTERRUPTED = 130

ANYWHERE = [
    Binding("q", "exit(0)", "quit", id="quit"),
    Binding("ctrl+c", f"exit({INTERRUPTED})", "quit with exit code 130", priority=True, id="interrupt"),
    Binding("ctrl+z", "suspend_process", "suspend to the shell (fg resumes)", id="suspend"),
    Binding("question_mark", "help", "this help", id="help"),
    Binding("ctrl+p", "command_palette", "command palette", id="palette"),
    Binding("ctrl+s", "save_svg", "save the screen as SVG", id="save-svg"),
    Binding("ctrl+t", "next_theme", "next theme", id="next-theme"),
    *(
        Binding(f"f{number},{page_class(name).letter}", f"page('{name}')", f"page {name}", id=f"page-{name}")
        for number, name in enumerate(PAGE_NAMES, 1)
    ),
    *TIME_KEYS,
]
"""Keys that work on every page."""

MACHINE_KEYS = [
    Binding("f6,m", "page('machines')", "all machines", id="page-machines"),
    Binding("n", "turn_machine(1)", "next machine", id="next-machine"),
    Binding("b", "turn_machine(-1)", "previous machine", id="previous-machine"),
]
"""Keys that are active if several machines are shown."""

CLASSIC = [
    Binding("up,k", "tree('move', -1)", "select a row of the memory tree", id="overview.up"),
    Binding("down,j", "tree('move', 1)", "select a row of the memory tree", id="overview.down"),
    Binding("pageup", "tree('move', -10)", "ten rows up", id="overview.page-up"),
    Binding("pagedown", "tree('move', 10)", "ten rows down", id="overview.page-down"),
    Binding("home", "tree('move', -1000000)", "first row", id="overview.first"),
    Binding("end", "tree('move', 1000000)", "last row", id="overview.last"),
    Binding("left", "tree('collapse')", "collapse the row, or step out", id="overview.collapse"),
    Binding("right", "tree('expand')", "expand the row, or step in", id="overview.expand"),
    Binding("enter", "tree('toggle')", "expand or collapse the row", id="overview.toggle"),
    Binding("x", "tree('toggle_all')", "expand or collapse the entire tree", id="overview.toggle-all"),
    Binding("a", "model('step_tab', -1)", "previous tab", id="overview.previous-tab"),
    Binding("d", "model('step_tab', 1)", "next tab", id="overview.next-tab"),
    Binding("c", "classic", "the real neuron-top's screen, or the dashboard", id="overview.classic"),
    Binding("f,F", "model('toggle_flops')", "FLOPS instead of utilization", id="overview.flops"),
    *(
        Binding(
            str(number), f"model('go_to_tab', {number - 1})", f"tab {number}", id=f"overview.tab-{number}"
        )
        for number in range(1, 10)
    ),
]
"""Keys of the classic page, those of the real neuron-top first (AWS Neuron documentation, neuron-top user guide)."""

CLASSIC_ACTIONS = frozenset({"tree", "model", "classic"})
"""What the keys of the classic page do; nothing on the other pages."""


def key_names() -> list[tuple[str, str, str]]:
    """Return name, keys (with commas between them) and meaning of every key, those for every page first."""
    from neurontools.tui.top.pages.machines import MachinesPage

    bindings = (*ANYWHERE, *MACHINE_KEYS, *CLASSIC)
    found = [(binding.id or "", binding.key, binding.description) for binding in bindings]
    for page in (*make_pages(), MachinesPage(())):
        found += [(f"{page.name}.{key.name}", key.keys, key.text) for key in page.bindings()]
    return found


def key_problems(overrides: Mapping[str, str], *, several: bool = False) -> tuple[str, ...]:
    """Return a warning for every unknown name, and for every key that loses its usual meaning.

    Args:
        overrides: keys by name, as set in the configuration.
        several: whether several machines are shown, whose keys are then active.
    """
    if not overrides:
        return ()
    known = {name: keys.split(",") for name, keys, _ in key_names()}
    lines = []
    for name in overrides:
        if name not in known:
            match = suggest(name, known)
            hint = f"did you mean {match!r}?" if match else "'neuron-top --list-keys' shows the names"
            lines.append(f"top: keys: unknown key name {name!r}; {hint}")
    ours = {binding.id for binding in MACHINE_KEYS}
    inactive = set() if several else {name for name in known if name in ours or name.startswith("machines.")}
    for name in overrides.keys() & known.keys() - inactive:
        for taken_name, keys in known.items():
            if taken_name in inactive:
                continue
            lost = set(overrides[name].split(",")) & set(overrides.get(taken_name, ",".join(keys)).split(","))
            if taken_name != name and lost and _meet(name, taken_name):
                shown = " and ".join(sorted(map(shown_key, lost)))
                lines.append(
                    f"top: keys: {shown} of {name!r} is already the key of {taken_name!r}, which loses it"
                )
    return tuple(lines)


def _meet(first: str, second: str) -> bool:
    """Return whether two keys are active on the same page."""
    pages = {name.partition(".")[0] if "." in name else "" for name in (first, second)}
    return "" in pages or len(pages) == 1
