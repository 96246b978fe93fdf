"""Two users and a shared machine: the owner injects, a member is hit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.machine.client import Client
from tests.machine.test_sharing import JOB, MEMBER, OTHER_MEMBER, needs_root, open_dir, people, shared

if TYPE_CHECKING:
    from neurontools.machine.machine_config import DaemonInfo

__all__ = ["open_dir", "people", "shared"]
pytestmark = pytest.mark.slow

TAKE = """
client = Client.connect()
place = client.register("job", "python job.py", cores=(2,))
print(json.dumps(place.cores), flush=True)
sys.stdin.readline()
hit = client.call("take_fault", core=2)["hit"]
print(json.dumps([hit["kind"], hit["status"], len(client.call("list_faults")["faults"])]), flush=True)
"""


@needs_root
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("call('inject_fault', kind='hang')", "inject faults into"),
        ("call('clear_faults')", "remove faults from"),
        ("call('reset_device', device=0)", "reset devices of"),
    ],
)
def test_a_member_may_not_make_or_end_faults(shared: DaemonInfo, people: Any, call: str, words: str) -> None:
    with Client.connect() as client:
        client.inject("hang", core=9)
        code, _, said = people(MEMBER, f"Client.connect().{call}").end()
        assert code == 1
        assert f"uid {MEMBER} may not {words} machine 'default': only its owner, uid 0, and root may" in said
        assert len(client.faults()) == 1


@needs_root
def test_a_member_is_hit_by_the_owners_fault(shared: DaemonInfo, people: Any) -> None:
    victim = people(MEMBER, TAKE)
    assert json.loads(victim.line()) == [2]
    with Client.connect() as client:
        client.inject("dma-abort", core=2, count=1)
        assert json.loads(victim.say("go")) == ["dma-abort", 1203, 0]


@needs_root
def test_a_member_can_not_take_the_faults_of_another(shared: DaemonInfo, people: Any) -> None:
    job = people(MEMBER, JOB)
    pid, (core, _) = json.loads(job.line())
    with Client.connect() as client:
        client.inject("generic", pid=pid, count=1)
        for call in (
            f"call('take_fault', core={core}, pid={pid})",
            f"call('release_fault', core={core}, pid={pid})",
        ):
            said = people(OTHER_MEMBER, f"Client.connect().{call}").end()[2]
            assert f"uid {OTHER_MEMBER} may not ask about process {pid}" in said
        said = people(OTHER_MEMBER, f"Client.connect().call('take_fault', core={core})").end()[2]
        assert f"does not hold core {core}" in said
        assert client.faults()[0].hits == 0
