"""torch_neuronx.profiling: profiles of the runtime and the device that torch.profiler starts and stops.

Source: AWS Neuron documentation, "Capture PyTorch profiles with Neuron Explorer".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from neurontools.compat.profiling import start_trace, stop_trace
from neurontools.compat.unsupported import missing_names
from neurontools.profiler.capture.settings import (
    DEFAULT_MAX_EVENTS,
    CaptureOptions,
    DeviceProfile,
    parse_numbers,
)
from neurontools.runtime.host_activity import HOST_LOAD

__all__ = ["NeuronConfig", "NeuronProfiler", "ProfileMode"]


__getattr__ = missing_names(__name__)


class ProfileMode(Enum):
    """What a profile captures."""

    DEVICE = "device"
    RUNTIME = "runtime"
    CPU_UTIL = "cpu_util"
    HOST_MEMORY = "host_memory"


class NeuronConfig(torch._C._profiler._ExperimentalConfig):  # type: ignore[misc] # noqa: SLF001
    """What to capture beside the events of torch.profiler; its argument `experimental_config`.

    Args:
        modes: DEVICE records every execution with its modelled schedule, RUNTIME the events on the wall clock, CPU_UTIL
            and HOST_MEMORY samples of the computer.
        max_events_per_nc: records to keep per NeuronCore.
        capture_enabled_for_nc: NeuronCores of this process, such as `0,2-5`; all by default.
        profile_output_dir: gets a directory for this process; `neuron-profile view` shows it.
        neff_cache_dir: accepted; NEFFs are copied into the profile.
        precache_node_info: accepted.

    Raises:
        UsageError: the list of NeuronCores is invalid.
    """

    def __init__(
        self,
        modes: Sequence[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME),
        max_events_per_nc: int = DEFAULT_MAX_EVENTS,
        capture_enabled_for_nc: str | None = None,
        profile_output_dir: str = "./output",
        neff_cache_dir: str | None = None,
        precache_node_info: bool = True,
    ) -> None:
        super().__init__()
        self.modes = list(modes)
        self.profile_output_dir = profile_output_dir
        self.directory = profile_output_dir  # that of this process, as soon as the profile begins
        on_wall_clock = ProfileMode.RUNTIME in self.modes
        self._options = CaptureOptions(
            device=DeviceProfile.SESSION if ProfileMode.DEVICE in self.modes else DeviceProfile.OFF,
            system_events=CaptureOptions().system_events if on_wall_clock else frozenset(),
            host_events=CaptureOptions().host_events if on_wall_clock else frozenset(),
            host_load=frozenset(kind for kind in HOST_LOAD if ProfileMode[kind.name] in self.modes),
            ncs=parse_numbers(capture_enabled_for_nc, "capture_enabled_for_nc")
            if capture_enabled_for_nc
            else None,
            max_events_per_nc=max_events_per_nc,
        )

    def begin_capture(self) -> None:
        """Begin the profile; torch.profiler begins."""
        self.directory = start_trace(self.profile_output_dir, self._options)

    def end_capture(self) -> None:
        """End the profile; torch.profiler ends."""
        stop_trace()


class NeuronProfiler:
    """Writes the trace of torch.profiler beside the profile of the device."""

    def __init__(self, config: NeuronConfig) -> None:
        self._config = config

    def export_trace(self, profiled: Any) -> None:
        """Write `trace.json`, a Chrome trace, into this process's directory of the profile.

        An argument `on_trace_ready` of torch.profiler.
        """
        os.makedirs(self._config.directory, exist_ok=True)
        profiled.export_chrome_trace(os.path.join(self._config.directory, "trace.json"))
