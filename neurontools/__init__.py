"""A simulated AWS Neuron machine and what runs on it.

PYTEST_DONT_REWRITE: this module may be loaded before pytest looks at plugins (neuron-run does that), which is no reason
for a warning.
"""

__version__ = "0.1.0"
