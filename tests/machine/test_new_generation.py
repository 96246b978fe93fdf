"""A new generation of instances is added by YAML files alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from neurontools import paths

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from neurontools import paths
paths.fixtures_dir = lambda: sys.argv[1]
from neurontools.compiler.engines.modelled_core import engine_costs
from neurontools.compiler.options import device_of, read_flags, target_of
from neurontools.machine.instances.catalogue import instance_type
from neurontools.native.cores import check_instance
new = instance_type("trn9.48xlarge")
check_instance(new, {})
assert target_of(new.device) == "trn9" and device_of(["--target=trn9n"]).name == "trainium9"
assert read_flags(["--target=trn9"], new.device).lnc == 2
assert not engine_costs(new.device.core.name).is_fallback
assert new.device.core.sbuf_collectives
print(new.name, new.core_count(2), new.device.core.name, "e4m3fn" in new.device.features)
"""


def _copied(path: Path, old: str, new: str, *, names: dict[str, str]) -> None:
    """Add a copy of a top-level mapping of a YAML file under another name, with some texts replaced."""
    text = path.read_text()
    block = re.search(rf"^{re.escape(old)}:\n(?:(?:  .*)?\n)*", text, re.MULTILINE)
    assert block is not None
    copy = block[0].replace(f"{old}:", f"{new}:", 1)
    for before, after in names.items():
        copy = copy.replace(before, after)
    path.write_text(f"{text}\n{copy}")


def test_a_generation_is_added_by_yaml_alone(home: Path) -> None:
    fixtures = home / "fixtures"
    shutil.copytree(paths.fixtures_dir(), fixtures, ignore=shutil.ignore_patterns("caches", "digits"))
    instances = fixtures / "instances"
    _copied(instances / "cores.yaml", "v4", "v9", names={"NeuronCore-v4": "NeuronCore-v9"})
    _copied(
        instances / "devices.yaml",
        "trainium3",
        "trainium9",
        names={"core: v4": "core: v9", "[trn3]": "[trn9, trn9n]", "Trn3": "Trn9"},
    )
    (instances / "trn9.yaml").write_text((instances / "trn3.yaml").read_text())
    family = (instances / "trn9.yaml").read_text().replace("trn3", "trn9").replace("trainium3", "trainium9")
    (instances / "trn9.yaml").write_text(family)
    costs = fixtures / "engines" / "costs.yaml"
    costs.write_text(re.sub(r"\bv4: ([^,}\n]+)", r"v4: \1, v9: \1", costs.read_text()))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(fixtures)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("trn9.48xlarge ")
