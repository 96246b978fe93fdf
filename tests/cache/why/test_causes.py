"""The causes of a compile, told from entries and from the journal, without a program that runs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache import events, layouts
from neurontools.cache.entry_io import Provenance
from neurontools.cache.graph_reader import facts_of_graph
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.walk import EntryRef
from neurontools.cache.why import precedents
from neurontools.cache.why.causes import CauseName, CompiledGraph, find_causes, find_shared_causes
from neurontools.cache.why.compare import EntryFacts, Subject, compare
from neurontools.cache.why.explain import RunExplanation
from neurontools.cache.why.precedents import CompileJournal
from neurontools.cache.why.report import ReportStyle, format_run
from neurontools.commands.cache import main
from neurontools.compiler.graph import Lifted, Node, Slot
from neurontools.machine.instances.catalogue import instance_type
from tests.cache import hlo_modules
from tests.cache.entries import an_entry
from tests.compiler.graphs import custom_graph, graph_of, mlp, tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.cache.store import CompileCache
    from neurontools.cache.why.causes import Cause
    from neurontools.compiler.graph import Graph
    from tests.cache.conftest import Tree

TRN1 = instance_type("trn1.2xlarge").device
REAL = "2.16.372.0+4a9b2326"


def facts(graph: Graph, **changes: Any) -> EntryFacts:
    values: dict[str, Any] = {
        "entry": an_entry(),
        "graph_hash": graph.module_hash(),
        "flags": ("--target=trn1",),
        "graph": facts_of_graph(graph),
        "header": None,
        "origin": None,
        "unread": (),
    }
    return EntryFacts(**(values | changes))


def told(old: Graph, new: Graph) -> tuple[Cause, ...]:
    return find_causes(compare(facts(old), facts(new)))


def step(*names: str, rows: int = 8, dtype: str = "float32") -> Graph:
    """A line of operators, each on the result of the one before; `name=value` has a constant."""
    nodes = []
    for number, word in enumerate(names):
        name, _, value = word.partition("=")
        args = (tensor(number, rows, 4, dtype=dtype), *((float(value),) if value else ()))
        result = tensor(number + 1, rows, 4, dtype=dtype)
        nodes.append(Node(f"aten.{name}.default", args, (), (result,), f"train.py:{number + 1}"))
    return graph_of(*nodes, inputs=(0,))


def test_equal_entries_have_no_cause() -> None:
    comparison = compare(facts(mlp()), facts(mlp()))
    assert (comparison.differences, find_causes(comparison)) == ((), ())


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (step("relu", "exp", rows=8), step("relu", "exp", rows=12), CauseName.SHAPE),
        (step("relu", "exp", rows=8), step("relu", "exp", rows=3), CauseName.SHAPE),
        (step("relu", "add=1"), step("relu", "add=2"), CauseName.SCALAR),
        (step("relu", "exp"), step("relu", "exp", dtype="bfloat16"), CauseName.DTYPE),
        (step("relu", "exp", "tanh"), step("relu", "native_dropout", "exp", "tanh"), CauseName.MODE),
        (step("mm", "relu", "mul"), step("mm", "gelu", "mul"), CauseName.CODE),
        (step("mm", "relu"), step("mm", "gelu", dtype="bfloat16"), CauseName.CODE),
        (step("mm", "relu", rows=8), step("mm", "gelu", rows=3), CauseName.CODE),
    ],
    ids=lambda value: str(value) if isinstance(value, CauseName) else "",
)
def test_a_cause_is_derived_from_two_graphs(old: Graph, new: Graph, name: CauseName) -> None:
    assert [cause.name for cause in told(old, new)] == [name]


@pytest.mark.parametrize("shorter", ["old", "new"])
def test_a_cut_moves_only_within_a_run(shorter: str) -> None:
    """In another run the script may have been edited, so that other lines end the graph."""
    short = replace(step("relu", "exp"), cut="mark_step at train.py:9")
    long = replace(step("relu", "exp", "tanh", "sum"), cut="mark_step at train.py:12")
    pair = (short, long) if shorter == "old" else (long, short)
    comparison = compare(*map(facts, pair))
    assert [cause.name for cause in find_causes(comparison, same_run=True)] == [CauseName.CUT]
    assert [cause.name for cause in find_causes(comparison)] == [CauseName.CODE]


@pytest.mark.parametrize("cut", [".item()", "bool", "print of a tensor", "copy to the CPU", "aten::nonzero"])
def test_a_value_read_that_cuts_what_was_one_graph_is_reported_with_its_line(cut: str) -> None:
    long = replace(step("relu", "exp", "tanh", "sum"), cut="mark_step at train.py:12")
    short = replace(step("relu", "exp", "tanh", "max"), cut=f"{cut} at train.py:7")
    (cause,) = told(long, short)
    assert cause.name is CauseName.READ
    assert cause.text.startswith(f"a value is read at train.py:7 ({cut})")


def test_a_tensor_that_is_still_held_is_reported_with_its_operator() -> None:
    plain = step("relu", "exp")
    (cause,) = told(plain, replace(plain, outputs=(1, 2)))
    assert cause.name is CauseName.CODE
    assert "aten.relu.default at train.py:1" in cause.text


def test_a_library_that_was_built_anew_is_reported() -> None:
    one, _ = custom_graph(b"\x7fELF one")
    other, _ = custom_graph(b"\x7fELF other")
    (cause,) = told(one, other)
    assert cause.name is CauseName.CODE
    assert "custom-operator libraries" in cause.text


def test_a_float_that_is_an_input_takes_no_part() -> None:
    node = Node("aten.mul.Scalar", (tensor(0, 4), Lifted(0)), (), (tensor(1, 4),))
    graph = replace(graph_of(node, inputs=(0,)), lifted=1)
    assert told(graph, graph) == ()


def test_a_constant_in_the_place_of_an_input_is_reported() -> None:
    def multiply(value: Lifted | float) -> Graph:
        node = Node("aten.mul.Scalar", (tensor(0, 4), value), (), (tensor(1, 4),))
        return replace(graph_of(node, inputs=(0,)), lifted=1)

    (cause,) = told(multiply(Lifted(0)), multiply(1))
    assert cause.name is CauseName.SCALAR
    assert cause.text.startswith("only constants differ: another number -> 1 in aten.mul.Scalar")
    assert cause.values == ("another number", "1")
    assert cause.advice.startswith("0, 1, -1 and integers")


def test_buffers_behind_equal_tensors_are_reported() -> None:
    plain = step("relu")
    bigger = replace(plain, slots=(Slot(4096), *plain.slots[1:]))
    (cause,) = told(plain, bigger)
    assert cause.name is CauseName.CODE


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (("--a=1", "--b"), ("--b", "--a=1"), "the same flags in another order, which is part of the key"),
        (("--logfile=/a/x.txt",), ("--logfile=/b/x.txt",), "--logfile=/a/x.txt -> --logfile=/b/x.txt"),
        ((), ("--dump-to=~/x",), "--dump-to=~/x was added"),
        (
            ("--logfile=/a", "-O1"),
            ("--logfile=/b", "-O2"),
            "--logfile=/a -> --logfile=/b; -O1 was removed; -O2 was added",
        ),
        (("--model=big",), ("--model=small", "-O1"), "--model=big -> --model=small; -O1 was added"),
    ],
)
def test_flags_are_reported(old: tuple[str, ...], new: tuple[str, ...], text: str) -> None:
    comparison = compare(facts(mlp(), flags=old), facts(mlp(), flags=new))
    (cause,) = find_causes(comparison)
    assert (cause.name, cause.text) == (CauseName.FLAGS, text)


def test_series_need_three_sizes_and_say_where_to_pad() -> None:
    graphs = [facts_of_graph(step("relu", "exp", rows=rows)) for rows in (5, 6, 7, 100)]
    (series,) = find_shared_causes(
        [CompiledGraph(f"M{number}", graph) for number, graph in enumerate(graphs)]
    )
    assert series.cause.name is CauseName.SHAPE
    assert series.cause.values == ("5", "6", "7", "100")
    assert "buckets such as 8, 128, 2 compiles" in series.cause.advice
    assert series.modules == ("M0", "M1", "M2", "M3")


def test_a_graph_that_was_cached_before_shows_a_cut_that_is_new() -> None:
    halves = [facts_of_graph(step("relu", "exp")), facts_of_graph(step("tanh", "sum"))]
    whole = facts_of_graph(step("relu", "exp", "tanh", "sum"))
    (series,) = find_shared_causes([CompiledGraph("A", halves[0]), CompiledGraph("B", halves[1])], [whole])
    assert (series.cause.name, series.modules) == (CauseName.CUT, ("A", "B"))


# Entries of real compilers, written by hand


def real(tree: Tree, name: str, content: bytes, flags: tuple[str, ...] = ("--target=trn1",)) -> str:
    return str(tree.entry(graph=name, flags=flags, compiler=REAL, files={layouts.GRAPH: content}))


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["why", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (hlo_modules.mlp(rows=12), "input shape changed"),
        (hlo_modules.mlp(scale=0.25), "Python scalar baked in"),
        (hlo_modules.mlp(groups=((0, 1, 2, 3),)), "computation changed"),
        (hlo_modules.mlp(first=50), "computation changed"),
    ],
    ids=["rows", "constant", "groups", "ids"],
)
def test_hlo_modules_of_a_real_cache_are_explained(
    tree: Tree, capsys: pytest.CaptureFixture[str], content: bytes, cause: str
) -> None:
    one = real(tree, "111", hlo_modules.mlp())
    other = real(tree, "222", content)
    report = ask(capsys, one, other)
    assert report["causes"][0]["name"] == cause
    assert report["unread"] == []
    # The same entry is the nearest one that is found without a name.
    assert ask(capsys, other)["nearest"]["path"] == one


def test_what_cannot_be_read_is_reported(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    one = real(tree, "111", hlo_modules.mlp())
    other = real(tree, "222", b"hlo", ("--target=trn2",))
    report = ask(capsys, one, other)
    assert report["graph"] is None
    assert [item["text"] for item in report["differences"]] == ["--target=trn1 -> --target=trn2"]
    assert "its graph (model.hlo_module.pb): it is not an HLO module" in report["unread"][0]
    assert main(["why", one, other]) == 0
    assert "what could not be read" in capsys.readouterr().out


def test_an_upgraded_compiler_is_reported_across_directories(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    content = hlo_modules.mlp()
    old = tree.entry(graph="7", compiler="2.15.1.0+aaaa", files={layouts.GRAPH: content})
    new = tree.entry(graph="7", compiler=REAL, files={layouts.GRAPH: content})
    report = ask(capsys, str(new))
    assert report["nearest"]["path"] == str(old)
    assert report["causes"][0]["name"] == "compiler changed"


def test_entries_of_two_caches_are_compared_by_path(
    tree: Tree, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    one = real(tree, "111", hlo_modules.mlp())
    elsewhere = home / "disk"
    shutil.copytree(tree.root, elsewhere)
    other = one.replace(str(tree.root), str(elsewhere))
    report = ask(capsys, one, other)
    assert (report["differences"], report["causes"]) == ([], [])
    assert main(["why", one, str(home / "disk")]) == 1
    assert "is not an entry" in capsys.readouterr().err


# The journal


@pytest.fixture
def look_up(open_cache: Callable[..., CompileCache], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Look graphs up in one run of the given name."""

    def look(run: str, *graphs: Graph, url: str | None = None, **variables: str) -> None:
        monkeypatch.setattr(events, "_run_of", lambda _: run)
        cache = open_cache(url, **variables)
        for graph in graphs:
            cache.get_or_compile(graph, TRN1, "net")
        cache.close()

    return look


