"""The simulated machine: catalogue, devices, processes, the daemon and its protocol, telemetry pages."""
