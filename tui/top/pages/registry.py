"""The pages of neuron-top in their order, and one of them as text or JSON values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from neurontools.tui.names import PAGE_NAMES
from neurontools.tui.top.layout import MIN_WIDTH
from neurontools.tui.top.page import Pages
from neurontools.tui.top.pages.rows import title_line
from neurontools.tui.widgets.lines import fit, printed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.dashboard.process_table import Column
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page


def make_pages(
    columns: Sequence[Column],
    *,
    readonly: bool = False,
    process_filter: str = "",
    others: Mapping[str, Callable[[], Page]] | None = None,
) -> Pages:
    """Return new pages.

    Args:
        columns: of the process table.
        readonly: offer no signals.
        process_filter: initial filter of the process page.
        others: make further pages, by their names.
    """

    def processes() -> Page:
        from neurontools.tui.top.pages.processes import ProcessesPage

        page = ProcessesPage(columns, readonly=readonly)
        page.filter_by(process_filter)
        return page

    own = {name: processes if name == "processes" else partial(_make, name) for name in PAGE_NAMES}
    return Pages({**own, **(others or {})})


def _make(name: str) -> Page:
    match name:
        case "overview":
            from neurontools.tui.top.pages.overview import OverviewPage

            return OverviewPage()
        case "history":
            from neurontools.tui.top.pages.history import HistoryPage

            return HistoryPage()
        case "devices":
            from neurontools.tui.top.pages.devices import DevicesPage

            return DevicesPage()
        case _:
            from neurontools.tui.top.pages.events import EventsPage

            return EventsPage()


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
