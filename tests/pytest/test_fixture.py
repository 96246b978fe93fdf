"""A machine for a test: which one, who finds it, and that nothing of it is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.base.procfs import read_start_ticks
from neurontools.machine.processes import wait_for_end
from tests.pytest.conftest import UNUSED

pytest_plugins = ["pytester"]


def test_a_test_gets_the_machine_that_its_marker_names(suite):
    suite(
        """
        import pytest

        @pytest.mark.neuron(instance="trn2.48xlarge", lnc=1, name="big")
        def test_marked(neuron_machine):
            found = neuron_machine.snapshot()
            assert (found.machine, found.instance_type, found.lnc) == ("big", "trn2.48xlarge", 1)
            assert neuron_machine.name == "big"

        def test_plain(neuron_machine):
            assert neuron_machine.snapshot().instance_type == "trn1.2xlarge"
            assert neuron_machine.client.call("describe")["machine"] == "test"

        def test_default_instance(monkeypatch, request):
            monkeypatch.setenv("NEURONTOOLS_INSTANCE", "inf2.xlarge")
            assert request.getfixturevalue("neuron_machine").info.instance_type == "inf2.xlarge"
        """
    ).assert_outcomes(passed=3)


def test_the_nearer_marker_wins_and_parameters_win_over_it(suite):
    suite(
        """
        import pytest

        pytestmark = pytest.mark.neuron(instance="trn2.48xlarge", lnc=1)

        def test_module(neuron_machine):
            assert (neuron_machine.info.instance_type, neuron_machine.info.lnc) == ("trn2.48xlarge", 1)

        @pytest.mark.neuron(lnc=2)
        def test_function(neuron_machine):
            assert (neuron_machine.info.instance_type, neuron_machine.info.lnc) == ("trn2.48xlarge", 2)

        @pytest.mark.parametrize("neuron_machine", ["trn2.3xlarge", {"lnc": 2}], indirect=True)
        def test_parameter(neuron_machine, request):
            wanted = {"trn2.3xlarge": ("trn2.3xlarge", 1)}.get(request.node.callspec.id, ("trn2.48xlarge", 2))
            assert (neuron_machine.info.instance_type, neuron_machine.info.lnc) == wanted
        """
    ).assert_outcomes(passed=4)


def test_tools_and_runtime_find_it_in_this_process_and_in_others(suite):
    suite(
        """
        import json, subprocess, sys
        from neurontools.runtime.session import Runtime

        CODE = "import os; from neurontools.runtime.session import Runtime; print(Runtime.open().cores)"

        def test_it(neuron_machine):
            listed = json.loads(neuron_machine.run(["neuron-ls", "-j"], check=True).stdout)
            assert [device["nc_count"] for device in listed] == [2]
            assert subprocess.check_output([sys.executable, "-c", CODE], text=True) == "(0, 1)\\n"
            assert neuron_machine.run(["python", "-c", CODE], environ={"NEURON_RT_NUM_CORES": "1"}).stdout == "(0,)\\n"
            runtime = Runtime.open()
            assert [process.cores[0].core for process in neuron_machine.snapshot().processes] == [0]
            runtime.close()

        def test_another(neuron_machine):
            assert neuron_machine.snapshot().processes == ()
            assert neuron_machine.run(["neuron-ls", "--nonsense"]).returncode == 1
            assert neuron_machine.run(["cat"], stdin="text").stdout == "text"
            assert neuron_machine.run(["printf", r"\\303\\251 \\377"]).stdout == "\u00e9 \ufffd"
        """
    ).assert_outcomes(passed=2)


def test_faults_hit_programs_and_are_cleared_when_the_test_ends(suite):
    suite(
        """
        import pytest
        from neurontools.pytest.machine import private_machine
        from neurontools.runtime.session import Runtime
        from neurontools.runtime.status import NrtError

        @pytest.fixture(scope="module")
        def neuron_machine(tmp_path_factory):
            with private_machine(str(tmp_path_factory.mktemp("wide")), "trn1.32xlarge") as machine:
                yield machine

        def run_once():
            runtime = Runtime.open(environ={"NEURON_RT_VISIBLE_CORES": "3"})
            try:
                sizes = {"code_bytes": 1, "constant_bytes": 1, "scratch_bytes": 1, "modelled_ns": 1, "flops": 1}
                model = runtime.load(0, name="model", uuid=bytes(16), neff=b"", **sizes)
                return runtime.execute(model, lambda: "done")
            finally:
                runtime.close()

        def test_broken(neuron_machine, neuron_fault):
            fault = neuron_fault("timeout", core=3)
            neuron_fault("slow-core", core=9, factor=3.0)
            assert neuron_machine.faults()[0].id == fault.id
            with pytest.raises(NrtError, match="status=5"):
                run_once()
            neuron_machine.clear_faults(fault)

        def test_whole_again(neuron_machine):
            assert neuron_machine.faults() == ()
            assert run_once() == "done"

        def test_stopped(neuron_machine, neuron_fault):
            neuron_fault("hang")
            neuron_machine.stop(force=True)
        """
    ).assert_outcomes(passed=3)


def test_an_invalid_fault_fails_the_test_with_its_reason(suite):
    found = suite(
        """
        def test_it(neuron_fault):
            neuron_fault("hangg")
        """
    )
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*RefusedError: unknown kind 'hangg'", "*hint: did you mean 'hang'?"])


def test_a_runtime_that_a_test_left_open_is_closed(suite):
    suite(
        """
        from neurontools.runtime.session import Runtime

        def test_careless(neuron_machine):
            Runtime.open()

        def test_next(neuron_machine):
            assert Runtime.open().cores == (0, 1)
        """
    ).assert_outcomes(passed=2)


def test_a_failing_test_leaves_nothing(suite, leftovers):
    found = suite(
        """
        import os, pathlib

        def test_fails(neuron_machine):
            print("daemon", neuron_machine.info.pid)
            assert not neuron_machine.name

        def test_meddles(neuron_machine, monkeypatch):
            print("daemon", neuron_machine.info.pid)
            monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", "/nowhere")
            os.environ["NEURONTOOLS_MACHINE"] = "other"

        def test_stops(neuron_machine):
            neuron_machine.stop()

        def test_after(neuron_machine):
            assert os.environ["NEURONTOOLS_MACHINE"] == "test"
            assert list(pathlib.Path(os.environ["NEURONTOOLS_RUNTIME_DIR"]).parent.glob("neuron[0-9]")) == [
                pathlib.Path(os.environ["NEURONTOOLS_RUNTIME_DIR"])
            ]

        def test_environment():
            assert "NEURONTOOLS_MACHINE" not in os.environ
        """,
        "-rP",
    )
    found.assert_outcomes(passed=4, failed=1)
    assert alive(found) == []
    assert leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_nothing(suite, leftovers, number):
    found = suite(
        f"""
        import os

        def test_ended(neuron_machine):
            os.write(1, b"daemon %d\\n" % neuron_machine.info.pid)
            os.kill(os.getpid(), {int(number)})
        """,
        "-s",
    )
    assert found.ret != 0
    for line in daemons(found):
        wait_for_end(line, 600)
    assert daemons(found)
    assert alive(found) == []
    assert leftovers() == []


def test_workers_of_xdist_do_not_meet_and_a_dead_worker_takes_its_machine_along(suite, leftovers):
    found = suite(
        """
        import os, pathlib, pytest
        from neurontools import machine
        from neurontools.machine import Client

        @pytest.mark.parametrize("turn", range(6))
        def test_alone(neuron_machine, turn):
            assert [info.machine for info in machine.list_machines()] == ["test"]
            os.close(Client.connect().register().page_fd)
            assert len(neuron_machine.snapshot().processes) == 1

        def test_dies(neuron_machine):
            pathlib.Path("daemon").write_text(str(neuron_machine.info.pid))
            os.kill(os.getpid(), 9)
        """,
        "-n2",
    )
    outcome = found.parseoutcomes()
    assert (outcome["passed"], outcome["failed"]) == (6, 1)
    found.stdout.fnmatch_lines(["*worker 'gw?' crashed while running 'test_*::test_dies'*"])
    pid = int(Path("daemon").read_text())
    wait_for_end(pid, 600)
    assert read_start_ticks(pid) is None
    assert leftovers() == []


NONSENSE = [
    ('"trn1.2xlarge"', "@pytest.mark.neuron takes named arguments, not 'trn1.2xlarge'"),
    (
        'instanc="trn1.2xlarge"',
        "@pytest.mark.neuron has no argument 'instanc'\nhint: did you mean 'instance'?",
    ),
    ("colour=3", "@pytest.mark.neuron has no argument 'colour'\nhint: known: instance, name, lnc"),
    ("private=False", "@pytest.mark.neuron has no argument 'private'"),
    ('lnc="1"', "@pytest.mark.neuron: lnc must be a whole number, not '1'"),
    ("lnc=True", "@pytest.mark.neuron: lnc must be a whole number, not True"),
    ("instance=7", "@pytest.mark.neuron: instance must be a text, not 7"),
    ('instance="trn9.huge"', "unknown instance type 'trn9.huge'"),
    (
        'instance="trn1.2xlarge", lnc=2',
        "logical NeuronCore configuration 2 does not exist on trn1.2xlarge",
    ),
    ('name="../x"', "invalid machine name '../x'"),
]


def test_an_invalid_marker_is_reported_in_one_line(suite):
    tests = [
        f"@pytest.mark.neuron({arguments})\ndef test_{number}(neuron_machine):\n    pass\n"
        for number, (arguments, _) in enumerate(NONSENSE)
    ]
    tests.append(
        '@pytest.mark.parametrize("neuron_machine", [3], indirect=True)\ndef test_p(neuron_machine):\n    pass'
    )
    found = suite("import pytest\n\n" + "\n".join(tests))
    found.assert_outcomes(errors=len(tests))
    output = found.stdout.str()
    messages = [*(message for _, message in NONSENSE), "invalid parameter of neuron_machine: 3"]
    assert [message for message in messages if f"neuron_machine: {message}" not in output] == []
    assert "Traceback" not in output
    assert "wish.py" not in output


def test_a_fixture_of_wider_scope_is_made_from_the_same_machine(suite):
    suite(
        """
        import pytest
        from neurontools.pytest.machine import private_machine

        @pytest.fixture(scope="module")
        def farm(tmp_path_factory):
            with private_machine(str(tmp_path_factory.mktemp("farm")), "trn1.32xlarge", name="farm") as machine:
                yield machine

        def test_one(farm):
            assert len(farm.snapshot().devices) == 16

        def test_two(farm):
            assert farm.run(["neuron-ls"]).stdout.startswith("instance-type: trn1.32xlarge")
        """
    ).assert_outcomes(passed=2)


def test_the_marker_alone_changes_nothing(suite):
    suite(
        """
        import os, pytest

        @pytest.mark.neuron("a label of somebody's own", whatever=3)
        def test_it():
            assert "NEURONTOOLS_MACHINE" not in os.environ
        """
    ).assert_outcomes(passed=1)


def test_the_plugin_loads_nothing_but_pytest():
    code = "import sys, pytest; before = {*sys.modules}; import neurontools.pytest.plugin; print(*({*sys.modules} - before))"
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert {*out.split()} == {"neurontools", "neurontools.pytest", "neurontools.pytest.plugin"}


def test_a_run_without_the_fixture_loads_nothing_of_ours(suite):
    suite(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.startswith("neurontools")}
            assert loaded <= {"neurontools", "neurontools.pytest", "neurontools.pytest.plugin"}
        """
    ).assert_outcomes(passed=1)


def test_the_marker_and_the_fixtures_are_documented(suite):
    found = suite("", "--markers")
    found.stdout.fnmatch_lines(["@pytest.mark.neuron(instance=None, lnc=None, *"])
    found = suite("def test_it(): pass", "--fixtures")
    found.stdout.fnmatch_lines(["neuron_machine*", "*Start a simulated Neuron machine for the test*"])


def test_a_package_that_was_loaded_before_pytest_causes_no_warning(pytester):
    pytester.makepyfile("def test_it(): pass")
    without = [word for name in ("cacheprovider", *UNUSED) for word in ("-p", f"no:{name}")]
    code = f"import neurontools.env, pytest, sys; sys.exit(pytest.main(['-W', 'error', *{without}]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert re.search(r"= 1 passed in ", run.stdout)


def daemons(found):
    """Return the pids of the daemons that a run named."""
    return [int(pid) for pid in re.findall(r"daemon (\d+)", found.stdout.str())]


def alive(found):
    """Return those of them that live."""
    return [pid for pid in daemons(found) if read_start_ticks(pid) is not None]
