"""The native device `neuron`: torch's eager operators and torch.compile on the engine of the lazy device."""
