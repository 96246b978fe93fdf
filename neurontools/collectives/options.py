"""The options of one benchmark, from the command line or a stream; `benchmark` validates them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of nccom-test and ours. None: not given.

    `algorithm` and `check_bytes` are ours. `hosts` are the names of the MPI hosts, from the flag or its file.
    """

    operation: str
    workers: int
    nodes: int = 1
    minbytes: str | None = None
    maxbytes: str | None = None
    stepbytes: str | None = None
    stepfactor: float | None = None
    iters: int = 20
    warmup_iters: int = 5
    neff_iters: int | None = None
    neff_warmup_iters: int | None = None
    datatype: str = "uint8"
    check: str | None = None
    seed: int = 0
    unique_buff: bool = False
    coalesced_cc_size_ratio: str | None = None
    shared_output_buff: bool = False
    variable_size_op_metadata: str | None = None
    stats: tuple[str, ...] = ("avg",)
    sb2sb: bool = False
    input_shape: str | None = None
    output_shape: str | None = None
    cc_dim: int | None = None
    data_parallel_dimension: int | None = None
    custom_replica_groups: str | None = None
    custom_src_target_pairs: str | None = None
    ops_per_iter: int = 1
    algorithm: str | None = None
    check_bytes: str | None = None
    hosts: tuple[str, ...] = ()
    slurm_mode: bool = False
