"""Versions that the simulated runtime reports: those of Neuron SDK 2.32 (compile-runtime.md section 8).

neuron-ls shows three numbers (system-tools.md section 1.4), the runtime's own log line four (compile-runtime.md 3.3).
"""

RUNTIME_VERSION = "2.34.10"
RUNTIME_BUILD = f"{RUNTIME_VERSION}.0"
DRIVER_VERSION = "2.30.2.0"
COLLECTIVES_VERSION = RUNTIME_BUILD
