"""The information block that the real runtime prints after a failed init (compile-runtime.md section 3.3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.versions import COLLECTIVES_VERSION, DRIVER_VERSION, RUNTIME_BUILD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.runtime.status import NrtError

CUT_HERE = "------------->8------------[ cut here ]------------>8-------------"
CUT_TO_HERE = "-------------8<-----------[ cut to here ]-----------8<------------"

_PREFIXES = ("NEURON_", "NEURONTOOLS_")


def write_info_block(
    log: RuntimeLog, error: NrtError, environ: Mapping[str, str], *, cores: str, instance_id: str
) -> None:
    """Log the block; only variables of the Neuron tools are listed.

    Args:
        log: where it goes.
        error: what made the init fail.
        environ: the process's environment.
        cores: the cores that were asked for, as text.
        instance_id: of the machine, or "" when unknown.
    """
    for line in info_lines(error, environ, cores=cores, instance_id=instance_id):
        log.write(Level.ERROR, Component.NRT, "nrt_infodump", line)


def info_lines(
    error: NrtError, environ: Mapping[str, str], *, cores: str, instance_id: str
) -> tuple[str, ...]:
    """Return the lines of the block."""
    host = os.uname()
    variables = sorted(item for item in environ.items() if item[0].startswith(_PREFIXES))
    return (
        "Neuron runtime information - please include in any support request:",
        CUT_HERE,
        f"NRT version: {RUNTIME_BUILD} (neurontools, simulated)",
        f"CCOM version: {COLLECTIVES_VERSION} (compat 1)",
        f"Instance ID: {instance_id or 'unknown'}",
        "Cluster ID: N/A",
        f"Kernel: {host.sysname} {host.release} {host.version}",
        f"Nodename: {host.nodename}",
        f"Driver version: {DRIVER_VERSION}",
        f"Failure: {error.status.name} in {error.function}()",
        f"Visible cores: {cores}",
        "Environment:",
        *(f"    {name}={value}" for name, value in variables),
        CUT_TO_HERE,
    )
