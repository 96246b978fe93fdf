"""A wrong YAML file is refused with its name, the key, and what was expected.

docs/reference/instances.md is the catalogue's: made anew it is the same, and every decision is in it.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest
import yaml

from neurontools.machine.instances.catalogue import _yaml_files, instance_names, instance_type
from neurontools.machine.instances.schema import CatalogueError, compile_catalogue


def changed(file, path, value):
    """The real files with one value replaced (or removed, if the value is ...)."""
    files = _yaml_files()
    content = yaml.safe_load(files[file])
    *parents, last = path
    place = content
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    files[file] = yaml.safe_dump(content, sort_keys=False).encode()
    return files


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("trn1.yaml", ["trn1.2xlarge", "vcpus"], "eight", "trn1.2xlarge.vcpus: expected a whole number of at least 1, found 'eight'"),
        ("trn1.yaml", ["trn1.2xlarge", "vcpus"], True, "vcpus: expected a whole number of at least 1, found true"),
        ("trn1.yaml", ["trn1.2xlarge", "vcpus"], ..., "trn1.2xlarge: 'vcpus' is missing"),
        ("trn1.yaml", ["trn1.2xlarge", "vcpu"], 8, "trn1.2xlarge.vcpu: unknown key; did you mean 'vcpus'?"),
        ("trn1.yaml", ["trn1.2xlarge", "device"], "trainum", "trn1.2xlarge.device: unknown device 'trainum'; did you mean 'trainium'?"),
        ("trn1.yaml", ["trn1.2xlarge", "topology"], "torus4x4", "topology: torus4x4 connects 16 devices, the instance has 1"),
        ("trn1.yaml", ["trn1.32xlarge", "pci_bdf"], ["a"], "trn1.32xlarge.pci_bdf: expected a list of 16 texts, found a list of 1"),
        ("trn1.yaml", ["trn1.32xlarge", "cpu_affinity", "1"], ..., "trn1.32xlarge.cpu_affinity: '1' is missing"),
        ("trn1.yaml", ["trn1.32xlarge"], 3, "trn1.32xlarge: expected a mapping, found 3"),
        ("trn2.yaml", ["trn1.2xlarge"], {}, "trn1.2xlarge: the instance type is defined twice"),
        ("trn2.yaml", ["trn2.48xlarge", "topology_docs"], "switched16", "topology_docs: 'switched16' does not have the links of torus4x4_trn2"),
        ("trn2.yaml", ["trn2.48xlarge", "topology_docs"], "torus", "topology_docs: unknown topology 'torus'; did you mean 'torus"),
        ("trn2.yaml", ["trn2u.48xlarge", "ultraserver", "nodes"], 0, "ultraserver.nodes: expected a whole number of at least 1, found 0"),
        ("trn2.yaml", ["trn2u.48xlarge", "ultraserver", "mode"], [1], "ultraserver.mode: unknown key; did you mean 'modes'?"),
        ("devices.yaml", ["trainium", "collective_cores"], "six", "trainium.collective_cores: expected a whole number of at least 1"),
        ("devices.yaml", ["trainium", "core"], "v9", "trainium.core: unknown core version 'v9'"),
        ("devices.yaml", ["trainium", "memory_bandwidth"], "820 GB", "memory_bandwidth: expected a number and one of GiB/s"),
        ("devices.yaml", ["trainium2", "lnc", "default"], 3, "trainium2.lnc.default: 3 is not among the choices [1, 2]"),
        ("devices.yaml", ["trainium2", "lnc", "choices"], [2, 3], "trainium2.lnc.choices: 8 physical cores do not divide by 3"),
        ("devices.yaml", ["trainium", "decisions"], "none", "trainium.decisions: expected a list of texts, found 'none'"),
        ("cores.yaml", ["v2", "tensor_tflops", "bf16"], -1, "v2.tensor_tflops.bf16: expected a number above 0, found -1"),
        ("cores.yaml", ["v2", "monitor_version"], {3: "v2"}, "v2.monitor_version.3: expected a logical NeuronCore"),
        ("cores.yaml", ["v2", "gpsimd", "processor"], 8, "v2.gpsimd.processor: unknown key"),
        ("topologies.yaml", ["inf1_chain4", "connected_to"], [[1], [2], [1], []], "device 0 lists 1, which does not list it back"),
        ("topologies.yaml", ["inf1_chain4", "shape"], "tree", "inf1_chain4.shape: unknown shape 'tree'; known: none, chain"),
    ],
)  # fmt: skip
def test_the_error_names_file_key_and_expectation(file, path, value, message):
    with pytest.raises(CatalogueError) as caught:
        compile_catalogue(changed(file, path, value))
    assert caught.value.message.startswith("instance catalogue: ")
    assert message in caught.value.message


def test_a_file_that_is_not_yaml_is_named():
    with pytest.raises(CatalogueError, match=r"^instance catalogue: trn2\.yaml:2: not YAML: "):
        compile_catalogue({**_yaml_files(), "trn2.yaml": b"a: [1"})


@pytest.mark.parametrize("name", ["cores.yaml", "devices.yaml", "topologies.yaml"])
def test_a_missing_file_is_named(name):
    files = _yaml_files()
    del files[name]
    with pytest.raises(CatalogueError, match=rf"{name}: the file is missing"):
        compile_catalogue(files)


def test_an_empty_file_is_not_a_mapping():
    with pytest.raises(CatalogueError, match=r"expected a mapping, found nothing"):
        compile_catalogue({**_yaml_files(), "inf1.yaml": b""})


def test_where_yaml_has_no_parser_in_c_the_slow_one_reads_the_same(monkeypatch):
    fast = compile_catalogue(_yaml_files())
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert compile_catalogue(_yaml_files()) == fast


DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_what_the_catalogue_makes_of_it():
    page = run_path(str(DOCS / "instances_page.py"))["instances_page"]()
    assert (DOCS / "reference" / "instances.md").read_text() == page, "python docs/generate.py makes it"


def test_the_page_names_every_type_and_every_decision():
    page = (DOCS / "reference" / "instances.md").read_text()
    for name in instance_names():
        assert f"| `{name}` |" in page
        assert all(f"- {decision}\n" in page for decision in instance_type(name).decisions)
