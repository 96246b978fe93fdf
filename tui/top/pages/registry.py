"""The pages of neuron-top in their order, and one of them as text or JSON values."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neurontools.tui.names import PAGE_NAMES
from neurontools.tui.top.layout import MIN_WIDTH
from neurontools.tui.top.page import PageOptions, Pages
from neurontools.tui.top.pages.rows import title_line
from neurontools.tui.widgets.lines import fit, printed

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page


def page_class(name: str) -> type[Page]:
    """Return the class of a page by its name; its module is loaded now."""
    module = import_module(f"neurontools.tui.top.pages.{name}")
    found: type[Page] = getattr(module, f"{name.capitalize()}Page")
    return found


_NO_OPTIONS = PageOptions()


def make_pages(options: PageOptions = _NO_OPTIONS, *, machines: Callable[[], Page] | None = None) -> Pages:
    """Return new pages; `machines` makes a further one, which lists several machines."""
    makers: dict[str, Callable[[], Page]] = {name: partial(_make, name, options) for name in PAGE_NAMES}
    return Pages(makers | ({"machines": machines} if machines else {}))


def _make(name: str, options: PageOptions) -> Page:
    return page_class(name).make(options)


def page_text(page: Page, model: TopModel, width: int) -> str:
    """Return a whole page as text."""
    width = max(width, MIN_WIDTH)
    lines = [title_line(model, width), fit((), width), *page.all_lines(model, width)]
    return "\n".join(map(printed, lines)).rstrip()


def page_data(page: Page, model: TopModel) -> dict[str, Any]:
    """Return a page as JSON values: machine, time, and the page's data."""
    snapshot = model.shown.snapshot
    names = ("machine", "source", "instance_id", "instance_type", "taken_unix_s")
    return {
        "page": page.name,
        **{name: getattr(snapshot, name, None) for name in names},
        "trouble": model.trouble or None,
        **page.data(model),
    }
