"""neuron-top, the live dashboard."""
