"""The pages of neuron-top in their order, and one of them as text or JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.tui.top.layout import MIN_WIDTH
from neurontools.tui.top.pages.devices import DevicesPage
from neurontools.tui.top.pages.events import EventsPage
from neurontools.tui.top.pages.history import HistoryPage
from neurontools.tui.top.pages.overview import OverviewPage
from neurontools.tui.top.pages.processes import ProcessesPage
from neurontools.tui.top.pages.rows import title_line
from neurontools.tui.widgets.lines import fit, printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_table import Column
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page


def make_pages(
    columns: Sequence[Column], *, readonly: bool = False, process_filter: str = ""
) -> tuple[Page, ...]:
    """Return new pages.

    Args:
        columns: of the process table.
        readonly: offer no signals.
        process_filter: initial filter of the process page.
    """
    processes = ProcessesPage(columns, readonly=readonly)
    processes.filter_by(process_filter)
    return (OverviewPage(), HistoryPage(), processes, DevicesPage(), EventsPage())


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
