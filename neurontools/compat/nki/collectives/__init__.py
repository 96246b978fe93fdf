"""`nki.collectives`: exchanges between ranks."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.collectives import COLLECTIVES, ReplicaGroup

globals().update(COLLECTIVES)
__all__ = ["ReplicaGroup", *COLLECTIVES]  # noqa: PLE0604  names of a table
__getattr__ = missing_names(__name__)
