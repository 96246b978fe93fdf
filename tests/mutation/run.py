"""Test the tests: `python tests/mutation/run.py [--count N] [--seed S] [--write]` (`make mutation`).

Each mutant is tested by the test files that execute its line, until one fails: those of its own folder first, then the
quickest. Only some folders' tests are tried, and only as many files as run in two minutes, so the score is a lower bound.
A mutant that none of them executes counts as survived. A mutant that was found stays found
while its file is unchanged: a second run tests the survivors again. The sample is kept in sample.json, so that the
score shows what new tests find; `--redraw` draws another one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[2]))

from tests.mutation import coverage_map
from tests.mutation.mutants import Mutant, sample
from tests.mutation.worker import Worker

if TYPE_CHECKING:
    from tests.mutation.coverage_map import TestFile

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("machine", "cache", "xla", "compiler", "customop")
TEST_FOLDERS = (*FOLDERS, "api", "commands", "faults", "links", "precompile", "runtime")
SAMPLE = Path(__file__).with_name("sample.json")
RESULTS = Path(__file__).with_name("RESULTS.md")
TARGET = 0.85
FOUND = ("killed", "timeout")
_MIN_TIMEOUT_S = 30.0
_BUDGET_S = 120.0


def main() -> int:
    """Return 0 where at least 85 % of the mutants are found."""
    arguments = _arguments()
    directory = Path(arguments.directory)
    directory.mkdir(parents=True, exist_ok=True)
    workers = [Worker(directory / f"worker-{index}", REPOSITORY) for index in range(arguments.workers)]
    store = directory / "map.json"
    if arguments.map or not store.exists():
        folders = tuple(f"tests/{folder}" for folder in TEST_FOLDERS)
        coverage_map.measure(workers[0], folders, arguments.workers, store)
    tests = coverage_map.load(store)
    kept = (
        [] if arguments.redraw else [tuple(place) for place in json.loads(SAMPLE.read_text(encoding="utf-8"))]
    )
    mutants = sample(workers[0].package, FOLDERS, arguments.count, arguments.seed, kept)
    outcomes = _test_all(list(mutants.values()), tests, workers, directory / "found")
    report = _report(outcomes, arguments)
    print(report)
    if arguments.write:
        RESULTS.write_text(report, encoding="utf-8")
        SAMPLE.write_text("[\n" + ",\n".join(map(json.dumps, mutants)) + "\n]\n", encoding="utf-8")
    return 0 if _score(outcomes.values()) >= TARGET else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side (2)")
    parser.add_argument("--directory", default=REPOSITORY / ".mutation", help="working files (.mutation)")
    parser.add_argument("--map", action="store_true", help="measure again which tests execute which lines")
    parser.add_argument("--redraw", action="store_true", help="draw another sample")
    parser.add_argument("--write", action="store_true", help="keep the result in tests/mutation/RESULTS.md")
    return parser.parse_args()


def _test_all(
    mutants: list[Mutant], tests: list[TestFile], workers: list[Worker], store: Path
) -> dict[Mutant, str]:
    digests = {
        mutant: hashlib.sha256(mutant.source(workers[0].package).encode()).hexdigest() for mutant in mutants
    }
    known = (
        dict(line.split() for line in store.read_text(encoding="utf-8").splitlines())
        if store.exists()
        else {}
    )
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)
    lock = threading.Lock()
    outcomes: dict[Mutant, str] = {}
    # Each mutant in a process of its own: a worker adopts and kills what its tests leave running.
    context = get_context("fork")

    def test(mutant: Mutant) -> None:
        if digests[mutant] in known:
            outcomes[mutant] = known[digests[mutant]]
            return
        worker = free.get()
        try:
            answer = context.SimpleQueue()
            process = context.Process(target=lambda: answer.put(_test(mutant, tests, worker)))
            process.start()
            outcome = answer.get()
            process.join()
        finally:
            free.put(worker)
        with lock:
            outcomes[mutant] = outcome
            if outcome in FOUND:
                with store.open("a", encoding="utf-8") as file:
                    file.write(f"{digests[mutant]} {outcome}\n")
            print(f"{len(outcomes):4} {outcome:9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(test, mutants))
    return outcomes


def _test(mutant: Mutant, tests: list[TestFile], worker: Worker) -> str:
    path = worker.package / mutant.file
    original = path.read_text(encoding="utf-8")
    covering = _covering(mutant, tests)
    if not covering:
        return "uncovered"
    try:
        path.write_text(mutant.source(worker.package), encoding="utf-8")
        for group in _groups(covering):
            timeout_s = max(_MIN_TIMEOUT_S, 4 * sum(test.duration_s for test in group))
            failing = [f"--deselect={name}" for test in group for name in test.failing]
            outcome, _ = worker.run([test.name for test in group], timeout_s, "-x", *failing)
            if outcome != "passed":
                return "killed" if outcome == "failed" else "timeout"
    finally:
        path.write_text(original, encoding="utf-8")
    return "survived"


def _covering(mutant: Mutant, tests: list[TestFile]) -> list[TestFile]:
    """Return the test files that execute the line, as far as they fit into the budget.

    Where none is known to, those that execute another line of the module: what a killed process executed is not known.
    """
    folder = Path("tests", mutant.file).parent
    users = [test for test in tests if mutant.file in test.lines]
    candidates = sorted(
        [test for test in users if mutant.line in test.lines[mutant.file]] or users,
        key=lambda test: (not Path(test.name).is_relative_to(folder), test.duration_s),
    )
    chosen: list[TestFile] = []
    left_s = _BUDGET_S
    for test in candidates:
        if test.duration_s <= left_s:
            chosen.append(test)
            left_s -= test.duration_s
    return chosen


def _groups(tests: list[TestFile]) -> list[list[TestFile]]:
    """Return the test files in groups that run in one process, each about twice as long as the one before."""
    groups: list[list[TestFile]] = []
    size_s, limit_s = 0.0, 3.0
    for test in tests:
        if not groups or (size_s + test.duration_s > limit_s and groups[-1]):
            groups.append([])
            size_s, limit_s = 0.0, limit_s * 2
        groups[-1].append(test)
        size_s += test.duration_s
    return groups


def _score(outcomes: object) -> float:
    counts = Counter(outcomes)  # type: ignore[call-overload]
    return sum(counts[outcome] for outcome in FOUND) / max(1, counts.total())


def _report(outcomes: dict[Mutant, str], arguments: argparse.Namespace) -> str:
    lines = [
        "# Mutation testing",
        "",
        f"`python tests/mutation/run.py --count {arguments.count} --seed {arguments.seed}`: a random sample of",
        f"lines, one fault in each, tested by the test files of {', '.join(TEST_FOLDERS)}",
        f"that execute the line: those of its own folder first, then the quickest, at most {_BUDGET_S:.0f} s of tests for",
        "a mutant. The score is a lower bound. Decorators and constants that are only numbers, such as periods, are left out.",
        "",
        "| folder | mutants | found | by a timeout | survived | not executed | score |",
        "|---|---|---|---|---|---|---|",
    ]
    for folder in (*FOLDERS, ""):
        counts = Counter(
            outcome
            for mutant, outcome in outcomes.items()
            if mutant.file.startswith(f"{folder}/" if folder else "")
        )
        score = _score(counts.elements())
        lines.append(
            f"| {folder or 'all'} | {counts.total()} | {counts['killed']} | {counts['timeout']} |"
            f" {counts['survived']} | {counts['uncovered']} | {100 * score:.1f} % |"
        )
    missed = sorted(
        (mutant.file, mutant.line, mutant.operator.removeprefix("core/"), outcome)
        for mutant, outcome in outcomes.items()
        if outcome not in FOUND
    )
    if missed:
        lines += ["", "Not found:", ""]
        lines += [f"- `{file}:{line}` {operator} ({outcome})" for file, line, operator, outcome in missed]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
