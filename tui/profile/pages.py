"""The pages of the viewer, in their order; F1 is the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.profile.compare_page import ComparePage
from neurontools.tui.profile.memory_page import MemoryPage
from neurontools.tui.profile.operators import OperatorsPage
from neurontools.tui.profile.overview import ProfileOverviewPage
from neurontools.tui.profile.ranks_page import RanksPage
from neurontools.tui.profile.roofline_page import RooflinePage
from neurontools.tui.profile.source_page import SourcePage
from neurontools.tui.profile.timeline_page import TimelinePage
from neurontools.tui.profile.tree_page import TreePage

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.profile.page import ProfilePage
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
