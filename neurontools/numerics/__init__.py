"""The number formats of NeuronCores and how values are rounded to them."""
