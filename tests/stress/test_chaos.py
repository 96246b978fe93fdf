"""The short form of the stress test: everything at once for a few seconds, then everything is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STRESS = Path(__file__).with_name("run_machine.py")


def test_a_machine_is_right_after_a_chaos_test() -> None:
    command = [sys.executable, "-P", str(STRESS), "--seconds", "5", "--clients", "40", "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["wrong"] == []
    assert done.returncode == 0
    assert outcome["checkpoints"] >= 5
    assert outcome["most_alive"] == 40
    for happened in ("daemons_killed", "registrations", "executions"):
        assert outcome[happened] > 0, happened
