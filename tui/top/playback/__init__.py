"""Time travel in neuron-top: pausing, going back, playing recordings."""
