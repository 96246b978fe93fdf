"""The list of several machines as text or JSON, for `--once`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from neurontools.dashboard.lookout import Lookout
from neurontools.dashboard.tape import Tape
from neurontools.tui.top.machines.page import Machine, MachinesPage
from neurontools.tui.top.machines.source import SeveralSource
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.playback.controller import TimeDeck
from neurontools.tui.top.source import Trouble
from neurontools.tui.widgets.lines import text_of

if TYPE_CHECKING:
    from neurontools.tui.top.opening import Wanted

_NARROWEST = 200
_UPDATES = 3  # the first two of a simulated machine are close together


def machines_page(wishes: Wanted, width: int, *, as_json: bool = False) -> str:
    """Return the list, with rates over one interval, as soon as every machine told of itself or of its trouble."""
    source = SeveralSource(wishes.places, wishes.settings.interval_s)
    machines = []
    for place, name in zip(wishes.places, source.source_names, strict=True):
        model = TopModel(colour=False, source=name, lookout=Lookout(wishes.settings.rules))
        machines.append(Machine(place.name, model, TimeDeck(model, Tape())))
    missing = dict.fromkeys(range(len(machines)), _UPDATES)
    try:
        for one in source.updates():
            machines[one.index].model.update(one.update)
            left = missing.pop(one.index, 0) - 1
            if left > 0 and not isinstance(one.update, Trouble):
                missing[one.index] = left
            if not missing:
                break
    finally:
        source.close()
    page = MachinesPage(machines)
    model = machines[0].model
    if as_json:
        return json.dumps({"page": page.name, **page.data(model)})
    lines = page.lines(model, max(width, _NARROWEST), page.wanted_lines(model))
    return "\n".join(text_of(line).rstrip() for line in lines)
