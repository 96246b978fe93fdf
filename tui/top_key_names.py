"""All keys by the names that the configuration gives them."""

from __future__ import annotations

from neurontools.tui.top_columns import DEFAULT_COLUMNS
from neurontools.tui.top_keys import ANYWHERE, CLASSIC
from neurontools.tui.top_pages import make_pages


def key_names() -> list[tuple[str, str, str]]:
    """Return name, keys (with commas between them) and meaning of every key, those for every page first."""
    found = [(binding.id or "", binding.key, binding.description) for binding in (*ANYWHERE, *CLASSIC)]
    for page in make_pages(DEFAULT_COLUMNS):
        found += [(f"{page.name}.{key.name}", key.keys, key.text) for key in page.bindings()]
    return found
