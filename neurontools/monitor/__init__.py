"""neuron-monitor as a library: reports from snapshots, their JSON lines, their Prometheus form."""
