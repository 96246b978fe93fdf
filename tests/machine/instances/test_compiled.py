"""The compiled form: used when it fits the YAML files, made again when in doubt, never required."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import paths
from neurontools.machine.instances import catalogue


@pytest.fixture(autouse=True)
def own_cache(home, monkeypatch):
    """A cache directory of the test's own, and nothing remembered from other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    catalogue._catalogue.cache_clear()
    yield
    catalogue._catalogue.cache_clear()


def loaded_modules(name="trn1.2xlarge"):
    code = (
        "import sys\nfrom neurontools.machine.instances.catalogue import instance_type\n"
        f"print(instance_type({name!r}).name)\nprint('yaml' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_the_second_load_needs_no_yaml_and_gives_the_same():
    assert loaded_modules() == ["trn1.2xlarge", "True"]
    assert loaded_modules() == ["trn1.2xlarge", "False"]
    cold = catalogue.load_compiled(fresh=True)
    warm = catalogue.load_compiled()
    assert catalogue._from_compiled(cold) == catalogue._from_compiled(warm)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format": 0}',
        b'{"format": 1, "digest": "0000000000000000", "catalogue": {}}',
    ],
)
def test_a_damaged_or_outdated_form_is_made_again(damage):
    expected = catalogue.load_compiled()
    path = Path(catalogue.compiled_path())
    path.write_bytes(damage)
    assert json.loads(json.dumps(catalogue.load_compiled())) == json.loads(json.dumps(expected))
    assert path.read_bytes() != damage


def test_a_form_with_the_right_digest_and_wrong_content_is_made_again():
    catalogue.load_compiled()
    path = Path(catalogue.compiled_path())
    document = json.loads(path.read_text())
    del document["catalogue"]["instances"]["trn1.2xlarge"]["vcpus"]
    path.write_text(json.dumps(document))
    assert catalogue.instance_type("trn1.2xlarge").vcpus == 8


def test_a_changed_yaml_file_is_noticed(home, monkeypatch):
    catalogue.load_compiled()
    copy = home / "fixtures" / "instances"
    copy.mkdir(parents=True)
    for source in Path(paths.fixtures_dir(), "instances").glob("*.yaml"):
        (copy / source.name).write_bytes(source.read_bytes().replace(b"vcpus: 8\n", b"vcpus: 9\n"))
    monkeypatch.setattr(paths, "fixtures_dir", lambda: str(home / "fixtures"))
    assert catalogue.instance_type("trn1.2xlarge").vcpus == 9


@pytest.mark.parametrize("obstacle", ["file", "directory"])
def test_a_cache_that_cannot_be_written_only_costs_time(home, obstacle):
    if obstacle == "file":
        (home / "cache").write_text("in the way")
    else:
        Path(catalogue.compiled_path()).mkdir(parents=True)
    assert catalogue.instance_type("inf2.48xlarge").device_count == 12
    left = [name for _, _, names in os.walk(home / "cache") for name in names]
    assert left == []
