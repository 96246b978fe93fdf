"""Textual apps: neuron-top, the profile viewer, the cache browser."""
