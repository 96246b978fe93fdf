"""`neuronxcc.nki.compiler`: addresses of tensors, and hints to the compiler."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.first.allocation import (
    allocation_scope,
    enable_stack_allocator,
    force_auto_alloc,
    multi_buffer,
    no_reorder,
    psum,
    sbuf,
    skip_middle_end_transformations,
)

__all__ = [
    "allocation_scope",
    "enable_stack_allocator",
    "force_auto_alloc",
    "multi_buffer",
    "no_reorder",
    "psum",
    "sbuf",
    "skip_middle_end_transformations",
]
__getattr__ = missing_names(__name__)
