"""The short form of the compile cache's stress test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STRESS = Path(__file__).with_name("run_cache.py")


def test_a_cache_is_sound_after_a_chaos_test() -> None:
    command = [sys.executable, "-P", str(STRESS), "--seconds", "6", "--processes", "16", "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["wrong"] == []
    assert done.returncode == 0
    assert outcome["kills"] > 10
    assert set(outcome["rounds"]) >= {"program", "reader", "pruner", "lister"}