def causes_of_run(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    return [[cause["name"] for cause in miss["causes"]] for miss in ask(capsys, *words)["misses"]]


def test_a_deleted_cache_is_reported_once_for_all_graphs(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    graphs = (mlp(), step("relu", "exp"), step("gelu", "tanh"))
    look_up("a", *graphs)
    shutil.rmtree(home / "compile-cache")
    look_up("b", *graphs)
    report = ask(capsys, "--last")
    (cause,) = report["causes"]
    assert (cause["name"], len(cause["modules"])) == ("entry was removed", 3)
    assert main(["why", "--last"]) == 0
    assert capsys.readouterr().out.count("as above   entry was removed") == 3


def test_a_cut_at_the_same_line_did_not_move() -> None:
    cut = "mark_step at train.py:9"
    longer = replace(step("relu", "exp", "tanh"), cut=cut)
    (cause,) = told(replace(step("relu", "exp"), cut=cut), longer)
    assert (cause.name, cause.text) == (
        CauseName.CODE,
        "2 of 3 operators are the same; the graphs part at train.py:3",
    )


def test_a_backward_pass_that_only_one_graph_has_is_named() -> None:
    forward, added = ("relu", "exp", "tanh", "sin"), ("tanh_backward", "exp")
    for old, new, word in (
        (step(*forward), step(*forward, *added), "new"),
        (step(*forward, *added), step(*forward), "gone"),
    ):
        (cause,) = told(old, new)
        assert cause.name is CauseName.CODE
        assert cause.text.endswith(f"the backward pass is {word}")


def test_another_layer_in_the_model_is_another_computation() -> None:
    """Lists of other lengths, of several types, are no change of types."""

    def lists(number: int) -> Graph:
        tensors = tuple(tensor(slot, 4, dtype="int64" if slot % 2 else "float32") for slot in range(number))
        more = step("mm", *(["relu"] * number))
        node = Node("aten._foreach_add_.List", (tensors,), (), (), "train.py:30")
        return graph_of(node, *more.nodes, inputs=tuple(range(number)))

    (cause,) = told(lists(5), lists(6))
    assert cause.name is CauseName.CODE


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({}, 0.0),
        ({"entry": an_entry(compiler="neuronxcc-1")}, 1.0),
        ({"flags": ("-O1", "--target=trn1")}, 0.2),
        ({"flags": ("-O2", "--target=trn1")}, 0.6),
        ({"flags": ()}, 1.0),
        ({"flags": None}, 1.0),
    ],
)
def test_an_entry_with_similar_flags_of_the_same_compiler_is_the_nearest(
    changes: dict[str, Any], distance: float
) -> None:
    target = facts(mlp(), flags=("--target=trn1", "-O1"))
    assert precedents._key_distance(
        target, facts(mlp(), **changes | {"flags": changes.get("flags", target.flags)})
    ) == (pytest.approx(distance))


