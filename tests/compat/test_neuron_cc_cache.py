"""libneuronxla.neuron_cc_cache: the cache as programs built on libneuronxla use it, on ours."""

from __future__ import annotations

import json

import pytest

from neurontools.cache.store import CompileCache
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.machine.instances.catalogue import instance_type

pytestmark = pytest.mark.torch


@pytest.fixture
def cc_cache(finder):
    from libneuronxla import neuron_cc_cache

    return neuron_cc_cache


@pytest.fixture
def cache(cc_cache, home):
    return cc_cache.create_compile_cache(cc_cache.CacheUrl.get_cache_url(cache_dir=str(home / "cc")))


def compiled(root):
    """The directory of an entry that a program has compiled."""
    x, y = (View(slot, "float32", (4,), (1,), 0) for slot in (0, 1))
    graph = Graph((Slot(16), Slot(16)), (0,), 0, (Node("aten.relu.default", (x,), (), (y,)),), (1,))
    store = CompileCache.open(url=str(root))
    result = store.get_or_compile(graph, instance_type("trn1.2xlarge").device, "n")
    store.close()
    return result.entry


def test_a_place_is_an_argument_or_that_of_the_environment(cc_cache, home, monkeypatch):
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(home / "env"))
    url = cc_cache.CacheUrl.get_cache_url()
    assert (url.url, url.is_fs(), url.is_s3()) == (str(home / "env"), True, False)
    assert cc_cache.CacheUrl(str(home), url_type="fs").url == str(home)
    assert cc_cache.CacheUrl.get_cache_url("s3://bucket/prefix").is_s3()
    assert isinstance(cc_cache.create_compile_cache(url), cc_cache.CompileCacheFs)
    remote = cc_cache.create_compile_cache(cc_cache.CacheUrl("s3://bucket/prefix"))
    assert isinstance(remote, cc_cache.CompileCacheS3)
    assert remote.cache_url.url == "s3://bucket/prefix"


def test_the_names_of_entries_are_those_of_compiles(cc_cache, cache, home):
    entry = compiled(home / "cc")
    module = entry.rpartition("/")[2].removeprefix("MODULE_").partition("+")
    assert cache.get_cache_dir(module[0], json.dumps(["--target=trn1"])) == entry
    assert cache.get_compiler_flags_hash(["--target=trn1"]) == module[2]
    assert cache.get_cache_dir_with_cache_key("0_REGISTRY/1").endswith("/0_REGISTRY/1")
    todo, locked, done, failed = cache.get_hlos()
    assert (todo, locked, failed) == ([], [], [])
    assert done == [f"{entry}/model.hlo_module.pb"]
    assert cache.exists(done[0])
    cache.clean()
    assert cache.get_hlos()[2] == []


def test_files_go_in_and_out(cache, home):
    folder = cache.get_cache_dir_with_cache_key("0_REGISTRY/1")
    cache.upload_string_to_file(f"{folder}/a.json", "{}")
    cache.download_file(f"{folder}/a.json", str(home / "a"))
    cache.upload_file(f"{folder}/b.json", str(home / "a"))
    assert cache.download_file_to_string(f"{folder}/b.json") == "{}"
    assert cache.download_file_to_string(f"{folder}/b.json", 1) == "{"
    cache.remove(f"{folder}/b.json")
    assert not cache.exists(f"{folder}/b.json")
    cache.remove(folder)
    assert not cache.exists(folder)


def test_a_graph_is_locked_for_one(cc_cache, cache, home):
    hlo = f"{compiled(home / 'cc')}/model.hlo_module.pb"
    other = cc_cache.create_compile_cache(cache.cache_url)
    assert cache.hlo_acquire_lock(hlo)
    assert not other.hlo_acquire_lock(hlo)
    other.hlo_release_lock(hlo)
    other.clear_locks()
    assert not other.hlo_acquire_lock(hlo)
    cache.hlo_release_lock(hlo)
    assert other.hlo_acquire_lock(hlo)
    other.hlo_release_lock(hlo)
