"""The NEFF that a user names: a file, a directory with several, or an entry of the cache in use."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import location
from neurontools.cache.location import is_remote, local_path, open_root, resolve
from neurontools.cache.selection import NoSuchEntryError, find_neff
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.conftest import Tree

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


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:////a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file://LocalHost/a/b/", "/a/b"),
        ("FILE:///a/b//", "/a/b"),
        ("File:/a/../b", "/b"),
        ("file:///a%20b/%C3%A9%2Fc", "/a b/\u00e9/c"),
        ("file:///a%ff", "/a\udcff"),
        ("file:///100%", "/100%"),
        ("file:///a?b#c", "/a?b#c"),
        ("file:/", "/"),
        ("file:a%20b", "{here}/a b"),
        ("file:~/a", "{home}/a"),
        ("/a%20b", "/a%20b"),
        ("//a", "/a"),
        ("./file:/a", "{here}/file:/a"),
        ("a:b", "{here}/a:b"),
        ("S3://Bucket/a/", "s3://Bucket/a"),
    ],
)
def test_every_spelling_of_a_place_is_understood_everywhere(
    monkeypatch: pytest.MonkeyPatch, home: Path, url: str, root: str
) -> None:
    from neurontools.cache.copy.archive import is_archive
    from neurontools.compat.launch import RunOptions, environment

    monkeypatch.chdir(home)
    expected = root.format(here=home, home=home)
    quoted = f"'{url}'"
    assert resolve({URL: url}).root == expected
    assert resolve({FLAGS: f"--cache_dir={quoted}"}).root == expected
    assert resolve({}, url).root == expected
    assert environment(RunOptions(("true",), cache=url), {})[URL] == expected
    assert is_archive(f"{url}x.tar" if is_remote(url) else local_path(f"{url}x.tar")) == (not is_remote(url))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://host/a", "the compile cache at 'file://host/a' is on another computer, 'host'"),
        ("file://~/a", "the compile cache at 'file://~/a' is on another computer, '~'"),
        ("FILE://host", "the compile cache at 'FILE://host' is on another computer, 'host'"),
        ("file:", "the compile cache at 'file:' names no directory"),
        ("file://", "the compile cache at 'file://' names no directory"),
        ("file://localhost", "the compile cache at 'file://localhost' names no directory"),
        ("file:///a%00b", "the path of the compile cache 'file:///a%00b' contains a NUL character"),
        ("s3:/bucket/a", "the compile cache at 's3:/bucket/a' names no bucket"),
        ("s3:bucket", "the compile cache at 's3:bucket' names no bucket"),
    ],
)
def test_a_url_that_names_no_directory_here_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({URL: url})
    assert caught.value.message == message


def test_a_tilde_is_the_home(home: Path) -> None:
    assert resolve({URL: "~/cache"}).root == f"{home}/cache"


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/prefix", "https://host/x", "s3://", "s3:///x", "s3://b\0", "s3://bucket/a//b", "/a\0b"],
)
def test_what_is_not_a_local_directory_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="compile cache"):
        resolve({URL: url})


@pytest.mark.parametrize("owner", ["this user", "root"])
def test_the_default_root_of_this_user_or_root_is_written_to(
    monkeypatch: pytest.MonkeyPatch, home: Path, owner: str
) -> None:
    chosen = own_root(monkeypatch, home, 0 if owner == "root" else 54320)
    monkeypatch.setattr(os, "geteuid", lambda: 54320)
    with open_root(chosen) as opened:
        assert os.path.samestat(os.fstat(opened.descriptor), os.stat(chosen))


def test_the_default_root_of_another_user_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    chosen = own_root(monkeypatch, home, 54321)
    with pytest.raises(PermissionError, match="it belongs to uid 54321; use another with --cache-dir"):
        open_root(chosen)
    monkeypatch.setattr(location, "DEFAULT_ROOT", str(home / "other"))
    open_root(chosen).close()  # chosen by name: its user knows whose it is


def own_root(monkeypatch: pytest.MonkeyPatch, home: Path, owner: int) -> str:
    """Make a default root that belongs to a user; this one is not root."""
    root = home / "default"
    root.mkdir()
    status = list(os.stat(root))
    status[4] = owner
    real = os.lstat
    monkeypatch.setattr(location, "DEFAULT_ROOT", str(root))
    monkeypatch.setattr(
        os, "lstat", lambda path, **k: os.stat_result(status) if path == str(root) else real(path, **k)
    )
    return str(root)


def test_path_says_which_setting_won(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neurontools.commands.cache import main

    monkeypatch.setenv(URL, "/env")
    monkeypatch.setenv(FLAGS, "--cache_dir=/flag")
    assert main(["stats", "--path"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "/flag",
        "  command line                    (not set)",
        "* --cache_dir in NEURON_CC_FLAGS  /flag",
        "  NEURON_COMPILE_CACHE_URL        /env",
        "  default                         /var/tmp/neuron-compile-cache",
    ]
    assert main(["stats", "--path", "--quiet"]) == 0
    assert capsys.readouterr().out == "/flag\n"
    assert main(["stats", "--path", "--json", "--cache-dir", "/mine"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["root"], shown["source"]) == ("/mine", "command line")


@pytest.mark.parametrize(("root", "has_copy"), [("/c", False), ("s3://bucket/c", True)])
def test_only_a_cache_in_a_bucket_has_a_copy_here(root: str, has_copy: bool) -> None:
    chosen = resolve({URL: root})
    assert location.location_json(chosen)["copy"] == (chosen.directory if has_copy else None)


def test_counters_of_a_root_keep_their_place() -> None:
    """The first 16 digits of the sha256 of the path; another name would lose the counts of older versions."""
    assert location.root_key("/no/such/cache") == hashlib.sha256(b"/no/such/cache").hexdigest()[:16]


@pytest.fixture
def cache(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tree.root))
    return tree


def test_a_file_is_itself_and_a_directory_its_largest_neff(tmp_path: Path) -> None:
    for name, size in (
        ("a.neff", 3),
        ("rank0/b.neff", 9),
        ("rank0/graphs/c.neff", 5),
        ("rank1/notes.txt", 99),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert find_neff(str(tmp_path / "a.neff")) == str(tmp_path / "a.neff")
    assert find_neff(f"{tmp_path}/") == str(tmp_path / "rank0" / "b.neff")
    with pytest.raises(NeuronToolsError, match="has no NEFF: the run loaded no graph"):
        find_neff(str(tmp_path / "rank1"))
    with pytest.raises(NeuronToolsError, match="does not exist"):
        find_neff(str(tmp_path / "gone.neff"))


def test_an_entry_of_the_cache_is_named_by_the_start_of_its_module(cache: Tree) -> None:
    path = cache.done(graph="123456")
    assert find_neff("1234") == f"{path}/model.neff"
    failed = cache.failed(graph="777777")
    with pytest.raises(NoSuchEntryError, match=r"MODULE_777777.* has no NEFF: its compile failed") as caught:
        find_neff(failed.name)
    assert caught.value.remedy == f"see 'neuron-cache show {failed.name}'"
