"""neurontools estimate: tables, limits, prices, and one line for bad input."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from neurontools.commands import estimate
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines import estimate as engines
from neurontools.estimate.graphs import record_run
from neurontools.estimate.model_files import read_model
from neurontools.estimate.models import ModelPhase, RankRun
from neurontools.machine.instances.catalogue import instance_type

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.torch

TINY = "layers: 2\nwidth: 64\nheads: 4\nkv_heads: 2\ninner: 96\nvocabulary: 80\npositions: 128\n"
SERVE = ("serve", "tiny.yaml", "--instance", "trn1.2xlarge", "--prompt", "16", "--output", "4")
TRAIN = ("train", "tiny.yaml", "--instance", "trn1.2xlarge", "--length", "16")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "prices.yaml").write_text("trn1.2xlarge: 1.0\ninf2.xlarge: 0.5\n")
    return tmp_path


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert estimate.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["is_simulation"]
    found: list[dict[str, object]] = document["estimates"]
    return found


def test_serving_as_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, *SERVE, "--batch", "1,2")
    assert {(row["tensor"], row["replicas"], row["batch"]) for row in found} == {
        (1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)
    }  # fmt: skip
    assert [row["token_ns"] for row in found] == sorted(row["token_ns"] for row in found)
    for row in found:
        assert row["token_ns_low"] < row["token_ns"] < row["token_ns_high"]
        assert (
            row["bound_first"] == row["bound_token"] == "host"
        )  # whose work for a token is longer than so few layers
        assert row["tokens_s_low"] < row["tokens_s"] < row["tokens_s_high"]
        assert row["cache_bytes"] == 2 * 2 * 2 / row["tensor"] * 20 * 16 * 2 * row["batch"]
    assert estimate.main([*SERVE, "--batch", "1,2", "--csv"]) == 0
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["token_ns"]) for row in read] == [row["token_ns"] for row in found]


def test_price_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, *SERVE[:2], *SERVE[4:], "--prices", "prices.yaml")
    assert {row["instance"] for row in found} == {"trn1.2xlarge", "inf2.xlarge"}
    assert [row["price"] for row in found] == sorted(row["price"] for row in found)
    for row in found:
        hourly = {"trn1.2xlarge": 1.0, "inf2.xlarge": 0.5}[row["instance"]]
        assert row["price"] == pytest.approx(hourly / 3600 / row["tokens_s"] * 1e6)


def test_training(capsys: pytest.CaptureFixture[str]) -> None:
    plain = rows(capsys, *TRAIN, "--batch", "4", "--tokens", "1e6", "--prices", "prices.yaml", "--tp", "1")
    lean = rows(capsys, *TRAIN, "--batch", "4", "--checkpoints", "--tp", "1")
    assert plain[0]["run_s"] == pytest.approx(1e6 / plain[0]["tokens_s"])
    assert plain[0]["price"] == pytest.approx(plain[0]["run_s"] / 3600)
    assert lean[0]["scratch_bytes"] < plain[0]["scratch_bytes"]
    assert lean[0]["step_ns"] > plain[0]["step_ns"]
    assert lean[0]["optimizer_bytes"] == 2 * lean[0]["weight_bytes"]


def test_text_has_a_range_beside_each_number_and_a_plot(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    assert estimate.main([*SERVE, "--plot", "--html", "page.html"]) == 0
    printed = capsys.readouterr().out
    assert "modelled" in printed
    assert "a trn1.2xlarge" in printed
    line = next(line for line in printed.splitlines() if line.startswith("trn1.2xlarge"))
    assert line.count(" - ") == 3  # first token, a token, tokens/s
    page = (directory / "page.html").read_text()
    assert page.count("<circle") == 2
    assert "<script" not in page


def test_recorded_graph_of_a_file(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    device = instance_type("trn1.2xlarge").device
    graph = record_run(read_model("tiny.yaml"), RankRun(ModelPhase.PROMPT, 2, 16, 2)).graph
    (directory / "step.neff").write_bytes(compile_graph(graph, device, ["--target=trn1"], "step"))
    assert estimate.main(["serve", "--from", "step.neff"]) == 0
    assert "bound by" in capsys.readouterr().out
    found = rows(capsys, "train", "--from", "step.neff", "--instance", "trn1.2xlarge,trn1.32xlarge")
    assert {(row["instance"], row["ranks"], row["copies"]) for row in found} == {
        ("trn1.2xlarge", 2, 1),
        ("trn1.32xlarge", 2, 16),
    }
    assert found[0]["execution_ns"] == engines.estimate(graph, device).total_ns
    assert estimate.main(["serve", "--from", "step.neff", "--instance", "inf1.xlarge", "--lnc", "2"]) == 1
    assert "logical NeuronCore configuration 2" in capsys.readouterr().err


def test_the_commands_of_the_page(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    page = (ROOT / "docs/how-to/estimate.md").read_text()
    for name, text in re.findall(r"^\$ cat (\S+)\n((?:\w\S*: .*\n)+)", page, re.MULTILINE):
        (directory / name).write_text(text)
    (directory / "config.json").write_text("{}")
    commands = re.findall(r"^(?:\$ )?neurontools estimate (.*)$", page, re.MULTILINE)
    assert len(commands) == 5
    for words in map(str.split, commands):
        estimate.build_parser().parse_args(words)
    assert estimate.main([*commands[0].split(), "--instance", "inf2.48xlarge"]) == 0
    printed = capsys.readouterr().out.splitlines()
    shown = page.splitlines()
    assert printed[0] in shown
    assert re.split(r"  +", printed[2]) in [re.split(r"  +", line) for line in shown]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve",), "no MODEL given"),
        (("serve", "meta-llama/Llama-3-8B"), "names on the Hugging Face Hub are not looked up"),
        (("serve", "absent.yaml"), "cannot read absent.yaml"),
        ((*SERVE, "--tp", "3"), "a tensor-parallel degree of 3 does not divide 4 heads"),
        ((*SERVE, "--prompt", "200"), "more than the 128 positions of tiny"),
        ((*SERVE, "--batch", "1000000000"), "does not fit on trn1.2xlarge"),
        ((*SERVE, "--max-tpot", "1us"), "is as fast: the fastest takes"),
        ((*SERVE, "--instance", "trn9.large"), "unknown instance type 'trn9.large'"),
        ((*SERVE, "--lnc", "2"), "logical NeuronCore configuration 2 does not exist"),
        ((*SERVE, "--sort", "cost"), "--sort cost needs a price list"),
        ((*SERVE, "--from", "prof"), "MODEL and --from exclude each other"),
        ((*TRAIN, "--batch", "1000000000"), "cannot be trained on the instance types given"),
        (("serve", "bad.json"), "not JSON"),
        (("serve", "untyped.json"), "has no 'model_type'"),
        (("serve", "bad.yaml"), "speling: unknown key"),
        ((*SERVE, "--prices", "wrong.yaml"), "unknown instance type"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], directory: Path, words: tuple[str, ...], message: str
) -> None:
    (directory / "bad.json").write_text('{"model_type": ')
    (directory / "untyped.json").write_text('{"modeltype": "llama"}')
    (directory / "bad.yaml").write_text(TINY + "speling: 1\n")
    (directory / "wrong.yaml").write_text("trn9.large: 1\n")
    assert estimate.main(list(words)) in {1, 2}
    printed = capsys.readouterr()
    assert not printed.out
    assert message in printed.err
    assert len(printed.err.splitlines()) <= 2
