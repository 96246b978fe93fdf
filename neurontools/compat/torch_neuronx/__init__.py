"""torch_neuronx as scripts of custom operators see it."""

from neurontools.xla import api

api.activate()
