"""torch_xla.distributed.xla_backend: the name that scripts import before init_process_group('xla')."""

from __future__ import annotations

from neurontools.compat import ranks

ranks.require_single("the distributed backend 'xla'")
