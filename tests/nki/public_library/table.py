"""Print the table of README.md from the lines that `plugin.py --cases` wrote.

python -m tests.nki.public_library.table FILE...
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.nki.public_library.cases import TOO_LARGE

_COLUMNS = ("cases", "left out", "ran", "passed", TOO_LARGE, "failed", "not run")


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
        outcome = "several ranks" if line["ranks"] > 1 else line["outcome"]
        found[target, file]["left out" if outcome == "skipped" else outcome] += 1
    for key, line in files.items():
        count = found[key]
        if count["several ranks"] and not count["passed"] + count["failed"]:
            del found[key]  # all of its launches have several ranks
            continue
        count["cases"] = line["cases"] - count["several ranks"]
        count["left out"] += line["left_out"]
        count["ran"] = count["passed"] + count["failed"] + count[TOO_LARGE]
        count["not run"] = count["cases"] - count["ran"] - count["left out"]
    return found


def table(found: dict[tuple[str, str], Counter[str]]) -> str:
    """Return a row for each file and target, and the sums of each target."""
    rows = ["| target | file | " + " | ".join(_COLUMNS) + " |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for target in sorted({target for target, _file in found}):
        chosen = sorted((file, count) for (other, file), count in found.items() if other == target)
        total = sum((count for _file, count in chosen), Counter())
        for file, count in (*chosen, ("**all**", total)):
            name = file.removeprefix("core/").removeprefix("experimental/").replace("test_", "")
            rows.append(
                f"| {target} | {name} | " + " | ".join(str(count[column] or "") for column in _COLUMNS) + " |"
            )
    return "\n".join(rows)


def shares(found: dict[tuple[str, str], Counter[str]]) -> str:
    """Return the percentages of each target."""
    lines = []
    for target in sorted({target for target, _file in found}):
        total = sum((count for (other, _file), count in found.items() if other == target), Counter())
        ran, finished = total["ran"], total["passed"] + total["failed"]
        lines.append(
            f"- {target}: {total['passed']} of {finished} cases that ran to their end passed, "
            f"{total['passed'] / max(finished, 1):.1%}; {total[TOO_LARGE]} more of {ran} were too large"
        )
    return "\n".join(lines)


def rest(lines: list[dict[str, Any]]) -> str:
    """Return the cases of one rank that did not pass, by reason."""
    reasons: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    latest = {(line["target"], line["file"], line["case"]): line for line in lines if "case" in line}
    for (target, file, case), line in latest.items():
        if line["outcome"] in {"failed", TOO_LARGE} and line["ranks"] == 1:
            reason = re.sub(r"/\S*/", "", line["reason"].splitlines()[0])[:160]
            reason = "memory" if line["outcome"] == TOO_LARGE and "CPU" not in reason else reason
            reasons[target, file, f"{line['outcome']}: {reason}"].append(case)
    return "\n".join(
        f"- {target} {file}: {reason}: {len(names)}, e.g. `{names[0]}`"
        for (target, file, reason), names in sorted(reasons.items())
    )


def main() -> None:
    """Print table, percentages and the rest."""
    lines = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    found = counts(lines)
    print(table(found), shares(found), rest(lines), sep="\n\n")  # noqa: T201


if __name__ == "__main__":
    main()
