"""Links to the tools: what is made, what is never touched, what is taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import links
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.links import LinkAction

BIN = Path(sys.executable).parent


@pytest.fixture
def scripts(home):
    """Two stand-ins of console scripts, by name."""
    folder = home / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("neuron-ls", "neuron-top"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {name: str(folder / name) for name in ("neuron-ls", "neuron-top")}


def actions(done):
    return [str(link.action) for link in done]


def everything(folder):
    """Return what is below a folder, with targets of links and contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = (
            os.readlink(path) if path.is_symlink() else path.is_dir() or path.read_text()
        )
    return found


def test_links_are_made_below_a_prefix_that_does_not_exist(home, scripts):
    assert actions(links.make_links(str(home / "opt/aws/neuron"), scripts)) == ["made", "made"]
    assert os.readlink(home / "opt/aws/neuron/bin/neuron-ls") == scripts["neuron-ls"]


def test_a_relative_prefix_gets_absolute_links(home, scripts):
    done = links.make_links("somewhere", scripts)
    assert done[0].path == str(home / "somewhere/bin/neuron-ls")
    assert os.path.isabs(os.readlink(done[0].path))


def test_doing_it_twice_changes_nothing(home, scripts):
    links.make_links(str(home / "p"), scripts)
    before = everything(home / "p")
    assert actions(links.make_links(str(home / "p"), scripts)) == ["kept", "kept"]
    assert everything(home / "p") == before


def test_a_rehearsal_changes_nothing(home, scripts):
    assert actions(links.make_links(str(home / "p"), scripts, dry_run=True)) == ["made", "made"]
    assert not (home / "p").exists()
    links.make_links(str(home / "p"), scripts)
    before = everything(home / "p")
    assert actions(links.remove_links(str(home / "p"), scripts, dry_run=True)) == ["removed", "removed"]
    assert everything(home / "p") == before


def test_links_follow_an_environment_that_moved(home, scripts):
    links.make_links(str(home / "p"), scripts)
    (home / "venv").rename(home / "moved")
    moved = {name: path.replace("/venv/", "/moved/") for name, path in scripts.items()}
    assert actions(links.make_links(str(home / "p"), moved)) == ["repaired", "repaired"]
    assert (home / "p/bin/neuron-ls").resolve() == Path(moved["neuron-ls"]).resolve()
    assert actions(links.remove_links(str(home / "p"), moved)) == ["removed", "removed"]


def test_a_link_that_was_deleted_is_made_again(home, scripts):
    links.make_links(str(home / "p"), scripts)
    (home / "p/bin/neuron-ls").unlink()
    assert actions(links.make_links(str(home / "p"), scripts)) == ["made", "kept"]


@pytest.mark.parametrize("foreign", ["file", "directory", "link", "dangling link"])
def test_what_others_made_is_refused_by_name_and_nothing_is_changed(home, scripts, foreign):
    path = home / "p/bin/neuron-top"
    path.parent.mkdir(parents=True)
    match foreign:
        case "file":
            path.write_text("the real one")
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/bin/sh")
        case "dangling link":
            path.symlink_to("/nowhere/other")
    before = everything(home / "p")
    with pytest.raises(
        NeuronToolsError, match=f"refusing to replace {path}: neurontools did not create this"
    ) as caught:
        links.make_links(str(home / "p"), scripts)
    assert "\n" not in caught.value.message
    assert everything(home / "p") == before
    assert links.remove_links(str(home / "p"), scripts) == ()
    assert everything(home / "p") == before


def test_a_link_of_ours_that_was_replaced_is_left(home, scripts):
    links.make_links(str(home / "p"), scripts)
    (home / "p/bin/neuron-ls").unlink()
    (home / "p/bin/neuron-ls").symlink_to("/bin/sh")
    with pytest.raises(NeuronToolsError, match="did not create this link to /bin/sh"):
        links.make_links(str(home / "p"), scripts)
    assert actions(links.remove_links(str(home / "p"), scripts)) == ["removed"]
    assert everything(home / "p/bin") == {"neuron-ls": "/bin/sh"}


def test_removing_takes_empty_directories_and_no_others(home, scripts):
    (home / "opt/aws/neuron").mkdir(parents=True)
    links.make_links(str(home / "opt/aws/neuron"), scripts)
    (home / "opt/aws/neuron/mine").write_text("mine")
    assert actions(links.remove_links(str(home / "opt/aws/neuron"), scripts)) == ["removed", "removed"]
    assert everything(home / "opt/aws/neuron") == {"mine": "mine"}
    (home / "opt/aws/neuron/mine").unlink()
    links.make_links(str(home / "opt/aws/neuron"), scripts)
    links.remove_links(str(home / "opt/aws/neuron"), scripts)
    assert everything(home / "opt") == {"aws": True}


