from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.engine_model.training import decoder_training
from neurontools.compiler.archive import ArchiveError, pack_files, unpack_files
from neurontools.compiler.compile import BUILD_VERSION, COMPILER_VERSION, compile_graph
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.graph import Graph, graph_from_bytes
from neurontools.compiler.neff import NeffError, pack, parse, read_header
from neurontools.compiler.neff_header import HEADER_BYTES, write_header
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import custom_graph, graphs, mlp

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device
FLAGS = ("--target=trn1",)
SOUND = compile_graph(mlp(), TRN1, FLAGS, "mlp")


def with_library() -> bytes:
    graph, part = custom_graph()
    return compile_graph(graph, TRN1, FLAGS, "custom", [part])


def neff_of(files: dict[str, bytes]) -> bytes:
    data = pack_files(files)
    return write_header(data, name="x", build_version="y", lnc=1) + data


def members_of(neff: bytes) -> dict[str, bytes]:
    return unpack_files(neff[HEADER_BYTES:])


@given(graphs(), st.text(max_size=300))
@settings(max_examples=30)
def test_a_graph_survives_its_neff(graph: Graph, name: str) -> None:
    cost = estimate(graph, TRN1)
    clean = "".join(character for character in name if character.isprintable())
    neff = parse(pack(graph, cost, name=clean, build_version=BUILD_VERSION, flags=FLAGS), validate_hash=True)
    assert (neff.graph, neff.cost, neff.flags) == (graph, cost, FLAGS)
    assert clean.startswith(neff.header.name)
    assert len(neff.header.name.encode()) < 256


def test_equal_input_gives_equal_bytes() -> None:
    assert compile_graph(mlp(), TRN1, FLAGS, "mlp") == SOUND
    assert compile_graph(mlp(), TRN1, FLAGS, "other") != SOUND


def test_the_header_has_the_documented_layout() -> None:
    fields = struct.unpack("<5Q128sI32s16s256sI64sQI468s", SOUND[:1024])
    assert fields[:5] == (2, 1024, len(SOUND) - 1024, 2, 0)
    assert fields[5].rstrip(b"\0").decode() == BUILD_VERSION
    assert fields[7] == hashlib.sha256(SOUND[1024:]).digest()
    assert fields[9].rstrip(b"\0") == b"mlp"


def test_the_statistics_are_those_of_the_cost_model() -> None:
    cost = estimate(mlp(), TRN1)
    statistics = json.loads(members_of(SOUND)["hlo_stats.json"])
    assert statistics["operations"] == len(mlp().nodes)
    assert statistics["flops"] == cost.flops
    assert statistics["mac_count"] * 2 == cost.matmul_flops
    read, written = sum(op.read_bytes for op in cost.ops), sum(op.write_bytes for op in cost.ops)
    assert statistics["traffic_bytes"] == read + written > read > 0


def test_the_build_version_says_who_made_it() -> None:
    assert "neurontools" in parse(SOUND).header.build_version
    assert COMPILER_VERSION in parse(SOUND).header.build_version


def test_an_ordinary_tar_reader_opens_the_data() -> None:
    with tarfile.open(fileobj=io.BytesIO(SOUND[1024:]), mode="r:gz") as archive:
        names = archive.getnames()
        graph = archive.extractfile("graph.json")
        assert graph is not None
        assert graph_from_bytes(graph.read()) == mlp()
    assert {"neff.json", "info.json", "hlo_stats.json", "sg00/def.json", "sg00/PE.json"} <= set(names)


def test_two_physical_cores_make_two_subgraphs() -> None:
    neff = compile_graph(mlp(), TRN2, ("--target=trn2",), "mlp")
    assert parse(neff).header.lnc == 2
    assert "sg01/def.json" in members_of(neff)


def test_a_native_part_travels_with_its_digest() -> None:
    _, part = custom_graph()
    assert parse(with_library()).libraries == (part,)


