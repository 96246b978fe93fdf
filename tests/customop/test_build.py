"""Building: what is compiled when, what goes wrong and how it is told."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from neurontools.customop.building import build as build_module
from neurontools.customop.building import compilation, toolchain
from neurontools.customop.building.build import build
from neurontools.customop.building.compilation import Unit, compile_units, describe, link
from neurontools.customop.building.request import BuildRequest, with_stack
from neurontools.customop.building.toolchain import find_compiler
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.signature import (
    DescribedOperator,
    Function,
    check_operators,
    parse_description,
    schema,
)
from neurontools.errors import MissingDependencyError

KERNEL = """#include <torch/torch.h>
#include "scale.h"
torch::Tensor twice(const torch::Tensor& x) { return torch::full(x.sizes(), SCALE, torch::kFloat); }
"""
SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(built, m) { m.def("twice", &same, "twice"); }
"""


@pytest.fixture
def sources(scratch: Path) -> Path:
    (scratch / "kernel.cpp").write_text(KERNEL)
    (scratch / "scale.h").write_text("#define SCALE 2\n")
    os.utime(scratch / "scale.h", (1e9, 1e9))  # a header that was written just now is read twice, to be sure
    (scratch / "shape.cpp").write_text(SHAPE)
    return scratch


def request(**changes: object) -> BuildRequest:
    values: dict[str, object] = {
        "name": "built",
        "compute": (Path("kernel.cpp"),),
        "shape": (Path("shape.cpp"),),
        "directory": Path("out"),
        "cflags": ("-O0",),
    }
    return BuildRequest(**{**values, **changes})  # type: ignore[arg-type]


def refusal(**changes: object) -> str:
    with pytest.raises(CustomOpBuildError) as caught:
        build(request(**changes))
    return f"{caught.value.message}\n{caught.value.remedy}"


def test_unchanged_sources_rebuild_nothing_and_a_changed_header_does(sources: Path, home: Path) -> None:
    for name in ("kernel.cpp", "shape.cpp"):  # contents that no earlier test compiled here
        (sources / name).write_text(f"{(sources / name).read_text()}// {home}\n")
    steps: list[str] = []
    first = build(request(), steps.append)
    assert first.rebuilt
    assert steps[-2:] == ["compiling shape.cpp", "compiling kernel.cpp"]
    assert first.path == sources / "out" / "libbuilt.so"
    assert [Path(entry.path).name for entry in first.manifest.sources] == [
        "kernel.cpp",
        "scale.h",
        "shape.cpp",
    ]
    before = first.path.stat()
    assert not build(request(), steps.append).rebuilt
    now = first.path.stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (sources / "scale.h").write_text("#define SCALE 3\n")
    assert build(request()).rebuilt
    assert first.path.stat().st_ino != before.st_ino  # replaced, never written over: it may be mapped


def test_other_settings_are_another_build(sources: Path) -> None:
    assert build(request()).rebuilt
    release = build(request(release=True))
    assert release.rebuilt
    assert release.manifest.release
    assert not build(request(release=True)).rebuilt


def test_a_damaged_library_is_built_again(sources: Path) -> None:
    path = build(request()).path
    path.write_bytes(path.read_bytes()[:-100])
    assert build(request()).rebuilt


def test_without_a_directory_libraries_of_one_name_do_not_meet(sources: Path) -> None:
    one = build(request(directory=None)).path
    two = build(request(directory=None, cflags=("-O0", "-DOTHER"))).path
    assert one.name == two.name == "libbuilt.so"
    assert one.parent != two.parent