def test_flags_that_cannot_be_read_are_not_taken_for_none() -> None:
    without, unreadable = facts(mlp(), flags=()), facts(mlp(), flags=None)
    assert (
        precedents._key_distance(without, unreadable) == precedents._key_distance(unreadable, without) == 1.0
    )


def test_likeness_is_the_share_of_operators_in_common() -> None:
    old = step("relu", "exp", "sin", "cos")
    assert precedents.likeness(facts(old), facts(step("relu", "exp", "sin", "tan"))) == 0.75
    assert precedents.likeness(facts(old), facts(step("tan"))) == 0.0
    assert precedents.likeness(facts(old), facts(old, flags=())) == 1.0


@pytest.mark.parametrize(("source", "name"), [("", ""), ("train.py:9", " at train.py:9")])
def test_a_changed_input_is_named_by_its_first_use(source: str, name: str) -> None:
    def graph(rows: int) -> Graph:
        x, y, z = tensor(0, 4, 4), tensor(1, rows, 4), tensor(2, 4, 4)
        nodes = (Node("aten.relu.default", (x,), (), (z,)), Node("aten.mm.default", (z, y), (), (z,), source))
        return graph_of(*nodes, inputs=(0, 1))

    found = compare(facts(graph(4)), facts(graph(6))).differences
    assert [item.text for item in found if item.subject is Subject.INPUTS] == [
        f"input 1: float32[4,4] -> float32[6,4], tensor 2 of aten.mm.default{name}"
    ]
    assert [item.source for item in found if item.subject is Subject.INPUTS] == [source]