def test_a_changed_native_part_is_refused_without_being_asked() -> None:
    files = members_of(with_library())
    library = next(name for name in files if name.startswith("lib/"))
    with pytest.raises(NeffError, match="does not match its digest"):
        parse(neff_of(files | {library: b"evil"}))


def test_a_missing_native_part_is_refused() -> None:
    files = members_of(with_library())
    with pytest.raises(NeffError, match="damaged"):
        parse(neff_of({name: data for name, data in files.items() if not name.startswith("lib/")}))


def test_the_hash_is_checked_when_asked() -> None:
    files = members_of(SOUND)
    data = pack_files(files | {"info.json": b"{}"})
    forged = SOUND[:16] + struct.pack("<Q", len(data)) + SOUND[24:1024] + data
    assert parse(forged).graph == mlp()
    with pytest.raises(NeffError, match="does not match its hash"):
        parse(forged, validate_hash=True)


def test_a_foreign_neff_says_that_it_is_foreign() -> None:
    foreign = neff_of({"neff.json": b"{}", "info.json": b"{}"})
    assert read_header(foreign).name == "x"
    with pytest.raises(NeffError, match="made by another compiler"):
        parse(foreign)


def test_another_version_has_the_real_words() -> None:
    old = SOUND[:24] + struct.pack("<QQ", 1, 1) + SOUND[40:]
    with pytest.raises(NeffError, match=r"NEFF version mismatch supported: 2\.0 received: 1\.1"):
        parse(old)


@given(st.data())
@settings(max_examples=150)
def test_a_flipped_bit_is_an_error_or_harmless(data: st.DataObject) -> None:
    damaged = bytearray(SOUND)
    damaged[data.draw(st.integers(0, len(SOUND) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        neff = parse(bytes(damaged))
    except NeffError:
        return
    assert neff.graph == mlp()


@given(st.integers(0, len(SOUND) - 1))
def test_a_truncated_neff_is_refused(length: int) -> None:
    with pytest.raises(NeffError):
        parse(SOUND[:length])


@given(st.binary(max_size=3000))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(NeffError):
        parse(data)


@given(st.binary(max_size=2000))
def test_random_data_behind_a_sound_header_is_refused(data: bytes) -> None:
    with pytest.raises(NeffError):
        parse(write_header(data, name="x", build_version="y", lnc=1) + data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(
    st.sampled_from(["neff.json", "graph.json", "cost.bin"]),
    st.binary(max_size=80) | _JSON.map(lambda v: json.dumps(v).encode()),
)
def test_a_member_with_other_content_is_refused(name: str, content: bytes) -> None:
    with pytest.raises(NeffError):
        parse(neff_of(members_of(SOUND) | {name: content}))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"schema":1,"slots":[1e999]}',
        b"9" * 10_000,
        b'{"schema":1,"slots":[-1]}',
        b"\xff\xfe",
    ],
)
def test_hostile_json_is_refused(content: bytes) -> None:
    with pytest.raises(NeffError):
        parse(neff_of(members_of(SOUND) | {"graph.json": content}))


def test_a_graph_that_reaches_outside_its_slots_is_refused() -> None:
    data = mlp().to_bytes().replace(b'"inputs":[0,1]', b'"inputs":[0,99]')
    with pytest.raises(NeffError, match=r"slot outside 0\.\.3"):
        parse(neff_of(members_of(SOUND) | {"graph.json": data}))


def test_another_inner_format_is_named_with_what_to_do() -> None:
    files = members_of(SOUND)
    manifest = json.loads(files["neff.json"]) | {"format": 1}
    with pytest.raises(NeffError, match=r"inner format 1 is not supported \(supported: 2\)") as raised:
        parse(neff_of(files | {"neff.json": json.dumps(manifest).encode()}))
    assert raised.value.remedy == "compile the model again"


def test_a_neff_takes_few_bytes_an_operator() -> None:
    graph = decoder_training(
        layers=8, width=64, heads=4, vocabulary=512, batch=4, length=32, optimizer="adamw"
    )
    neff = compile_graph(graph, TRN2, ("--target=trn2",), "gpt")
    assert len(graph.nodes) > 1000
    assert len(neff) / len(graph.nodes) < 20  # both subgraphs included


def test_a_subgraph_names_its_border_and_its_engines() -> None:
    files = members_of(SOUND)
    variables = json.loads(files["sg00/def.json"])["var"]
    assert {name: fields["type"] for name, fields in variables.items()} == {
        "slot0": "input",
        "slot1": "input",
        "slot3": "output",
    }
    on_tensor = [op for op in parse(SOUND).cost.ops if op.engine == "Tensor"]
    assert json.loads(files["sg00/PE.json"])["instruction_count"] == len(on_tensor) > 0


def test_a_gzip_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    with pytest.raises(NeffError, match="expands to more than"):
        parse(write_header(bomb, name="x", build_version="y", lnc=1) + bomb)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}", fullmatch=True), st.binary(max_size=2000), max_size=8
    )
)
def test_files_survive_their_archive(files: dict[str, bytes]) -> None:
    packed = pack_files(files)
    assert unpack_files(packed) == files
    assert list(unpack_files(packed)) == list(files)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../b", "", "a//b", ".", "x" * 101, "a\0b"])
