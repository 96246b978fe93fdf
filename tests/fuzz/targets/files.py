"""Files that people write, and small files that programs keep: scenarios, config.yaml, rank lists, link manifests."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

_CONFIG = """\
machine: ci
autostart: false
instance: trn1.32xlarge
emulate: 2.28
pace: off
host_memory: 25%
sysfs_root: ~/host
cache_max_size: 20GB
cache_older_than: 30d
cache_keep_last: 3
cache_remove: failed,interrupted
cache_auto_prune: no
cache_lock_timeout: 5m
runtime_dir: /tmp/run
top:
  theme: light
  page: devices
  interval: 0.5
  columns: [pid, cores, utilization]
  keys: {quit: Q, help: [f1, h]}
  alerts:
    device-memory: 0.8
    stalled: {threshold: 2, for: 10, clear: 5}
    ecc: false
  ascii: true
"""


def _scenarios() -> list[bytes]:
    from neurontools.scenario import schema

    names = ("crash-loop", "ecc-storm", "memory-leak", "mixed-tenants")
    return [Path(schema.scenario_file(name)).read_bytes() for name in names]


def _check_scenario(data: bytes) -> None:
    from neurontools.commands import scenario

    Path("fuzz.yaml").write_bytes(data)
    run(scenario.main, "check", "./fuzz.yaml")
    run(scenario.main, "show", "./fuzz.yaml")
    run(scenario.main, "show", "--json", "./fuzz.yaml", is_json=True)


def _check_scenario_played(data: bytes) -> None:
    from neurontools.commands import scenario

    Path("fuzz.yaml").write_bytes(data)
    words = ("--offline", "--output", "new.jsonl", "--force", "--limit", "3")
    run(scenario.main, "record", "./fuzz.yaml", *words)


def _check_config(data: bytes) -> None:
    from neurontools import env
    from neurontools.commands import config, ls, top

    path = Path(env.config_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    runtime = os.environ.pop("NEURONTOOLS_RUNTIME_DIR")
    env._configurations.clear()
    try:
        run(config.main, "show")
        run(config.main, "show", "--json", is_json=True)
        run(ls.main)
        run(top.main, "--once", "--interval", "0.1")
    finally:
        os.environ["NEURONTOOLS_RUNTIME_DIR"] = runtime
        path.unlink()
        env._configurations.clear()


def _saved_baseline() -> list[bytes]:
    from dataclasses import asdict

    from neurontools.sysfs.aggregates import CounterBaseline, core_sums
    from tests.sysfs.machines import job, machine

    snapshot = machine("trn1.2xlarge", processes=(job(),))
    return [
        json.dumps(
            asdict(CounterBaseline(snapshot.instance_id, 1, tuple(core_sums(snapshot).items())))
        ).encode()
    ]


def _check_counters(data: bytes) -> None:
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.sysfs import aggregates
    from neurontools.sysfs.layout import emulated
    from neurontools.sysfs.tree import build_tree
    from tests.sysfs.machines import job, machine

    path = Path(aggregates._path("fuzz"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    snapshot = machine("trn1.2xlarge", processes=(job(),))
    baseline = aggregates.BaselineReader("fuzz").read()
    build_tree(snapshot, instance_type("trn1.2xlarge"), emulated(), baseline=baseline)


def _mirrors() -> list[bytes]:
    return [b"neurontools sysfs mirror\nfuzz\n17\n"]


def _check_mirror(data: bytes) -> None:
    from neurontools.sysfs.mirror import SysfsMirror

    mark = Path("mirror/.neurontools-sysfs").absolute()
    shutil.rmtree(mark.parent, ignore_errors=True)
    mark.parent.mkdir(mode=0o700, parents=True)
    mark.write_bytes(data)
    with SysfsMirror(str(mark.parent), "fuzz"):
        pass


def _check_extraction_log(data: bytes) -> None:
    from neurontools.cache.extraction import read_records

    Path("extraction.log").write_bytes(data)
    list(read_records("extraction.log"))


def _extraction_logs() -> list[bytes]:
    from neurontools.cache.extraction import RecordKind

    return ["".join(json.dumps([kind, "/a/MODULE_1+b", "train.py:3"]) + "\n" for kind in RecordKind).encode()]


def _ranks() -> list[bytes]:
    groups = {"replica_groups": [[[0, 1]]], "src_target_pairs": [[[0, 1], [1, 0]]]}
    streams = {"streams": [{"operation": "allr", "minbytes": "8", "maxbytes": "16"}], "counts": [4, 8]}
    return [json.dumps({**groups, **streams}).encode()]


def _check_ranks(data: bytes) -> None:
    from neurontools.commands import nccom_test

    Path("ranks.json").write_bytes(data)
    common = ("-r", "2", "-b", "8", "-e", "64", "--instance", "trn1.32xlarge")
    run(nccom_test.main, "allr", *common, "--custom-replica-groups", "ranks.json")
    run(nccom_test.main, "all_gatherv", *common, "--variable-size-op-metadata", "ranks.json")
    run(nccom_test.main, *common, "--streams-json", "ranks.json")
    run(nccom_test.main, "permute", *common, "--custom-src-target-pairs", "ranks.json")


TARGETS = (
    Target("files/scenario", Format.YAML, _scenarios, _check_scenario),
    Target("files/scenario-played", Format.YAML, _scenarios, _check_scenario_played, share=0.5),
    Target("files/config", Format.YAML, lambda: [_CONFIG.encode()], _check_config),
    Target("files/counters", Format.JSON, _saved_baseline, _check_counters, share=0.5),
    Target("files/mirror", Format.TEXT, _mirrors, _check_mirror, share=0.5),
    Target("files/extraction-log", Format.JSON_LINES, _extraction_logs, _check_extraction_log, share=0.5),
    Target("files/ranks", Format.JSON, _ranks, _check_ranks, share=0.5),
)
