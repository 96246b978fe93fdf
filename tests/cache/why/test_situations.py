"""What users do between two runs, or within one, and the cause that `why` and `--explain` give for it.

Each situation is a few runs of real programs; the last one is explained.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.cache import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Tool

TRAIN = """import torch, torch.nn as nn, torch.nn.functional as F
import torch_xla.core.xla_model as xm
device = xm.xla_device()
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(12, width), nn.Linear(width, 3), nn.Dropout(0.1)

    def forward(self, x):
        x = F.gelu(self.first(x))
        x = self.drop(x)
        return self.second(x)

model = Net().to(device)
make = torch.optim.SGD
optimizer = make(model.parameters(), lr=0.1)
for step, size in enumerate([8] * 4):
    x, y = torch.randn(size, 12).to(device), torch.randint(0, 3, (size,)).to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    xm.mark_step()
"""
OTHER = """import torch, torch.nn as nn, torch.nn.functional as F
import torch_xla.core.xla_model as xm
device = xm.xla_device()
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).to(device).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(2):
    loss = F.mse_loss(net(torch.randn(8, 20).double().to(device)), torch.zeros(8, 4, device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    xm.mark_step()
"""
TOKENS = """import torch, torch.nn as nn, torch.nn.functional as F
import torch_xla.core.xla_model as xm
device = xm.xla_device()
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to(device)
for length in [16, 16]:
    ids = torch.randint(0, 50, (4, length)).to(device)
    loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    xm.mark_step()
"""
ACCUMULATE = TRAIN.replace("    optimizer.zero_grad()\n", "").replace(
    "    optimizer.step()\n", "    if step % 2:\n        optimizer.step()\n        optimizer.zero_grad()\n"
)
EVALUATE = (
    TRAIN
    + """
model.eval()
xm.mark_step()
out = model(x)
print(F.cross_entropy(out, y).item())
"""
)
BOTH_MODES = TRAIN.replace("    out = model(x)", "    model.train(step < 2)\n    out = model(x)")
TWO_PLACES = (
    TRAIN
    + """
for size in [16, 16]:
    x, y = torch.randn(size, 12).to(device), torch.randint(0, 3, (size,)).to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    xm.mark_step()
"""
)
COUNTER = TRAIN.replace("    out = model(x)", "    out = model(torch.tril(x, step + 1))")


def line_of(script: str, text: str, name: str = "train.py") -> str:
    """Where a piece of a script stands."""
    return f"{name}:{next(n for n, line in enumerate(script.splitlines(), 1) if text in line)}"


@dataclass(frozen=True, slots=True)
class Run:
    """A program: its source and file, and how it is started."""

    source: str
    file: str = "train.py"
    env: dict[str, str] = field(default_factory=dict)
    workers: int = 1
    inline: bool = False
    directory: str = "one"


@dataclass(frozen=True, slots=True)
class Situation:
    """Runs, of which the last is explained; `between` is done before it.

    `says` are causes with words of their text, in order; the words of `never` do not occur.
    """

    runs: tuple[Run, ...]
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    between: Callable[[Path], object] | None = None


def edited(old: str, new: str, script: str = TRAIN) -> str:
    assert old in script
    return script.replace(old, new)


CONDITION = edited("    loss = F", "    if out.max() > 0:\n        pass\n    loss = F")
ITEM = edited("    optimizer.step()", "    total = loss.item()\n    optimizer.step()")
PRINT = edited("    loss = F", "    print(out.mean())\n    loss = F")
CPU = edited("    loss = F", "    seen = out.cpu()\n    loss = F")
NONZERO = edited("    loss = F", "    count = len(out.nonzero())\n    loss = F")
ADAM = edited("torch.optim.SGD", "torch.optim.Adam")
FLAGS = {"NEURON_CC_FLAGS": "--optlevel=3"}

READ = "value read a value is read at {}: it ends the graph in the middle of the step"
SITUATIONS = {
    "the first script of a cache": Situation((Run(TRAIN),), ("first compile of train.py",)),
    "another script in the cache": Situation(
        (Run(OTHER, "other.py"), Run(TRAIN)),
        ("first compile of train.py",),
        ("against", "data type", "float64"),
    ),
    "several scripts in the cache, one changed": Situation(
        (Run(TRAIN), Run(OTHER, "other.py"), Run(edited("[8] * 4", "[16] * 4"))),
        ("input shape changed sizes 8 -> 16",),
        ("float64",),
    ),
    "an if on a value": Situation(
        (Run(TRAIN), Run(CONDITION)),
        (READ.format(line_of(CONDITION, "if out.max") + " (bool)"),),
        ("dropout", "computation changed"),
    ),
    "an if on a value, in an empty cache": Situation(
        (Run(CONDITION),),
        (
            READ.format(line_of(CONDITION, "if out.max") + " (bool)"),
            "first compile of train.py",
        ),
    ),
    "item": Situation((Run(TRAIN), Run(ITEM)), (READ.format(line_of(ITEM, "loss.item()") + " (.item())"),)),
    "print": Situation(
        (Run(TRAIN), Run(PRINT)), (READ.format(line_of(PRINT, "print(") + " (print of a tensor)"),)
    ),
    "cpu": Situation((Run(TRAIN), Run(CPU)), (READ.format(line_of(CPU, ".cpu()") + " (copy to the CPU)"),)),
    "nonzero": Situation(
        (Run(TRAIN), Run(NONZERO)), (READ.format(line_of(NONZERO, "nonzero") + " (aten::nonzero)"),)
    ),
    "a read that was removed": Situation(
        (Run(CONDITION), Run(TRAIN)),
        (f"value read the value read at {line_of(CONDITION, 'if out.max')} (bool) no longer ends",),
        ("dropout",),
    ),
    "another batch": Situation(
        (Run(TRAIN), Run(edited("[8] * 4", "[6] * 4"))),
        ("input shape changed sizes 8 -> 6",),
        ("last partial",),
    ),
    "a last partial batch": Situation(
        (Run(edited("[8] * 4", "[8, 8, 3]")),),
        ("last partial batch dimension 0", "first compile"),
        ("input shape changed",),
    ),
    "a last partial batch after a full one from the cache": Situation(
        (Run(TRAIN), Run(edited("[8] * 4", "[8, 8, 3]"))), ("last partial batch",)
    ),
    "batches of all sizes": Situation(
        (Run(edited("[8] * 4", "[24, 23, 22, 21]")),),
        ("input shape changed dimension 0 of input", "first compile of train.py"),
        (),
    ),
    "another length of sequences": Situation(
        (Run(TOKENS), Run(edited("[16, 16]", "[32, 32]", TOKENS))),
        ("input shape changed sizes",),
        ("last partial",),
    ),
    "other flags": Situation((Run(TRAIN), Run(TRAIN, env=FLAGS)), ("flags changed --optlevel=3 was added",)),
    "other flags and another batch": Situation(
        (Run(TRAIN), Run(edited("[8] * 4", "[16] * 4"), env=FLAGS)),
        ("flags changed", "input shape changed sizes 8 -> 16"),
    ),
    "another activation": Situation(
        (Run(TRAIN), Run(edited("F.gelu", "F.relu"))),
        ("computation changed ", f"the graphs part at {line_of(TRAIN, 'F.gelu')}"),
        ("value read",),
    ),
    "another layer, which moves lines": Situation(
        (
            Run(TRAIN),
            Run(
                edited("        return", "        x = self.third(x)\n        return").replace(
                    "nn.Dropout(0.1)", "nn.Dropout(0.1)\n        self.third = nn.Linear(width, width)"
                )
            ),
        ),
        ("computation changed",),
        ("mark_step moved", "dropout"),
    ),
    "another width": Situation(
        (Run(TRAIN), Run(edited("width=24", "width=32"))), ("input shape changed sizes 24 -> 32",)
    ),
    "autocast": Situation(
        (
            Run(TRAIN),
            Run(
                edited(
                    "    out = model(x)",
                    "    with torch.autocast('xla', dtype=torch.bfloat16): out = model(x)",
                )
            ),
        ),
        ("data type changed float32 -> bfloat16",),
    ),
    "bfloat16": Situation(
        (
            Run(TRAIN),
            Run(
                edited("Net().to(device)", "Net().to(device).bfloat16()").replace(
                    "12).to(", "12).bfloat16().to("
                )
            ),
        ),
        ("data type changed float32 -> bfloat16",),
    ),
    "train and eval at one place": Situation(
        (Run(BOTH_MODES),), ("first compile", "dropout or batch norm differs only one graph has")
    ),
    "evaluation after training": Situation(
        (Run(EVALUATE),),
        ("first compile", "dropout or batch norm differs only one graph has"),
    ),
    "a frozen parameter": Situation(
        (Run(TRAIN), Run(edited("make = ", "model.first.bias.requires_grad_(False)\nmake = "))),
        ("computation changed",),
        ("value read", "dropout"),
    ),
    "another optimizer": Situation(
        (Run(TRAIN), Run(ADAM)), ("computation changed", "the graphs part at"), ("value read",)
    ),
    "the first step of Adam": Situation((Run(ADAM),), ("first compile", "first step of the optimizer")),
    "a counter of steps": Situation(
        (Run(COUNTER),), ("Python scalar baked in a number in aten.tril", "first compile")
    ),
    "accumulation": Situation(
        (Run(ACCUMULATE),),
        ("first compile", "computation changed"),
        ("value read", "dropout", "last partial"),
    ),
    "two workers, another batch": Situation(
        (Run(TRAIN, workers=2), Run(edited("[8] * 4", "[4] * 4"), workers=2)),
        ("input shape changed sizes 8 -> 4",),
        ("first compile",),
    ),
    "an entry that was removed": Situation(
        (Run(TRAIN), Run(TRAIN)),
        ("entry was removed",),
        between=lambda _: main(["rm", "--all", "-y", "--grace", "0s"]),
    ),
    "a deleted cache": Situation(
        (Run(TRAIN), Run(TRAIN)),
        ("entry was removed",),
        between=lambda directory: shutil.rmtree(directory / "compile-cache"),
    ),
    "a copied script and a copied cache": Situation(
        (Run(TRAIN), Run(edited("[8] * 4", "[16] * 4"), directory="two")),
        ("input shape changed sizes 8 -> 16",),
    ),
    "edited lines only": Situation((Run(TRAIN), Run("# A comment.\n" + TRAIN)), ("nothing to explain",)),
    "edited lines and another batch": Situation(
        (Run(TRAIN), Run("# A comment.\n" + edited("[8] * 4", "[16] * 4"))),
        ("input shape changed sizes 8 -> 16",),
    ),
    "a renamed script": Situation((Run(TRAIN), Run(TRAIN, "new.py")), ("nothing to explain",)),
    "a renamed script and another batch": Situation(
        (Run(TRAIN), Run(edited("[8] * 4", "[16] * 4"), "new.py")), ("input shape changed sizes 8 -> 16",)
    ),
    "a script of the command line": Situation(
        (Run(OTHER, inline=True), Run(TRAIN, inline=True)),
        ("first compile of this program",),
        ("against",),
    ),
    "two places with graphs that are alike": Situation(
        (Run(TWO_PLACES),),
        (
            "first compile of train.py",
            f"first compile of the graph that ends at train.py:{len(TWO_PLACES.splitlines())} (mark_step)",
        ),
        ("last partial", "input shape changed"),
    ),
    "another learning rate": Situation(
        (Run(TRAIN), Run(edited("lr=0.1", "lr=0.2"))), ("nothing to explain",)
    ),
    "a learning rate that is a constant": Situation(
        (Run(TRAIN), Run(edited("lr=0.1", "lr=1"))),
        ("Python scalar baked in only constants differ: alpha=another number -> alpha=-1",),
    ),
}


class FirstRun:
    """The run of `TRAIN` with which most situations begin: the first one is kept, and copied for the others.

    All situations have the same directory, because the cache and what is known of it have paths.
    """

    _is_of_machine = staticmethod(shutil.ignore_patterns("default"))

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "situation"
        self._cache, self._kept = self.directory / "compile-cache", directory / "kept"

    def keep(self, home: Path) -> None:
        shutil.copytree(self._cache, self._kept / "cache")
        shutil.copytree(home / "run" / "state", self._kept / "state", ignore=self._is_of_machine)

    def repeat(self, home: Path) -> bool:
        if self._kept.exists():
            shutil.copytree(self._kept / "cache", self._cache)
            (home / "run").mkdir(mode=0o700)
            shutil.copytree(self._kept / "state", home / "run" / "state")
        return self._kept.exists()


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    return FirstRun(tmp_path_factory.mktemp("situations"))


@pytest.fixture
def directory(first_run: FirstRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the situations, empty."""
    first_run.directory.mkdir()
    monkeypatch.chdir(first_run.directory)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(first_run.directory / "compile-cache"))
    yield first_run.directory
    shutil.rmtree(first_run.directory)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_cause_is_right(
    name: str,
    tool: Tool,
    torch_python: str,
    home: Path,
    directory: Path,
    first_run: FirstRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    situation = SITUATIONS[name]
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    *before, last = situation.runs
    for run in before:
        if run != Run(TRAIN):
            started(run, tool, torch_python, directory)
        elif not first_run.repeat(home):
            started(run, tool, torch_python, directory)
            first_run.keep(home)
    if situation.between is not None:
        situation.between(directory)
        capsys.readouterr()
    live = started(last, tool, torch_python, directory)
    main(["why"])
    shown = " ".join(capsys.readouterr().out.split()).replace("one/", "").replace("two/", "")
    position = 0
    for words in situation.says:
        assert words in shown[position:]
        position = shown.index(words, position)
    assert not [words for words in situation.never if words in shown]
    assert "likely" not in shown + live


def started(run: Run, tool: Tool, python: str, directory: Path) -> str:
    """Run a program, and return its explanations."""
    path = directory / run.directory / run.file
    path.parent.mkdir(exist_ok=True)
    path.write_text(run.source)
    program = ["-c", run.source] if run.inline else [str(path)]
    command = [python, *program]
    if run.workers > 1:
        command = [python, "-m", "torch.distributed.run", f"--nproc_per_node={run.workers}", *program]
    done = tool("neuron-run", "--explain", "--", *command, env=os.environ | {"PYTHON_EXEC": python} | run.env)
    assert done.returncode == 0, done.stderr
    return done.stderr
