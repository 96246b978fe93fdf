"""Ranks of one program as a job, its slowest rank, and like events as one."""

from __future__ import annotations

import pytest

from neurontools.dashboard.events import MachineEvent, MachineEventKind, fold
from neurontools.dashboard.process_rows import ProcessJob, ProcessRow, find_jobs
from neurontools.machine.snapshot import LATENCY_BUCKETS, CoreUse, ProcessState

SECOND_NS = 1_000_000_000


def rank(number: int, *, tag: str = "llama", command: str = "", bucket: int = 30, uid: int = 1) -> ProcessRow:
    counts = [0] * LATENCY_BUCKETS
    before = ProcessState(
        pid=100 + number,
        start_ticks=number,
        uid=uid,
        command=command or f"python train.py --rank {number}",
        tag=tag,
        runtime_version="2",
        origin="live",
        uses_device=True,
        cores=(CoreUse(number),),
        latency_counts=tuple(counts),
    )
    counts[bucket] = 50
    cores = (CoreUse(number, busy_ns=SECOND_NS // 2, executions=50),)
    after = ProcessState(
        **{name: getattr(before, name) for name in before.__struct_fields__}
        | {"cores": cores, "latency_counts": tuple(counts)}
    )
    return ProcessRow(before, after, SECOND_NS, 5.0, None)


def test_ranks_of_one_program_are_a_job_at_the_place_of_the_first() -> None:
    other = rank(9, tag="serve", command="python serve.py")
    found = find_jobs([rank(2), other, rank(0), rank(1)])
    job = found[0]
    assert isinstance(job, ProcessJob)
    assert [row.process.pid for row in job.rows] == [100, 101, 102]
    assert (job.name, job.utilization, job.executions_s) == ("llama", 0.5, 150.0)
    assert found[1] is other


def test_two_processes_or_those_of_different_users_tags_and_programs_stay_apart() -> None:
    rows = [rank(0), rank(1), rank(2, uid=2), rank(3, tag="eval"), rank(4, command="python other.py 4")]
    assert find_jobs(rows) == tuple(rows)


def test_numbered_tags_are_one_job_and_its_name_has_no_number() -> None:
    rows = [rank(number, tag=f"rank-{number}", command="python train.py") for number in range(4)]
    (job,) = find_jobs(rows)
    assert isinstance(job, ProcessJob)
    assert job.name == "rank"


def test_the_slowest_rank_is_named_by_its_command_if_it_is_slower_than_the_others() -> None:
    (alike,) = find_jobs([rank(number) for number in range(4)])
    assert isinstance(alike, ProcessJob)
    assert alike.slowest is None
    (job,) = find_jobs([rank(number, bucket=34 if number == 17 else 30) for number in range(16, 20)])
    assert isinstance(job, ProcessJob)
    assert job.slowest is not None
    number, ratio = job.slowest
    assert number == 17
    assert 3.5 < ratio < 4.5


def event(second: float, what: str, kind: MachineEventKind = MachineEventKind.STARTED) -> MachineEvent:
    return MachineEvent(second, kind, what, pid=int("".join(filter(str.isdigit, what)) or 0))


def test_like_events_within_seconds_are_one_with_their_number() -> None:
    started = [event(10 + number / 100, f"process {number} started: llama") for number in range(32)]
    (folded,) = fold(reversed(started))
    assert folded.text == "llama x32 started, pids 0 to 31"
    assert folded.newest is started[-1]


@pytest.mark.parametrize(
    ("texts", "folded"),
    [
        ([f"process {9 - n} started: llama-rank{n}" for n in range(8)], "llama-rank0-7 x8 started"),
        (["link ND8 to ND9 is down", "link ND9 to ND10 is down"], "link ND8, 9 to ND9, 10 is down (2 times)"),
        (["process 5: NRT_TIMEOUT (5)"] * 3, "process 5: NRT_TIMEOUT (5) (3 times)"),
        (
            [f"process {n}: NRT_TIMEOUT (5)" for n in (7, 5, 30, 2, 1)],
            "process 1-30: NRT_TIMEOUT (5) (5 times)",
        ),
    ],
)
def test_a_line_for_several_names_all_of_them(texts: list[str], folded: str) -> None:
    kind = MachineEventKind.STARTED if "started" in texts[0] else MachineEventKind.LINK_DOWN
    (line,) = fold(reversed([event(second, text, kind) for second, text in enumerate(texts)]))
    assert line.text.startswith(folded)


def test_other_kinds_texts_and_times_stay_apart() -> None:
    events = [
        event(40, "process 3 ended: llama", MachineEventKind.ENDED),
        event(39, "process 3 started: llama"),
        event(20, "process 2 started: llama"),
        event(19, "process 1 started: serve"),
    ]
    assert [folded.text for folded in fold(events)] == [one.text for one in events]