def test_compiler_errors_show_only_lines_of_the_user(sources: Path) -> None:
    (sources / "kernel.cpp").write_text(
        "#include <torch/torch.h>\n"
        "torch::Tensor twice(const torch::Tensor& x) {\n"
        "  auto a = x.accessor<char, 1>();\n"
        "  return missing(x);\n"
        "}\n"
    )
    text = refusal()
    lines = text.strip().splitlines()
    assert lines[0] == "cannot compile kernel.cpp"
    told = [line for line in lines[1:] if not line.startswith(" ")]
    assert all(line.startswith("kernel.cpp:") for line in told), text
    assert any(line.startswith("kernel.cpp:4:") and "missing" in line for line in told)
    assert any(
        line.startswith("kernel.cpp:3:") and "no tensor has this element type" in line for line in told
    )
    assert "  return missing(x);" in text
    assert "neurontools/" not in text
    assert "/usr/" not in text


def test_a_large_stack_frame_is_a_warning_and_declaring_it_is_none(sources: Path) -> None:
    (sources / "kernel.cpp").write_text(
        "#include <torch/torch.h>\n"
        "torch::Tensor twice(const torch::Tensor& x) {\n"
        "  volatile char big[20000];\n"
        "  big[0] = 1;\n"
        "  return x;\n"
        "}\n"
    )
    warned = build(request())
    assert any("frame size" in line and line.startswith("kernel.cpp:") for line in warned.warnings), (
        warned.warnings
    )
    declared = build(with_stack(request(), 40000))
    assert declared.warnings == ()
    assert declared.manifest.stack_bytes == 40000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "builtin"}, 'the library name "builtin" is reserved'),
        ({"name": "a/b"}, 'invalid library name "a/b"'),
        ({"compute": ()}, "no compute sources given"),
        ({"shape": (Path("nowhere.cpp"),)}, "shape source nowhere.cpp does not exist"),
        ({"cflags": ("-DSTACK_SIZE=500000",)}, "stack size 500000 is above the limit of 409600 bytes"),
        ({"cflags": ("-DSTACK_SIZE=much",)}, "invalid -DSTACK_SIZE=much: must be a number of bytes"),
    ],
)
def test_invalid_requests(sources: Path, changes: dict[str, object], message: str) -> None:
    assert message in refusal(**changes)


def shape_source(*definitions: str, functions: str = "") -> str:
    body = " ".join(definitions)
    return SHAPE.partition("NEURON_LIBRARY")[0] + functions + f"\nNEURON_LIBRARY(built, m) {{ {body} }}\n"


DEFINE = 'm.def("twice", &same, "twice");'
SIGNATURES = [
    (
        "torch::Tensor",
        "torch::Tensor x, float",
        "parameter 1 has the unsupported type float\nuse double",
    ),
    ("torch::Tensor", "int", "parameter 0 has the unsupported type int\nuse int64_t"),
    (
        "torch::Tensor",
        "std::vector<torch::Tensor>",
        "parameter 0 has the unsupported type std::vector<torch::Tensor",
    ),
    (
        "torch::Tensor",
        ", ".join(["double"] * 17),
        "shape function takes 17 parameters; the limit is 16\ncombine numbers in one tensor",
    ),
    ("void", "torch::Tensor", "shape function returns void\nit must return exactly one torch::Tensor"),
    ("double", "torch::Tensor", "shape function returns double\nit must return exactly one torch::Tensor"),
    (
        "torch::Tensor",
        "const torch::Tensor&, torch::Tensor&, const torch::Scalar&, const double, int64_t",
        "",
    ),
]


def test_signatures_that_cannot_be_passed_are_reported(sources: Path) -> None:
    functions = [
        f"{result} f{index}({parameters}) {{ return {result}(); }}"
        for index, (result, parameters, _) in enumerate(SIGNATURES)
    ]
    definitions = [f'm.def("f{index}", &f{index}, "f{index}");' for index in range(len(SIGNATURES))]
    operators = described(shape_source(*definitions, functions="#include <vector>\n" + "\n".join(functions)))
    for operator, (_, _, message) in zip(operators, SIGNATURES, strict=True):
        if not message:
            check_operators((operator,))
            assert schema("op", operator.shape.parameters) == (
                "op(Tensor _0, Tensor _1, Scalar _2, float _3, int _4) -> Tensor"
            )
            continue
        with pytest.raises(CustomOpBuildError) as caught:
            check_operators((operator,))
        assert message in f"{caught.value.message}\n{caught.value.remedy}"


