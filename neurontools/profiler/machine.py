"""What a capture says about the machine that it ran on."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import __version__, env
from neurontools.machine.naming import instance_id
from neurontools.machine.processes import boot_id
from neurontools.profiler.meta import Meta, Peaks

if TYPE_CHECKING:
    from neurontools.profiler.settings import CaptureOptions
    from neurontools.runtime.session import Runtime

_BASE_CLOCK = "Scalar"  # 1.4 GHz on Trn1, 1.2 GHz on Trn2: the clock that neuroncore_cycle_count counts


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of one process. `cores` are machine-wide ids; a position in it is the process-local NC."""

    instance_type: str
    instance_id: str
    lnc: int
    cores: tuple[int, ...]
    peaks: Peaks

    def describe(self, options: CaptureOptions, command: tuple[str, ...] | None) -> Meta:
        """Return the description of a capture that starts now in this process."""
        return Meta(
            instance_type=self.instance_type,
            instance_id=self.instance_id,
            lnc=self.lnc,
            cores=self.cores,
            pid=os.getpid(),
            command=command if command is not None else tuple(sys.orig_argv),
            boot_id=boot_id(),
            started_ns=time.monotonic_ns(),
            started_unix_ns=time.time_ns(),
            device_profile=options.device.value,
            max_events_per_nc=options.max_events_per_nc,
            peaks=self.peaks,
            version=__version__,
        )


def machine_of(runtime: Runtime) -> Machine:
    """Return what the runtime knows about its machine; peaks are those of one logical NeuronCore at bfloat16."""
    device = runtime.instance.device
    return Machine(
        instance_type=runtime.instance.name,
        instance_id=instance_id(env.machine(), os.getuid()),
        lnc=runtime.lnc,
        cores=runtime.cores,
        peaks=Peaks(
            tensor_flops_s=device.core.tensor_flops_s("bfloat16") * runtime.lnc,
            hbm_bytes_s=device.memory_bandwidth_bytes_s * runtime.lnc / device.physical_cores,
            clock_hz=dict(device.core.clock_hz).get(_BASE_CLOCK, 0.0),
        ),
    )
