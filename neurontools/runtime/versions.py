"""Versions that the simulated runtime reports: those of Neuron SDK 2.32 (release notes).

neuron-ls shows three numbers, the runtime's log line four.
"""

RUNTIME_VERSION = "2.34.10"
RUNTIME_BUILD = f"{RUNTIME_VERSION}.0"
DRIVER_VERSION = "2.30.2.0"
COLLECTIVES_VERSION = RUNTIME_BUILD
