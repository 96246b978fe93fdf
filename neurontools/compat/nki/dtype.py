"""`nki.dtype`: names of data types."""

from neurontools.nki.dtypes import NAMES

dtype = str
globals().update({name: name for name in NAMES})
__all__ = ["dtype", *NAMES]  # noqa: PLE0604  names of a table
