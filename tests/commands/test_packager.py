"""neuron-packager and `neuron-cache neff` as a user types them."""

from __future__ import annotations

import json
import os

import pytest

from neurontools.commands import packager
from neurontools.compiler.compile import compile_graph
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

INFO = """\
NEFF Header:
  Package Version:        2
  Header Size:            1024 (bytes)
  Data Size:              {size} (bytes)
  NEFF Major Version:     2
  NEFF Minor Version:     0
  Build Version:          neurontools simulated compiler {version}
  Number of Neuron cores: 1
  Hash:                   {hash}
  UUID:                   {uuid}
  Network Name:           mlp
  Enabled Features:       none

NEFF Nodes:
NODE  Executor     Name  Variable  Size  Type    Format  Shape   DataType  TimeSeries
1     Neuron Core  mlp   slot0      128  INPUT   -       [4, 8]  float32   -
1     Neuron Core  mlp   slot1      256  INPUT   -       [8, 8]  float32   -
1     Neuron Core  mlp   slot3      128  OUTPUT  -       [4, 8]  float32   -

10 members, made by a neurontools simulator
"""


@pytest.fixture
def neff(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = compile_graph(mlp(), instance_type("trn1.2xlarge").device, (), "mlp")
    (tmp_path / "m.neff").write_bytes(data)
    return data


def test_info_has_the_recorded_titles(neff, capsys):
    from neurontools.compiler.neff import parse
    from neurontools.compiler.options import COMPILER_VERSION

    header = parse(neff).header
    assert packager.main(["info", "m.neff"]) == 0
    wanted = INFO.format(
        size=len(neff) - 1024,
        version=COMPILER_VERSION,
        hash=header.data_hash.hex(),
        uuid=header.uuid.hex(),
    )
    assert capsys.readouterr().out == wanted


@pytest.mark.usefixtures("neff")
def test_info_as_json_and_shapes_alone(capsys):
    assert packager.main(["info", "--json-output", "m.neff"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["header"]["network_name"] == "mlp"
    assert [(row["variable"], row["shape"]) for row in shown["nodes"]][-1] == ("slot3", [4, 8])
    assert shown["problem"] is None
    assert packager.main(["info", "-s", "m.neff"]) == 0
    assert "1     slot1     INPUT   [8, 8]  float32\n" in capsys.readouterr().out


@pytest.mark.usefixtures("neff")
def test_unpack_makes_a_directory_named_like_the_file_and_refuses_a_second_time(capsys):
    assert packager.main(["unpack", "m.neff"]) == 0
    assert capsys.readouterr().out == 'Unpacking NEFF in "m" directory...\n'
    assert {"neff.json", "neff.tgz", "sg00"} <= set(os.listdir("m"))
    assert packager.main(["unpack", "m.neff"]) == 1
    assert "not empty" in capsys.readouterr().err
    assert packager.main(["unpack", "m.neff", "-o", "n", "--max-size", "1kB"]) == 1
    assert "more than 1000 bytes" in capsys.readouterr().err
    assert not os.path.exists("n")


def test_damage_is_shown_with_the_header_and_an_exit_code(neff, tmp_path, capsys):
    (tmp_path / "cut.neff").write_bytes(neff[:-5])
    assert packager.main(["info", "cut.neff"]) == 1
    shown = capsys.readouterr()
    assert "Network Name:           mlp" in shown.out
    assert shown.err.startswith("error: cut.neff: ")
    assert packager.main(["unpack", "cut.neff"]) == 1
    assert packager.main(["info", "nowhere.neff"]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.usefixtures("neff")
def test_the_script_is_installed(tool):
    assert "Network Name:           mlp" in tool("neuron-packager", "info", os.path.abspath("m.neff")).stdout
    assert tool("neuron-packager", "info", "nowhere").returncode == 1
