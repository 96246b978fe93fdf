"""torch_neuronx.proto."""
