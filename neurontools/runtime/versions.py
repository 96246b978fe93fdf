"""Versions that the simulated runtime reports: those of Neuron SDK 2.32 (compile-runtime.md section 8)."""

RUNTIME_VERSION = "2.34.10.0"
DRIVER_VERSION = "2.30.2.0"
COLLECTIVES_VERSION = "2.34.10.0"
