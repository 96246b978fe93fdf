from __future__ import annotations

import hashlib

from benchmarks.nki_anchors import KERNELS, half_of, read_file


def test_names_decide_the_halves_of_published_times() -> None:
    rows = read_file()["anchors"]
    assert len({row["name"] for row in rows}) == len(rows) == 99
    for row in rows:
        first = int(hashlib.sha256(row["name"].encode()).hexdigest()[0], 16)
        assert row["half"] == half_of(row["name"]) == ("calibration" if first < 8 else "report")
        assert row["kernel"] in KERNELS
        assert row["us"] > 0
