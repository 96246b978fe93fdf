"""Print the table of README.md from the lines that `plugin.py --cases` wrote.

python -m tests.nki.public_library.table FILE...
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.nki.public_library.cases import TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Iterable

BEYOND = "beyond target"
_COLUMNS = ("cases", "left out", "ran", "passed", BEYOND, TOO_LARGE, "failed", "not run")
_LIMITS = re.compile(
    r"needs trn\d, this is|does not run on the \w+ engine of trn1|of 196608 a partition|column tile of 32"
)
"""Errors of kernels that ask for what the documents deny the target."""


def outcome_of(line: dict[str, Any]) -> str:
    """Return what became of a case."""
    is_beyond = line["outcome"] == "failed" and _LIMITS.search(line["reason"].splitlines()[0])
    return BEYOND if is_beyond else str(line["outcome"])


def counts(lines: list[dict[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    """Return how many cases of each target and file had each outcome: those of one rank."""
    cases: dict[tuple[str, str, str], dict[str, Any]] = {}
    files: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        if "case" in line:
            cases[line["target"], line["file"], line["case"]] = line
        else:
            files[line["target"], line["file"]] = line
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (target, file, _case), line in cases.items():
        outcome = "several ranks" if line["ranks"] > 1 else outcome_of(line)
        found[target, file]["left out" if outcome == "skipped" else outcome] += 1
    for key, line in files.items():
        count = found[key]
        if "collectives/" in key[1]:
            del found[key]  # all of its launches have several ranks
            continue
        count["cases"] = line["cases"] - count["several ranks"]
        count["left out"] += line["left_out"]
        count["ran"] = sum(count[name] for name in ("passed", "failed", BEYOND, TOO_LARGE))
        count["not run"] = count["cases"] - count["ran"] - count["left out"]
    return found


def table(found: dict[tuple[str, str], Counter[str]]) -> str:
    """Return a row for each file and target, and the sums of each target."""
    rows = ["| target | file | " + " | ".join(_COLUMNS) + " |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for target in sorted({target for target, _file in found}):
        chosen = sorted((file, count) for (other, file), count in found.items() if other == target)
        total = sum((count for _file, count in chosen), Counter())
        for file, count in (*chosen, ("**all**", total)):
            rows.append(
                f"| {target} | {_short(file)} | "
                + " | ".join(str(count[column] or "") for column in _COLUMNS)
                + " |"
            )
    return "\n".join(rows)


def shares(found: dict[tuple[str, str], Counter[str]]) -> str:
    """Return the percentages of each target."""
    lines = []
    for target in sorted({target for target, _file in found}):
        total = sum((count for (other, _file), count in found.items() if other == target), Counter())
        ran, finished = total["ran"], total["passed"] + total["failed"]
        lines.append(
            f"{target}: {total['passed']} of {finished} cases that ran to their end within the target's limits passed, "
            f"{total['passed'] / max(finished, 1):.1%}; of {ran} that ran, {total[BEYOND]} more ask for what the target "
            f"lacks, and {total[TOO_LARGE]} are too large"
        )
    return _list(lines)


def rest(lines: list[dict[str, Any]]) -> str:
    """Return the cases of one rank that did not pass, by reason."""
    reasons: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    latest = {(line["target"], line["file"], line["case"]): line for line in lines if "case" in line}
    for (target, file, case), line in latest.items():
        outcome = outcome_of(line)
        if outcome in {"failed", BEYOND, TOO_LARGE} and line["ranks"] == 1:
            reason = re.sub(
                r"(\S*/|neurontools.nki.errors.KernelError: )", "", line["reason"].splitlines()[0]
            )
            reason = "more than 6 GiB" if outcome == TOO_LARGE and "CPU" not in reason else reason
            reason = re.sub(
                r"beyond \d+ s", "too many seconds", re.sub(r"\(0, \d+\)|byte \d+", "...", reason)
            )
            reasons[target, file, f"{outcome}: {reason}"].append(case)
    return _list(
        f"{target} {_short(file)}: {reason}: {len(names)}, `{names[0][:90]}`"
        for (target, file, reason), names in sorted(reasons.items())
    )


def _short(file: str) -> str:
    return file.removeprefix("core/").removeprefix("experimental/").replace("test_", "")


def _list(items: Iterable[str]) -> str:
    return "\n".join(
        textwrap.fill(
            f"- {item}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for item in items
    )


def main() -> None:
    """Print table, percentages and the rest."""
    lines = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    found = counts(lines)
    print(table(found), shares(found), rest(lines), sep="\n\n")  # noqa: T201


if __name__ == "__main__":
    main()
