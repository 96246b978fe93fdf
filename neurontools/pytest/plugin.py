"""The pytest plugin: a marker and two fixtures. Everything else is imported when a test uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.pytest.machine import FaultInjector, NeuronMachine

MARKER = (
    "neuron(instance=None, lnc=None, name='test', visible_devices=None, neighbours=None, ultraserver_mode=None, "
    "ultraserver_node=None): the simulated machine that the fixture neuron_machine starts"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that --strict-markers accepts it."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def neuron_machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NeuronMachine]:
    """Start a simulated Neuron machine for the test; `@pytest.mark.neuron(instance=..., lnc=...)` configures it."""
    from neurontools.errors import NeuronToolsError
    from neurontools.pytest.machine import machine_options, private_machine

    try:
        options = machine_options(request.node, getattr(request, "param", None))
        context = private_machine(str(tmp_path_factory.mktemp("neuron")), **options)
        machine = context.__enter__()
    except NeuronToolsError as error:
        pytest.fail(f"neuron_machine: {error.message}\nhint: {error.remedy}", pytrace=False)
    try:
        yield machine
    finally:
        context.__exit__(None, None, None)


@pytest.fixture
def neuron_fault(neuron_machine: NeuronMachine) -> Iterator[FaultInjector]:
    """Inject faults into neuron_machine: `neuron_fault("hang", core=0)`; they are cleared after the test."""
    from neurontools.pytest.machine import injector

    with injector(neuron_machine) as inject:
        yield inject
