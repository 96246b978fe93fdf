"""The fuzzer itself: inputs that can be repeated, failures that are seen, reproducers that are short."""

from __future__ import annotations

import json
import signal
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from neurontools.errors import NeuronToolsError
from tests.fuzz import targets, worker
from tests.fuzz.mutation import Format, dump, mutate, parse
from tests.fuzz.shrinking import shrink
from tests.fuzz.target import Target, WrongOutputError, run

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = b'{"a": [1, 2.5, "text"], "b": {"c": null, "d": true}}'


@pytest.fixture
def limits() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, worker._interrupt)
    yield
    signal.signal(signal.SIGPROF, before)


def target(check: object, limit_s: float = 30.0) -> Target:
    return Target("group/name", Format.JSON, lambda: [DOCUMENT], check, limit_s=limit_s)  # type: ignore[arg-type]


def test_a_document_is_written_as_it_was_read() -> None:
    text = b'{"a": [1, 1e400, NaN, "\\ud800"], "a": {}}'
    assert dump(parse(text, Format.JSON), Format.JSON) == text


@pytest.mark.parametrize("form", Format)
def test_equal_numbers_give_equal_inputs(form: Format) -> None:
    inputs = [mutate([DOCUMENT], form, (), Random(f"1/{number}")) for number in range(200)]
    assert inputs == [mutate([DOCUMENT], form, (), Random(f"1/{number}")) for number in range(200)]
    assert len(set(inputs)) > 150


def test_mutants_are_mostly_documents() -> None:
    def is_document(data: bytes) -> bool:
        try:
            json.loads(data)
        except (ValueError, RecursionError):
            return False
        return True

    made = [mutate([DOCUMENT], Format.JSON, (), Random(number)) for number in range(300)]
    assert sum(map(is_document, made)) > 150


@pytest.mark.usefixtures("limits")
def test_every_exception_but_a_refusal_is_a_failure() -> None:
    def refuse(_: bytes) -> None:
        raise NeuronToolsError("no")

    def fail(data: bytes) -> None:
        int(data)

    assert worker.attempt(target(refuse), b"") is None
    failure = worker.attempt(target(fail), b"x")
    assert failure is not None
    assert (failure.kind, failure.site.rpartition(":")[2]) == ("ValueError", "fail")


@pytest.mark.usefixtures("limits")
def test_an_input_that_takes_too_long_is_a_failure() -> None:
    def spin(_: bytes) -> None:
        while True:
            pass

    failure = worker.attempt(target(spin, limit_s=0.05), b"")
    assert failure is not None
    assert failure.kind == "TooSlow"


def test_a_reproducer_is_short() -> None:
    assert shrink(DOCUMENT, Format.JSON, lambda data: b'"c"' in data) == b'"c"'
    assert shrink(b"a" * 1000 + b"x", Format.TEXT, lambda data: b"x" in data) == b"x"


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b", "\u202e", "\r"])
def test_raw_control_characters_are_a_failure(text: str) -> None:
    def main(_: object) -> int:
        sys.stdout.write(text)
        return 0

    with pytest.raises(WrongOutputError, match="printed a control character"):
        run(main)


@pytest.mark.parametrize("text", ['{"a": NaN}', "nothing", '{"a": 1}\n{"a": Infinity}'])
def test_json_that_others_cannot_read_is_a_failure(text: str) -> None:
    def main(_: object) -> int:
        sys.stdout.write(text)
        return 0

    with pytest.raises(WrongOutputError, match="JSON"):
        run(main, is_json=True)


def test_names_are_unique_and_corpus_files_belong_to_targets() -> None:
    names = [found.name for found in targets.load()]
    assert len(names) == len(set(names))
    folders = {
        str(path.parent.relative_to(worker.CORPUS)) for path in worker.CORPUS.rglob("*") if path.is_file()
    }
    assert folders <= set(names)