def test_removing_where_nothing_was_made_is_nothing(home):
    assert links.remove_links(str(home / "nowhere"), {}) == ()
    assert not (home / "nowhere").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_bin_that_is_not_a_real_directory_is_refused(home, scripts, kind):
    (home / "p").mkdir()
    if kind == "file":
        (home / "p/bin").write_text("")
    else:
        (home / "p/bin").symlink_to(home)
    with pytest.raises(NeuronToolsError, match="is not a real directory"):
        links.make_links(str(home / "p"), scripts)


def test_an_empty_prefix_is_refused(scripts):
    with pytest.raises(UsageError):
        links.make_links("", scripts)


def test_only_scripts_that_are_installed_and_belong_there_are_linked():
    found = links.installed_scripts()
    assert {"neuron-ls", "neuron-top", "neuron-profile"} <= set(found) <= set(links.TOOLS)
    assert found["neuron-ls"] == str(BIN / "neuron-ls")
    assert "neuron-run" not in found


def test_without_permission_the_directory_is_named(home, tool):
    (home / "closed").mkdir(mode=0o755)
    if os.getuid() == 0:
        code = (
            "import os\n"
            "from neurontools import links\n"
            "from neurontools.errors import NeuronToolsError\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"try: links.make_links({str(home / 'closed')!r}, {{'neuron-ls': '/bin/sh'}})\n"
            "except NeuronToolsError as error: print(error.message)\n"
        )
        home.chmod(0o755)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout == f"cannot link in {home}/closed/bin: Permission denied\n", run.stderr
    else:
        (home / "closed").chmod(0o500)
        run = tool("neurontools", "link", "--prefix", str(home / "closed"))
        assert run.returncode == 1
        assert run.stderr.startswith(f"error: cannot link in {home}/closed/bin: Permission denied\nhint: ")


def test_the_command_says_what_it_does(home, tool):
    first = tool("neurontools", "link", "--prefix", "p")
    assert first.returncode == 0, first.stderr
    assert f"made      {home}/p/bin/neuron-ls -> {BIN}/neuron-ls" in first.stdout.splitlines()
    again = json.loads(tool("neurontools", "link", "--prefix", "p", "--json").stdout)
    assert {link["action"] for link in again["links"]} == {LinkAction.KEPT}
    rehearsal = tool("neurontools", "link", "--prefix", "p", "--remove", "--dry-run")
    assert f"would be removed  {home}/p/bin/neuron-ls -> {BIN}/neuron-ls" in rehearsal.stdout.splitlines()
    assert tool("neurontools", "link", "--prefix", "p", "--remove").returncode == 0
    assert not (home / "p").exists()


def test_the_command_refuses_in_one_line(home, tool):
    (home / "p/bin").mkdir(parents=True)
    (home / "p/bin/neuron-ls").write_text("the real one")
    run = tool("neurontools", "link", "--prefix", "p")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        f"error: refusing to replace {home}/p/bin/neuron-ls: neurontools did not create this file\n"
        "hint: choose another --prefix, or move it away\n"
    )
    assert (home / "p/bin/neuron-ls").read_text() == "the real one"


def test_a_link_works_when_path_is_relative(home, tool, monkeypatch):
    monkeypatch.chdir(BIN.parent)
    monkeypatch.setenv("PATH", f"{BIN.name}:{os.environ['PATH']}")
    run = subprocess.run(
        ["neurontools", "link", "--prefix", str(home / "p")], capture_output=True, text=True, check=True
    )
    assert f"-> {BIN}/neuron-ls" in run.stdout
    monkeypatch.chdir(home)
    assert tool("neurond", "start").returncode == 0
    out = subprocess.run(
        [home / "p/bin/neuron-ls", "--json-output"], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(out)[0]["nc_count"] == 2
    assert tool("neurond", "stop").returncode == 0


def test_two_at_once_agree(home):
    command = [str(BIN / "neurontools"), "link", "--prefix", "p", "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=home) for _ in range(4)]
    found = [json.loads(each.communicate()[0])["links"] for each in running]
    assert [each.returncode for each in running] == [0] * 4
    assert {links_[0]["action"] for links_ in found} <= {"kept", "made"}
    assert os.readlink(home / "p/bin/neuron-ls") == str(BIN / "neuron-ls")
