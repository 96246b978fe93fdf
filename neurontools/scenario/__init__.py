"""Scenarios: synthetic processes that fill a machine by a script, and recordings of neuron-monitor.

`load`, `play` and `scenario_names` are the Python interface (docs/reference/scenarios.md). They are loaded on first use.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.scenario.model import Scenario as Scenario
    from neurontools.scenario.process_pool import PlayEvent as PlayEvent
    from neurontools.scenario.runner import PlayResult as PlayResult
    from neurontools.scenario.runner import play as play
    from neurontools.scenario.schema import ScenarioError as ScenarioError
    from neurontools.scenario.schema import load as load
    from neurontools.scenario.schema import parse as parse
    from neurontools.scenario.schema import scenario_names as scenario_names

_HOMES = {
    "PlayEvent": "process_pool",
    "PlayResult": "runner",
    "Scenario": "model",
    "ScenarioError": "schema",
    "load": "schema",
    "parse": "schema",
    "play": "runner",
    "scenario_names": "schema",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'neurontools.scenario' has no attribute {name!r}")
    return getattr(import_module(f"neurontools.scenario.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
