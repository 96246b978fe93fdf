"""All keys by the names that the configuration gives them, and what is wrong with what it binds anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.top.keys import ANYWHERE, CLASSIC
from neurontools.tui.top.machines.actions import MACHINE_KEYS
from neurontools.tui.top.machines.page import MachinesPage
from neurontools.tui.top.names import shown_key
from neurontools.tui.top.pages.columns import DEFAULT_COLUMNS
from neurontools.tui.top.pages.registry import make_pages

if TYPE_CHECKING:
    from collections.abc import Mapping


def key_names() -> list[tuple[str, str, str]]:
    """Return name, keys (with commas between them) and meaning of every key, those for every page first."""
    bindings = (*ANYWHERE, *MACHINE_KEYS, *CLASSIC)
    found = [(binding.id or "", binding.key, binding.description) for binding in bindings]
    for page in (*make_pages(DEFAULT_COLUMNS), MachinesPage(())):
        found += [(f"{page.name}.{key.name}", key.keys, key.text) for key in page.bindings()]
    return found


def key_troubles(wishes: Mapping[str, str], *, several: bool = False) -> tuple[str, ...]:
    """Return a line for every name that nothing has, and for every key that loses its usual meaning.

    Args:
        wishes: keys by name, as the configuration binds them.
        several: several machines are shown, so that their keys have a meaning.
    """
    if not wishes:
        return ()
    from difflib import get_close_matches

    known = {name: keys.split(",") for name, keys, _ in key_names()}
    lines = []
    for name in wishes:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "'neuron-top --list-keys' shows the names"
            lines.append(f"top: keys: nothing is called {name!r}; {hint}")
    ours = {binding.id for binding in MACHINE_KEYS}
    asleep = set() if several else {name for name in known if name in ours or name.startswith("machines.")}
    for name in wishes.keys() & known.keys() - asleep:
        for other, keys in known.items():
            if other in asleep:
                continue
            lost = set(wishes[name].split(",")) & set(wishes.get(other, ",".join(keys)).split(","))
            if other != name and lost and _meet(name, other):
                shown = " and ".join(sorted(map(shown_key, lost)))
                lines.append(f"top: keys: {shown} of {name!r} is also that of {other!r}, which loses it")
    return tuple(lines)


def _meet(one: str, other: str) -> bool:
    """Return whether two keys are asked for on one page."""
    pages = {name.partition(".")[0] if "." in name else "" for name in (one, other)}
    return "" in pages or len(pages) == 1
