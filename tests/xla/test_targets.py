"""NEFFs of other NeuronCore generations are refused where they are loaded."""

from __future__ import annotations

import pytest

from neurontools.machine.instances.catalogue import instance_type
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.xla.simulated_accelerator import check_target

TYPES = {"inf2": "inf2.xlarge", "trn1": "trn1.2xlarge", "trn2": "trn2.48xlarge"}


@pytest.mark.parametrize(
    ("compiled", "device", "legacy", "works"),
    [
        ("trn1", "trn1", "", True),
        ("inf2", "trn1", "", True),
        ("trn2", "trn1", "", False),
        ("trn1", "trn2", "", False),
        ("trn1", "trn2", "1", True),
        ("trn2", "trn1", "1", False),
    ],
)
def test_a_neff_runs_on_cores_of_its_generation(
    compiled: str, device: str, legacy: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_ALLOW_LEGACY_NEFF", legacy)
    target = instance_type(TYPES[device]).device
    if works:
        check_target([f"--target={compiled}"], target)
        return
    with pytest.raises(NrtError, match=f"compiled for {compiled}, but the device is {device}") as caught:
        check_target([f"--target={compiled}"], target)
    assert caught.value.status is NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION


def test_a_neff_without_a_target_is_not_refused() -> None:
    check_target([], instance_type("trn1.2xlarge").device)
