"""torch_neuronx as scripts of custom operators see it."""

from neurontools.compat.dependency import torch
from neurontools.xla import api

__all__ = ["torch"]

api.activate()
