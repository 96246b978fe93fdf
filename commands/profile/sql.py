"""neuron-profile sql: questions to the tables of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, table
from neurontools.commands import console
from neurontools.commands.profile.options import (
    add_number_output,
    add_reading_verb,
    fields_of,
    load_trace,
    print_numbers,
)
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.parsing import Verbs

_SHOWN = 1000
_EXAMPLES = """Tables and columns have the names of Neuron Explorer's Parquet files; Step and Gap are additions. Times are
nanoseconds. DuckDB answers the queries: pip install 'neurontools[profile]'.

examples:
  neuron-profile sql --show-profile-schema
  neuron-profile sql prof -q 'SELECT opcode, count(*) FROM Instruction GROUP BY 1'
  neuron-profile sql prof -q 'SELECT duration_ns FROM Step' --csv
"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_reading_verb(verbs, "sql", "run an SQL query on the tables of a profile", _sql)
    parser.epilog = _EXAMPLES
    parser.add_argument("-q", "--query", metavar="SQL", help="the query; also as the first or only argument")
    parser.add_argument("query_or_directory", nargs="?", metavar="SQL", help="the query, without -q")
    parser.add_argument(
        "--show-profile-schema", action="store_true", help="list tables and columns; needs no profile"
    )
    add_number_output(parser)


def _sql(arguments: argparse.Namespace) -> int:
    if arguments.show_profile_schema:
        columns = _schema()
        print_numbers(arguments, _text(columns), columns)
        return 0
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    from neurontools.profiler.query.sql import SqlSession

    query = _query(arguments)
    with SqlSession(load_trace(arguments)) as session:
        rows = list(session.query(query).rows())
    rows = [{name: _json_value(value) for name, value in row.items()} for row in rows]
    print_numbers(arguments, _text(rows), rows)
    return 0


def print_schema() -> None:
    """Print all tables and columns as text."""
    console.out(_text(_schema()))


def _schema() -> list[dict[str, Any]]:
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    from neurontools.profiler.query.sql import SqlSession, empty_trace

    with SqlSession(empty_trace()) as session:
        return [fields_of(each) for each in session.schema()]


def _query(arguments: argparse.Namespace) -> str:
    """Return the query, and leave the profile in `arguments.directory`."""
    words = [word for word in (arguments.directory, arguments.query_or_directory) if word is not None]
    query: str | None = arguments.query
    if query is None and words:
        # A query has blanks, and is not the name of a directory that exists.
        at_word = next((at for at, word in enumerate(words) if " " in word.strip()), None)
        query = None if at_word is None else words.pop(at_word)
    if not query or not query.strip():
        raise UsageError("no query given", "neuron-profile sql 'SELECT count(*) FROM Instruction' DIR")
    if len(words) > 1:
        raise UsageError(f"several profiles given: {', '.join(words)}", "give one")
    arguments.directory = words[0] if words else None
    return query


def _text(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    numeric = {name: all(isinstance(row[name], (int, float)) for row in rows) for name in names}
    lines = [tuple("" if row[name] is None else str(row[name]) for name in names) for row in rows[:_SHOWN]]
    text = table(names, lines, "".join(">" if numeric[name] else "<" for name in names))
    if len(rows) > _SHOWN:
        console.warn(f"{plural(len(rows) - _SHOWN, 'row')} not shown: --csv or --json print all")
    return text


def _json_value(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, dict, list, type(None))) else str(value)
