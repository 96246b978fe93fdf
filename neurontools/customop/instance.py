"""Which machines can run custom operators: those with a NeuronCore-v2 (customops.md section 1)."""

from __future__ import annotations

from neurontools import env
from neurontools.customop.errors import UnsupportedInstanceError
from neurontools.errors import NoMachineError

CORE = "NeuronCore-v2"
_FAMILIES = frozenset({"trn1", "trn1n", "inf2"})


def check_instance() -> None:
    """Check that the machine of this process has cores that run custom operators; starts nothing.

    Without a running machine the one counts that would be started.

    Raises:
        UnsupportedInstanceError: it has other cores, and nothing says to go on all the same.
        UnknownInstanceError: NEURONTOOLS_INSTANCE names no instance type.
    """
    if env.flag(env.CUSTOMOP_ANY_INSTANCE):
        return
    machine, kind = _machine()
    if kind.partition(".")[0] in _FAMILIES:
        return
    # Loaded late: reading the catalogue takes longer than loading a library.
    from neurontools.machine.instances.catalogue import instance_type

    core = instance_type(kind).device.core.name
    if core != CORE:
        raise UnsupportedInstanceError(
            f"custom operators exist on {CORE} only (trn1, trn1n, inf2); machine {machine!r} is {kind} with {core}",
            f"choose another machine with {env.MACHINE} or {env.INSTANCE}, write an NKI kernel, or go on with "
            f"--any-instance or {env.CUSTOMOP_ANY_INSTANCE}=1",
        )


def _machine() -> tuple[str, str]:
    from neurontools.machine import launch

    name = env.machine()
    try:
        return name, launch.find(name).instance_type
    except NoMachineError:
        return name, env.instance()
