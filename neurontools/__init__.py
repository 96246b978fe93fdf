"""A simulated AWS Neuron machine and what runs on it.

PYTEST_DONT_REWRITE: neuron-run may load this module before pytest looks at plugins, which would cause a warning.
"""

__version__ = "0.1.0"