def test_a_name_that_leads_out_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError):
        pack_files({name: b""})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "hard"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.DIRTYPE, "directory"),
        (tarfile.REGTYPE, "/absolute"),
        (tarfile.REGTYPE, "../up"),
    ],
)
def test_only_plain_files_inside_are_read(kind: bytes, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(ArchiveError):
        unpack_files(buffer.getvalue())


def test_a_file_twice_is_refused() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("same"))
    with pytest.raises(ArchiveError, match="twice"):
        unpack_files(buffer.getvalue())


@pytest.mark.parametrize(("length", "kept"), [(254, 254), (255, 255), (256, 255), (300, 255)])
def test_a_name_keeps_all_bytes_that_fit_before_its_zero(length: int, kept: int) -> None:
    header = read_header(write_header(b"", name="n" * length, build_version="", lnc=1))
    assert header.name == "n" * kept


@pytest.mark.parametrize(("length", "kept"), [(126, 126), (127, 127), (128, 127)])
def test_a_build_version_keeps_all_bytes_that_fit_before_its_zero(length: int, kept: int) -> None:
    header = read_header(write_header(b"", name="", build_version="b" * length, lnc=1))
    assert header.build_version == "b" * kept


def test_header_text_is_cut_between_characters() -> None:
    header = read_header(write_header(b"", name="é" * 128, build_version="", lnc=1))
    assert header.name == "é" * 127


def test_a_file_that_is_not_read_takes_no_memory() -> None:
    files = members_of(with_library()) | {"zeros": bytes(60_000_000), "weights": os.urandom(1_000_000)}
    neff = neff_of(files)
    del files
    tracemalloc.start()
    try:
        parse(neff)
        assert tracemalloc.get_traced_memory()[1] < 45_000_000  # twice a step, and the compressed bytes
    finally:
        tracemalloc.stop()


def test_a_schedule_of_impossible_numbers_is_damage() -> None:
    files = members_of(with_library())
    head, _, body = files["cost.bin"].partition(b"\n")
    damaged = json.dumps(json.loads(head) | {"total_ns": 10**15}).encode() + b"\n" + body
    with pytest.raises(NeffError, match="the NEFF is damaged: not a cost model"):
        parse(neff_of(files | {"cost.bin": damaged}))


def test_a_neff_says_that_it_is_simulated_and_its_times_modelled() -> None:
    files = unpack_files(compile_graph(mlp(), TRN1, FLAGS, "model")[HEADER_BYTES:], lambda _: True)
    assert json.loads(files["info.json"])["simulated"] is True
    assert json.loads(files["metrics.json"])["modelled"] is True
    assert json.loads(files["neff.json"])["cost"]["modelled"] is True
