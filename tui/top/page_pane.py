"""The pane of a page: its lines, and its keys while it has the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding, BindingsMap

from neurontools.tui.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.style import Style

    from neurontools.tui.top.page import Page
    from neurontools.tui.widgets.lines import Role


class PagePane(LinePane, can_focus=True):
    """Takes the keys of its page; the app runs what they mean.

    Args:
        page: the page.
        styles_by_role: the look of every role.
    """

    def __init__(self, page: Page, styles_by_role: Mapping[Role, Style]) -> None:
        super().__init__(styles_by_role, id=f"page-{page.name}")
        self.page = page
        self.display = False
        self._bindings = BindingsMap(
            Binding(one, f"app.page_key('{key.name}')", key.text, id=f"{page.name}.{key.name}")
            for key in page.bindings()
            for one in key.keys.split(",")
        )
