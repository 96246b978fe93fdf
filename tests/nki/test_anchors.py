from __future__ import annotations

import hashlib

from benchmarks.engine_model.published import half_of
from benchmarks.nki_anchors import KERNELS, TUTORIALS, read_file


def test_names_decide_the_halves_of_published_times() -> None:
    document = read_file()
    rows = [*document["anchors"], *document["tutorials"]]
    assert (len(document["anchors"]), len({row["name"] for row in rows})) == (99, len(rows))
    for row in rows:
        first = int(hashlib.sha256(row["name"].encode()).hexdigest()[0], 16)
        assert row["half"] == half_of(row["name"]) == ("calibration" if first < 8 else "report")
        assert row["kernel"] in {**KERNELS, **TUTORIALS}
        assert row["us"] > 0