def test_a_flag_of_training_that_turns_is_another_mode() -> None:
    def graph(name: str, value: object) -> Graph:
        return graph_of(
            Node(f"aten.{name}.default", (tensor(0, 4), value), (), (tensor(1, 4),), "train.py:3"),
            inputs=(0,),
        )

    (cause,) = told(graph("native_dropout", True), graph("native_dropout", False))
    assert cause.name is CauseName.MODE
    assert "only one graph has aten.native_dropout.default" in cause.text
    (other,) = told(graph("native_dropout", 0.5), graph("native_dropout", 0.25))
    assert other.name is CauseName.SCALAR
    (other,) = told(graph("cumsum", True), graph("cumsum", False))
    assert other.name is not CauseName.MODE


def test_flags_of_runs_are_reported(look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    for run, value in (("run-a", "-O1 --log=/a"), ("run-b", "-O1 --log=/b"), ("run-c", "--log=/b -O1")):
        look_up(run, mlp(), NEURON_CC_FLAGS=value)
    look_up("run-d", mlp(), NEURON_CC_FLAGS="--log=/c -O1 -O3")
    look_up("run-e", mlp(), NEURON_CC_FLAGS="-O3 --log=/c -O1")
    told = [causes_of_run(capsys, "--run", run) for run in ("run-a", "run-b", "run-c")]
    # Of many entries of the graph, the one with the same flags in another order is the nearest.
    assert causes_of_run(capsys, "--run", "run-e") == [["flags changed"]]
    assert told == [[["first compile"]], [["flags changed"]], [["flags changed"]]]


def test_what_neuron_cache_removed_is_reported(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    look_up("a", mlp())
    assert main(["rm", "--all", "-y", "--grace", "0s"]) == 0
    capsys.readouterr()
    look_up("b", mlp())
    assert causes_of_run(capsys, "--last") == [["entry was removed"]]


def test_another_cache_and_a_deleted_one_are_reported(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    look_up("a", mlp())
    look_up("b", mlp(), url=str(home / "other"))
    report = ask(capsys, "--last", "--cache-dir", str(home / "other"))
    (cause,) = report["misses"][0]["causes"]
    assert cause["name"] == "cache not used"
    assert str(home / "compile-cache") in cause["text"]
    shutil.rmtree(home / "compile-cache")
    look_up("c", mlp())
    assert causes_of_run(capsys, "--last") == [["entry was removed"]]


def test_a_damaged_entry_and_a_run_without_cache_are_reported(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    look_up("a", mlp())
    (neff,) = (home / "compile-cache").glob("*/*/model.neff")
    neff.write_bytes(neff.read_bytes()[:100])
    look_up("b", mlp())
    assert causes_of_run(capsys, "--last") == [["entry was removed"]]
    look_up("c", step("relu", "exp"), NEURON_CC_FLAGS="--no_cache")
    assert causes_of_run(capsys, "--last") == [["cache not used"]]


def test_a_run_that_passed_the_cache_by_is_distinguished_from_a_deleted_entry(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    look_up("a", mlp())
    for path in (home / "compile-cache").glob("*/*/model.*"):
        os.utime(path, (path.stat().st_mtime - 60,) * 2)
    look_up("b", mlp(), NEURON_CC_FLAGS="--no_cache")
    (miss,) = ask(capsys, "--last")["misses"]
    assert [cause["name"] for cause in miss["causes"]] == ["cache not used"]
    assert "compiled anyway" in miss["causes"][0]["text"]


def test_a_compile_after_a_failed_one_is_another_try(home: Path) -> None:
    def event(unix_s: float, run: str, kind: events.LookupEventKind) -> events.LookupEvent:
        return events.LookupEvent(unix_s, run, kind, 1.0, "MODULE_1+2")

    failed = event(1.0, "run-a", events.LookupEventKind.FAILURE)
    damaged = event(1.0, "run-a", events.LookupEventKind.DAMAGED)
    miss = event(2.0, "run-b", events.LookupEventKind.MISS)
    cause = CompileJournal(str(home), (failed, miss), "run-b").find_cause(miss)
    assert cause is not None
    assert (cause.name, cause.text) == (
        CauseName.FAILURE,
        "an earlier compile of it failed, and it was tried again",
    )
    assert CompileJournal(str(home), (damaged, miss), "run-b").find_cause(miss) is None
    cause = CompileJournal(str(home), (damaged, miss), "run-a").find_cause(miss)
    assert cause is not None
    assert cause.text.startswith("the cache had it, but the stored NEFF was damaged")
    failed_here = replace(failed, run="run-b")
    cause = CompileJournal(str(home), (failed_here, miss), "run-b").find_cause(miss)
    assert cause is not None
    assert cause.name is CauseName.FAILURE


def test_a_smaller_batch_of_another_run_is_not_a_last_batch(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    look_up("a", stepped(8))
    look_up("b", stepped(4))
    assert causes_of_run(capsys, "--last") == [["input shape changed"]]
    look_up("c", stepped(8), stepped(3))
    assert causes_of_run(capsys, "--last") == [["last partial batch"]]


def test_a_second_smaller_batch_is_a_changing_shape(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    look_up("a", *map(stepped, (24, 23, 22, 21)))
    assert causes_of_run(capsys, "--last") == [
        ["first compile"],
        ["last partial batch"],
        ["input shape changed"],
        ["input shape changed"],
    ]


def stepped(rows: int) -> Graph:
    """A step of a script that `pytest` runs."""
    return replace(step("relu", "exp", rows=rows), cut="mark_step at train.py:9")


def test_the_first_of_a_series_keeps_its_own_cause(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    look_up("a", stepped(8))
    look_up("b", *map(stepped, (12, 4)))
    assert main(["why", "--last"]) == 0
    shown = capsys.readouterr().out
    assert "input shape changed\n     sizes 8 -> 12" in shown
    assert "as above   last partial batch: 12 -> 4" in shown


def test_another_optimizer_is_not_the_first_step_of_one() -> None:
    zeros = Node("aten.zeros_like.default", (tensor(0, 8, 4),), (), (tensor(9, 8, 4),), "train.py:7")
    plain = step("mm", "relu", "mul")
    made = graph_of(zeros, *plain.nodes, inputs=(0,))
    held = graph_of(*plain.nodes, Node("aten.add_.Tensor", (tensor(9, 8, 4),), (), ()), inputs=(0, 9))
    assert [cause.name for cause in told(plain, made)] == [CauseName.CODE]
    assert [cause.name for cause in told(made, held)] == [CauseName.OPTIMIZER]


def test_a_run_that_found_all_has_nothing_to_explain(
    look_up: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    look_up("a", mlp())
    look_up("b", mlp())
    assert main(["why", "--last"]) == 0
    assert "nothing to explain: all of its graphs were in the cache" in capsys.readouterr().out
    assert causes_of_run(capsys, "--run", "a") == [["first compile"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--last"], 1, "no run is recorded"),
        (["--run", "x"], 1, "no run 'x' is recorded"),
        ([], 1, "no run is recorded"),
        (["a", "b", "c"], 2, "one or two entries, not 3"),
        (["abc", "--last"], 2, "ENTRY and --last exclude each other"),
        (["--last", "--full", "--limit", "3"], 2, "exclude each other"),
        (["--last", "--limit", "0"], 2, "not a number above 0"),
        (["abc"], 1, "no entry 'abc'"),
        (["--run", "."], 1, "is not the profile"),
    ],
)
def test_invalid_input_is_refused(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], tree: Tree
) -> None:
    real(tree, "111", hlo_modules.mlp())
    os.chdir(tree.root)
    assert main(["why", *words]) == code
    assert message in capsys.readouterr().err


def test_a_narrow_terminal_and_colours_are_honoured() -> None:
    from neurontools.cache.why.explain import Explanation
    from neurontools.cache.why.report import ReportStyle, format_explanation

    comparison = compare(facts(step("relu", "exp")), facts(step("relu", "gelu", "exp", rows=9)))
    report = Explanation(comparison.new, find_causes(comparison), comparison, 0.8)
    narrow = format_explanation(report, ReportStyle(width=44, cut=True))
    assert max(map(len, narrow.splitlines())) <= 44
    assert "\x1b" not in narrow
    assert "\x1b[32m" in format_explanation(report, ReportStyle(colour=True))


def test_what_others_wrote_cannot_steer_the_terminal(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J/x.py:1"
    op = hlo_modules.Op(2, "neg\x1b]0;t\x07ate", hlo_modules.shape("f32", 2), (1,), source=evil)
    parameter = hlo_modules.Op(1, "parameter", hlo_modules.shape("f32", 2), extra=hlo_modules.number(9, 0))
    body = hlo_modules.computation("main", 1, 2, [parameter, op])
    one = real(tree, "111", hlo_modules.module(body, entry=1), ("--x=\x1b[31m",))
    other = real(tree, "222", hlo_modules.mlp())
    assert main(["why", one, other, "--full"]) == 0
    shown = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_entries_of_the_graph_are_read_whatever_their_layout_names_them(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(facts(mlp()), graph_hash="77")
    near = precedents.Neighbourhood(str(tree.root))
    near.places = tuple(
        EntryRef(str(tree.root / name), CacheLayout.CURRENT, "2", name)
        for name in ("MODULE_77", "MODULE_77+1", "MODULE_7", "MODULE_771+1", "MODULE_77x")
    )
    read: list[str] = []
    monkeypatch.setattr(near, "facts", lambda place: read.append(place.module))
    assert near.earlier(target) == ()
    assert read == ["MODULE_77", "MODULE_77+1"]


@pytest.mark.parametrize("left_out", [0, 3])
def test_compiles_that_were_not_examined_are_counted(left_out: int) -> None:
    report = RunExplanation("/c", "run-a", 0.0, 1, 2.0, (), (), left_out)
    shown = format_run(report, ReportStyle())
    assert ("and 3 more, not examined" in shown) is (left_out == 3)
    assert "more, not examined" in shown or not left_out


def test_a_varying_input_is_named_with_the_operator_that_uses_it() -> None:
    (cause,) = [
        shared.cause
        for shared in find_shared_causes(
            [CompiledGraph(f"MODULE_{rows}", facts_of_graph(step("relu", rows=rows))) for rows in (8, 9, 10)]
        )
    ]
    assert "(aten.relu.default at train.py:1)" in cause.text


def test_a_compile_of_another_data_type_is_not_one_of_a_series_of_sizes() -> None:
    graphs = [facts_of_graph(step("relu", rows=rows)) for rows in (8, 9, 10, 8)]
    halves = tuple(tensor._replace(dtype="bfloat16") for tensor in graphs[3].inputs)
    graphs[3] = replace(graphs[3], inputs=halves)
    (series,) = find_shared_causes(
        [CompiledGraph(f"M{number}", graph) for number, graph in enumerate(graphs)]
    )
    assert (series.cause.values, series.modules) == (("8", "9", "10"), ("M0", "M1", "M2"))


def test_a_number_that_varies_over_a_run_is_certain() -> None:
    graphs = [
        CompiledGraph(f"MODULE_{value}", facts_of_graph(step("relu", f"mul={value}"))) for value in (2, 3, 4)
    ]
    (shared,) = find_shared_causes(graphs)
    assert shared.cause.name is CauseName.SCALAR
    assert shared.cause.values == ("2.0", "3.0", "4.0")


def entry_of(graph: Graph, cut: str, script: str, module: str = "MODULE_1") -> EntryFacts:
    """An entry of a graph that a script compiled up to a cut."""
    origin = Provenance(0.1, 1.0, "host", 7, "1000", script)
    return facts(replace(graph, cut=cut), origin=origin, entry=an_entry(module=module))


LONG = ("mm", "relu", "exp", "tanh", "sin", "cos", "mul", "sum")


@pytest.mark.parametrize(
    ("candidate", "same_run", "kinship"),
    [
        (
            entry_of(step(*LONG, rows=4), "mark_step at /a/t.py:9", "t.py"),
            False,
            precedents.Kinship.SAME_PLACE,
        ),
        (
            entry_of(step(*LONG, rows=4), "mark_step at /b/t.py:9", "t.py"),
            True,
            precedents.Kinship.SAME_PLACE,
        ),
        (
            entry_of(step(*LONG, rows=4), "mark_step at /a/t.py:8", "t.py"),
            False,
            precedents.Kinship.MOVED_LINES,
        ),
        (
            entry_of(step(*LONG, rows=4), "mark_step at /a/t.py:8", "t.py"),
            True,
            precedents.Kinship.SAME_START,
        ),
        (entry_of(step(*LONG[:3]), ".item() at /a/t.py:8", "t.py"), True, precedents.Kinship.SAME_START),
        (entry_of(step("a", "b"), "mark_step at /a/t.py:9", "t.py"), False, precedents.Kinship.NONE),
        (
            entry_of(step(*LONG, rows=4), "mark_step at /a/u.py:9", "u.py"),
            False,
            precedents.Kinship.OTHER_SCRIPT,
        ),
        (entry_of(step(*LONG[:4]), "mark_step at /a/u.py:9", "u.py"), False, precedents.Kinship.NONE),
        (
            entry_of(step(*LONG, rows=4), "mark_step at <stdin>:9", "-"),
            False,
            precedents.Kinship.OTHER_SCRIPT,
        ),
    ],
)
def test_a_graph_is_compared_with_those_of_its_place(
    candidate: EntryFacts, same_run: bool, kinship: precedents.Kinship
) -> None:
    target = entry_of(step(*LONG), "mark_step at /a/t.py:9", "t.py")
    known = frozenset({candidate.entry.module}) if same_run else frozenset[str]()
    found = precedents.find_nearest(target, (candidate,), known)
    assert (found.kinship if found else precedents.Kinship.NONE) is kinship


def test_of_several_earlier_entries_the_newest_with_the_same_flags_is_the_nearest() -> None:
    cut = "mark_step at /a/t.py:9"
    target = entry_of(step(*LONG), cut, "t.py")
    newest, other = (entry_of(step(*LONG, rows=rows), cut, "t.py", f"MODULE_{rows}") for rows in (4, 3))
    flags = replace(entry_of(step(*LONG, rows=5), cut, "t.py"), flags=())
    found = precedents.find_nearest(target, (flags, newest, other), frozenset())
    assert found is not None
    assert found.facts is newest


@pytest.mark.parametrize("program", ["__main__.py", "ipykernel_launcher.py", "-c", ""])
def test_a_program_that_runs_files_of_users_is_not_their_name(program: str) -> None:
    assert precedents.script_of(entry_of(step("exp"), "mark_step at /a/t.py:9", program)) == "t.py"
    assert precedents.script_of(entry_of(step("exp"), "mark_step at <stdin>:9", program)) == ""
