from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from neurontools.cache.location import resolve
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

URL = "NEURON_COMPILE_CACHE_URL"
FLAGS = "NEURON_CC_FLAGS"


@pytest.mark.parametrize(
    ("environ", "url", "root", "source"),
    [
        ({}, None, "/var/tmp/neuron-compile-cache", "default"),
        ({URL: "/env"}, None, "/env", URL),
        ({URL: "/env", FLAGS: "-O1 --cache_dir=/flag"}, None, "/flag", "--cache_dir in NEURON_CC_FLAGS"),
        ({URL: "/env", FLAGS: "--cache_dir=/flag"}, "/arg", "/arg", "command line"),
        ({URL: "file:///env/x"}, None, "/env/x", URL),
        ({URL: ""}, None, "/var/tmp/neuron-compile-cache", "default"),
        ({URL: "/a/../b/"}, None, "/b", URL),
        ({URL: "s3://bucket/a/b/"}, None, "s3://bucket/a/b", URL),
        (
            {URL: "/env", FLAGS: "--cache_dir=s3://bucket"},
            None,
            "s3://bucket",
            "--cache_dir in NEURON_CC_FLAGS",
        ),
    ],
)
def test_the_strongest_setting_wins(environ: dict[str, str], url: str | None, root: str, source: str) -> None:
    chosen = resolve(environ, url)
    assert (chosen.root, chosen.source) == (root, source)


def test_a_tilde_is_the_home(home: Path) -> None:
    assert resolve({URL: "~/cache"}).root == f"{home}/cache"


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/prefix", "https://host/x", "s3://", "s3:///x", "s3://b\0", "s3://bucket/a//b", "/a\0b"],
)
def test_what_is_not_a_local_directory_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="compile cache"):
        resolve({URL: url})


def test_path_says_which_setting_won(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neurontools.commands.cache import main

    monkeypatch.setenv(URL, "/env")
    monkeypatch.setenv(FLAGS, "--cache_dir=/flag")
    assert main(["path"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "/flag",
        "  command line                    (not set)",
        "* --cache_dir in NEURON_CC_FLAGS  /flag",
        "  NEURON_COMPILE_CACHE_URL        /env",
        "  default                         /var/tmp/neuron-compile-cache",
    ]
    assert main(["path", "--quiet"]) == 0
    assert capsys.readouterr().out == "/flag\n"
    assert main(["path", "--json", "--cache-dir", "/mine"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["root"], shown["source"]) == ("/mine", "command line")
