"""torch_xla.distributed.xla_backend: the name that scripts import before init_process_group('xla')."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat import ranks
from neurontools.compat.missing import missing_name

ranks.require_single("the distributed backend 'xla'")


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
