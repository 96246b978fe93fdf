"""Rates of the GPSIMD engine, from `fixtures/gpsimd/rates.yaml`; the source of all modelled times of custom operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from neurontools import paths


@dataclass(frozen=True, slots=True)
class Rates:
    """Times of a GPSIMD core (`fixtures/gpsimd/rates.yaml`).

    Args:
        element_access_ns: time of an access to one element in HBM.
        transfer_latency_ns: latency of a transfer between HBM and TCM.
        transfer_ns_per_byte: time per byte of it, without the latency.
        piece_bytes: transfer size of the documented rate.
        move_latency_ns: latency of a copy within HBM.
        move_ns_per_byte: time per byte of it, without the latency.
        compute_ns_per_byte: time per byte of a tensor function's result.
        launch_ns: fixed time of a call.
        tcm_bytes: size of a core's pool for `tcm_malloc`.
        fast_streams: number of streams that have a buffer at once.
    """

    element_access_ns: float
    transfer_latency_ns: float
    transfer_ns_per_byte: float
    piece_bytes: int
    move_latency_ns: float
    move_ns_per_byte: float
    compute_ns_per_byte: float
    launch_ns: float
    tcm_bytes: int
    fast_streams: int

    def transfer_ns(self, nbytes: int, piece_bytes: int | None = None) -> float:
        """Return the time of one core for bytes between HBM and TCM, in pieces of the documented size or another."""
        pieces = -(-nbytes // (piece_bytes or self.piece_bytes))
        return pieces * self.transfer_latency_ns + nbytes * self.transfer_ns_per_byte


@cache
def rates() -> Rates:
    """Return the rates."""
    document = read_fixture("rates.yaml")
    transfer, move, compute = document["transfer"], document["move"], document["compute"]
    return Rates(
        element_access_ns=document["element_access_ns"],
        transfer_latency_ns=transfer["latency_ns"],
        transfer_ns_per_byte=transfer["ns_per_byte"] - transfer["latency_ns"] / transfer["piece_bytes"],
        piece_bytes=transfer["piece_bytes"],
        move_latency_ns=move["latency_ns"],
        move_ns_per_byte=move["ns_per_byte"],
        compute_ns_per_byte=1 / (compute["bytes_per_cycle"] * compute["clock_ghz"]),
        launch_ns=document["launch_ns"],
        tcm_bytes=document["tcm_bytes"],
        fast_streams=document["fast_streams"],
    )


def read_fixture(name: str) -> dict[str, Any]:
    """Return a document of `fixtures/gpsimd`."""
    import yaml

    with open(f"{paths.fixtures_dir()}/gpsimd/{name}", encoding="utf-8") as file:
        document: dict[str, Any] = yaml.safe_load(file)
    return document