def test_a_linker_that_says_nothing_of_the_sources_is_quoted(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [f"ld: line {number}" for number in range(7)]
    monkeypatch.setattr(compilation, "_run", lambda _: (1, "\n".join(said)))
    with pytest.raises(CustomOpBuildError) as caught:
        link(toolchain.prepare(find_compiler()), [], scratch / "out.so", [Path("shape.cpp")])
    assert caught.value.message.splitlines() == ["cannot link shape.cpp", *said[-5:]]


def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Choose a compiler that is a shell script; return the file in which it counts its compiles."""
    script, compiles = tmp_path / "compiler", tmp_path / "compiles"
    script.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo fake && exit\necho >> {compiles}\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return compiles


@pytest.mark.parametrize("name", ["worker", "runtime.o", "sha256"])
@pytest.mark.parametrize("size", [0, 5, None])
def test_a_truncated_or_missing_runtime_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int | None
) -> None:
    write = 'while [ "$1" != -o ]; do shift; done; echo program > "$2"'
    compiles = fake_compiler(tmp_path, monkeypatch, write)
    tools = toolchain.prepare(find_compiler())
    assert toolchain.prepare(find_compiler()) == tools
    assert len(compiles.read_text()) == 2
    damaged = tools.worker.parent / name
    if size is None:
        damaged.unlink()
    else:
        os.truncate(damaged, size)
    toolchain.prepare(find_compiler())
    assert len(compiles.read_text()) == 4
    assert tools.worker.read_text() == tools.runtime.read_text() == "program\n"
    assert [path.name for path in tools.worker.parent.parent.iterdir()] == [tools.worker.parent.name]


def test_a_compiler_that_writes_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(CustomOpBuildError, match="runtime: it ended without an error and wrote no file"):
        toolchain.prepare(find_compiler())


def described(text: str) -> tuple[DescribedOperator, ...]:
    """Compile a shape source and return the operators that it registers."""
    tools = toolchain.prepare(find_compiler())
    unit = Unit(Path("unit.cpp"), text, Path("shape.cpp"))
    compile_units(tools, [unit], ("-O0",), {}, Path(), lambda _: None)
    link(tools, [unit.object], Path("shape.so"), [unit.source])
    return parse_description(describe(tools, Path("shape.so"), "the shape sources"))[0]


def operators(*names: str) -> tuple[DescribedOperator, ...]:
    return tuple(DescribedOperator("lib", name, "kernel", Function(("tensor",), "tensor")) for name in names)


@pytest.mark.parametrize(
    ("registered", "message"),
    [
        (operators(), "the shape sources register no operator"),
        (operators(*(f"op{i}" for i in range(11))), "11 operators in one library; the limit is 10"),
        (
            operators("one", "one"),
            "operator lib::one is registered twice\ngive one of them another name",
        ),
        (
            operators("a-b"),
            (
                'operator name "a-b" is not an identifier\n'
                "the first argument of m.def is the name under torch.ops: letters, digits and _"
            ),
        ),
    ],
)
def test_rules_of_a_library(registered: tuple[DescribedOperator, ...], message: str) -> None:
    with pytest.raises(CustomOpBuildError) as caught:
        check_operators(registered)
    assert message in f"{caught.value.message}\n{caught.value.remedy}"


def test_eleven_operators_are_refused_before_the_kernels_are_compiled(sources: Path) -> None:
    (sources / "shape.cpp").write_text(shape_source(*(f'm.def("op{i}", &same, "twice");' for i in range(11))))
    (sources / "kernel.cpp").write_text("this is no C++\n")
    assert "11 operators in one library" in refusal()


def test_kernels_are_found_in_their_sources(sources: Path) -> None:
    (sources / "second.cpp").write_text(
        "#include <torch/torch.h>\n"
        "// twice( is not here\n"
        "namespace inner { torch::Tensor thrice(const torch::Tensor& x) { return torch::full(x.sizes(), 3, torch::kFloat); } }\n"
    )
    (sources / "shape.cpp").write_text(shape_source(DEFINE, 'm.def("thrice", &same, "inner::thrice");'))
    result = build(request(compute=(Path("second.cpp"), Path("kernel.cpp"))))
    assert [entry.kernel for entry in result.manifest.operators] == ["twice", "inner::thrice"]


def test_a_symbol_that_is_nowhere_is_a_link_error(sources: Path) -> None:
    (sources / "kernel.cpp").write_text(
        "#include <torch/torch.h>\n"
        "void elsewhere();\n"
        "torch::Tensor twice(const torch::Tensor& x) { elsewhere(); return x; }\n"
    )
    text = refusal()
    assert text.startswith("cannot link kernel.cpp")
    assert "elsewhere()" in text


def test_a_crash_in_a_static_object_is_an_error_of_the_build(sources: Path) -> None:
    (sources / "shape.cpp").write_text(
        SHAPE + "static int crash() { __builtin_trap(); }\nint now = crash();\n"
    )
    assert "loading the shape sources fails" in refusal()


def test_no_compiler_is_one_line_with_what_to_install(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingDependencyError, match=r"no C\+\+ compiler found") as caught:
        find_compiler()
    assert "apt-get install g++" in caught.value.remedy


def test_a_compiler_that_makes_nothing_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(CustomOpBuildError, match="true exited with 0 but wrote no object file"):
        build(request())


def test_cxx_decides_and_must_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(MissingDependencyError, match="the compiler in CXX does not work: no-such-compiler"):
        find_compiler()
    monkeypatch.setenv("CXX", "g++ -m64")
    assert find_compiler().command[1:] == ("-m64",)


def test_our_headers_are_clean_for_strict_users(sources: Path) -> None:
    every = sources / "every.cpp"
    names = sorted(str(path.relative_to(toolchain.INCLUDE)) for path in toolchain.INCLUDE.rglob("*.h*"))
    every.write_text("".join(f'#include "{name}"\n' for name in names))
    command = [*find_compiler().command, "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    result = subprocess.run(
        [*command, "-I", str(toolchain.INCLUDE), str(every)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_builders_at_the_same_time_make_one_toolchain(sources: Path, home: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from neurontools.customop.building.build import build\n"
        "from neurontools.customop.building.request import BuildRequest\n"
        "print(build(BuildRequest('built', (Path('kernel.cpp'),), (Path('shape.cpp'),), Path('out'))).path)\n"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(home / "fresh")}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert {job.communicate()[0].strip() for job in jobs} == {str(sources / "out" / "libbuilt.so")}
    made = sorted(path.name[:6] for path in (home / "fresh" / "neurontools" / "customop").iterdir())
    assert made == ["locks", "tools-", "work"]
    assert [path.name for path in (sources / "out").iterdir()] == ["libbuilt.so"]


def test_a_directory_that_cannot_be_written_is_named(sources: Path) -> None:
    (sources / "out").write_text("a file\n")
    assert stat.S_ISREG((sources / "out").stat().st_mode)
    with pytest.raises(Exception, match=r"cannot write .*out/libbuilt.so"):
        build(request())


def test_a_build_says_how_long_it_took(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([100.0, 102.5])
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    monkeypatch.setattr(build_module, "build_key", lambda *_: "0" * 64)
    monkeypatch.setattr(build_module, "up_to_date", lambda *_: "the manifest")
    monkeypatch.setattr(build_module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    result = build(request())
    assert (result.seconds, result.rebuilt, result.manifest) == (2.5, False, "the manifest")
