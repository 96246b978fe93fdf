"""Every parser with inputs that once broke it, and with a few new ones; `make fuzz` tries many more."""

from __future__ import annotations

import pytest

from tests.fuzz import targets
from tests.fuzz.run import fuzz

pytestmark = pytest.mark.slow
INPUTS = 4
SEED = 1


@pytest.mark.parametrize("group", targets.GROUPS)
def test_damaged_inputs_are_read_or_refused(group: str) -> None:
    names = [target.name for target in targets.load() if target.name.startswith(f"{group}/")]
    count, findings = fuzz(names, INPUTS, SEED, shrink=False)
    assert count >= len(names)
    assert not findings, "\n".join(
        f"{found['target']}: {found['kind']} in {found['site']}: {found['text']}" for found in findings
    )
