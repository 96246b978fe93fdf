"""A made-up compile cache for pictures: a small GPT trained with two batch sizes, models, an old compiler, a failure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from benchmarks.engine_model.training import decoder_training
from tests.cache.conftest import Tree
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from pathlib import Path

_HOUR_S = 3600.0


def make_cache(root: Path) -> None:
    """Fill a root that does not exist yet, and the journal of its lookups."""
    root.mkdir()
    tree = Tree(root)
    chance = random.Random(14)
    for number, batch in enumerate((8, 8, 5)):
        graph = decoder_training(
            layers=2, width=256, heads=4, vocabulary=8192, batch=batch, length=128, optimizer="adamw"
        )
        flags = ("--target=trn1", "--model-type=transformer") if number else ("--target=trn1",)
        entry = tree.compiled(graph, "gpt", flags=flags, unused_s=(30 - 10 * number) * _HOUR_S)
        hours = sorted((chance.triangular(0, 28 - 9 * number, 4) for _ in range(400)), reverse=True)
        tree.look_up(entry, ((30 - 10 * number) * _HOUR_S, "miss", 4.25))
        tree.look_up(entry, *((hour * _HOUR_S, "hit", 4.1) for hour in hours))
    for rows in (4, 8, 16, 32, 64):
        entry = tree.compiled(mlp(rows, 64), "mlp", "serve.py", unused_s=rows * _HOUR_S)
        tree.look_up(entry, (rows * _HOUR_S, "miss", 0.25), (_HOUR_S, "hit", 0.2))
    tree.compiled(mlp(128, 64), "mlp", "serve.py", compiler="2.15.143.0+e39249ad", unused_s=900 * _HOUR_S)
    tree.failed("ERROR: [NCC_EVRF004] Complex data types are not supported: aten.complex\n", graph="4444")
