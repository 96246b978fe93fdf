"""What a user of Ray does, on a host that has our tools in /opt/aws/neuron/bin: `ray_job.py DIR` prints a JSON report.

Files in DIR are the signals: each task says by one that it holds its cores, and goes on when `go` is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray

from neurontools.machine.processes import wait_for_end
from neurontools.runtime.session import Runtime

HERE = Path(sys.argv[1])
OBJECT_STORE_BYTES = 80 << 20


def wait_for(*names: str) -> None:
    while not all((HERE / name).exists() for name in names):
        time.sleep(0.01)


@ray.remote(num_cpus=1, resources={"neuron_cores": 2})
def hold(name: str) -> dict[str, Any]:
    runtime = Runtime.open(tag=name)
    (HERE / name).touch()
    wait_for("go")
    found = {"pid": os.getpid(), "visible": os.environ["NEURON_RT_VISIBLE_CORES"], "cores": runtime.cores}
    runtime.close()
    return found


@ray.remote(num_cpus=1, resources={"neuron_cores": 1})
def look() -> str:
    return os.environ["NEURON_RT_VISIBLE_CORES"]


def main() -> None:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(HERE / "ray"),
        log_to_driver=False,
    )
    report: dict[str, Any] = {"resources": ray.cluster_resources()}
    tasks = [hold.remote("a"), hold.remote("b")]
    wait_for("a", "b")
    report["listed"] = json.loads(subprocess.check_output(["/opt/aws/neuron/bin/neuron-ls", "-j"]))
    (HERE / "go").touch()
    report["tasks"] = ray.get(tasks)
    report["later"] = ray.get(look.remote())
    ray.shutdown()
    for task in report["tasks"]:
        wait_for_end(task["pid"], 600)
    report["left"] = json.loads(subprocess.check_output(["/opt/aws/neuron/bin/neuron-ls", "-j"]))
    (HERE / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
