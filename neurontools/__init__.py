"""A simulated AWS Neuron machine and what runs on it."""

__version__ = "0.1.0"
