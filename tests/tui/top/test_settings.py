"""What the user wishes in config.yaml: obeyed, or named and replaced by the default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.commands.top import build_parser
from neurontools.dashboard.alerts import Condition
from neurontools.tui.names import THEME_NAMES, key_problem, shown_key
from neurontools.tui.top.app import limit_notices
from neurontools.tui.top.keys import key_names, key_problems
from neurontools.tui.top.pages.columns import COLUMNS
from neurontools.tui.top.settings import TopSettings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_all_of_it(config: Path) -> None:
    config.write_text(
        "machine: ci\n"
        "top:\n"
        "  theme: light\n"
        "  page: devices\n"
        "  interval: 2.5\n"
        "  columns: [pid, command, cores]\n"
        "  keys: {quit: Q, processes.filter: [ctrl+f, slash]}\n"
        "  alerts: {device-memory: 0.5, ecc: off, straggler: {threshold: 3, for: 10}}\n"
    )
    found, problems = load_settings(str(config))
    assert problems == ()
    assert (found.theme, found.page, found.interval_s) == ("light", "devices", 2.5)
    assert found.columns == tuple(COLUMNS[name] for name in ("pid", "command", "cores"))
    assert found.keys == {"quit": "Q", "processes.filter": "ctrl+f,slash"}
    rules = {rule.condition: rule for rule in found.rules}
    assert rules[Condition.DEVICE_MEMORY].threshold == 0.5
    assert Condition.ECC not in rules
    assert (rules[Condition.STRAGGLER].threshold, rules[Condition.STRAGGLER].for_s) == (3.0, 10.0)
    assert rules[Condition.IDLE_CLAIM].for_s == 60.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("theme: drak", "theme: unknown theme 'drak'; did you mean 'dark'?"),
        ("page: 3", "page: unknown page '3'; known: overview, history, processes"),
        ("colum: red", "colum: unknown key; did you mean 'columns'?"),
        ("interval: 0", "interval: expected 0.1 to 3600 seconds, found 0"),
        ("interval: yes", "interval: expected 0.1 to 3600 seconds, found yes"),
        ("interval: .nan", "interval: expected 0.1 to 3600 seconds, found .nan"),
        ("columns: {a: 7}", "columns: expected a list such as"),
        ("columns: [pid, utilisation]", "columns: unknown column 'utilisation'; did you mean 'utilization'?"),
        ("keys: quit", "keys: expected a mapping such as"),
        ("keys: {quit: ctrl+alt+nope}", "keys.quit: unknown key 'ctrl+alt+nope'; the default key is used"),
        ("keys: {quit: ctrl+ü}", "keys.quit: unknown key 'ctrl+ü'; the default key is used"),
        ("keys: {quit: []}", "keys.quit: no key; the default key is used"),
        ("alerts: high", "alerts: expected a mapping such as"),
        (
            "alerts: {ecc: many}",
            "alerts.ecc: expected a number of at least 0, or false to switch it off, found 'many'",
        ),
        ("alerts: {ecc: -1}", "alerts.ecc: expected a number of at least 0"),
        ("alerts: {straggler: {factor: 2}}", "alerts.straggler.factor: unknown key"),
        ("alerts: {heat: 1}", "alerts.heat: unknown alert; known: idle-claim"),
    ],
)
def test_invalid_input_is_named_and_the_default_is_used(config: Path, text: str, problem: str) -> None:
    config.write_text(f"top:\n  {text}\n")
    found, problems = load_settings(str(config))
    assert len(problems) == 1
    assert problems[0].startswith(f"{config}:2: top.{problem}")
    columns = (COLUMNS["pid"],) if "utilisation" in text else TopSettings().columns
    assert found == TopSettings(columns=columns)


@pytest.mark.parametrize("text", ["", "machine: top", "top:\n", "- top\n", "top: [", "\0top: 1", "top"])
def test_a_file_without_settings_says_nothing(config: Path, text: str) -> None:
    config.write_text(text)
    assert load_settings(str(config)) == (TopSettings(), ())


def test_a_section_that_is_not_a_mapping_is_named(config: Path) -> None:
    config.write_text("top: light\n")
    assert load_settings(str(config))[1][0].startswith(f"{config}:1: top: expected a mapping, such as")
    assert load_settings(str(config / "gone")) == (TopSettings(), ())


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["theme", "page", "interval", "columns", "keys", "alerts", "x"]), values)
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_yaml_can_hold_makes_it_fail(config: Path, section: dict[str, object]) -> None:
    import yaml

    config.write_text(yaml.safe_dump({"top": section}))
    found, _ = load_settings(str(config))
    assert found.theme in {"auto", "dark", "light", "colorblind"}
    assert found.columns
    key_problems(found.keys)


def test_keys_have_names_and_no_two_of_a_page_are_the_same() -> None:
    names = key_names()
    assert len({name for name, _, _ in names}) == len(names)
    for page in ("overview", "history", "processes", "devices", "events"):
        keys = [
            key
            for name, keys, _ in names
            if "." not in name or name.startswith(f"{page}.")
            for key in keys.split(",")
        ]
        assert len(set(keys)) == len(keys)
        assert [key for key in keys if key_problem(key)] == []


def test_problems_of_keys() -> None:
    assert key_problems({"quit": "Q"}) == ()
    assert "did you mean 'processes.tree'" in key_problems({"proceses.tree": "z"})[0]
    (lost,) = key_problems({"processes.tree": "K"})
    assert lost == "top: keys: K of 'processes.tree' is already the key of 'processes.signal', which loses it"
    assert key_problems({"processes.tree": "x"}) == ()


def test_keys_of_several_machines_do_not_interfere_where_there_is_one() -> None:
    assert key_problems({"next-machine": "tab", "machines.show": "space"}, several=False) == ()
    assert key_problems({"processes.tree": "n"}, several=False) == ()
    assert "'next-machine'" in key_problems({"processes.tree": "n"}, several=True)[0]


ROOT = Path(__file__).parents[3]


def test_the_page_of_keys_is_generated_from_the_bindings() -> None:
    page = run_path(str(ROOT / "docs" / "generate.py"))["keys_page"]()
    assert (ROOT / "docs" / "reference" / "neuron-top-keys.md").read_text() == page


def test_the_manual_names_every_option_setting_column_alert_theme_and_key() -> None:
    guide = (ROOT / "docs" / "how-to" / "customize-neuron-top.md").read_text()
    manual = (ROOT / "docs" / "reference" / "neuron-top.md").read_text() + guide
    options = [option for action in build_parser()._actions for option in action.option_strings]
    missing = {option for option in options if option.startswith("--") and option not in manual}
    assert missing <= {"--help", "--debug"}
    _, _, configuration = guide.partition("## Configure it")
    wanted = ("theme:", "page:", "interval:", "columns:", "keys:", "alerts:", *THEME_NAMES, *COLUMNS)
    assert [word for word in wanted if str(word) not in configuration] == []
    assert [name for name in Condition if f"| `{name}` |" not in manual] == []
    keys = {shown_key(key) for _, names, _ in key_names() for key in names.split(",")}
    # A letter in a head says itself what it sorts by; comma, point and equals sign are the same keys without shift.
    unsaid = (
        {column.key for column in COLUMNS.values()}
        | set("2345678,.=")
        | {f"f{number}" for number in range(2, 7)}
    )
    said = manual.lower()
    assert [
        key
        for key in keys - unsaid
        if f"`{key}`" not in manual and not re.search(rf"\b{re.escape(key)}\b", said)
    ] == []


def test_few_notices_are_shown_whole_and_many_are_counted() -> None:
    assert limit_notices(("a", "b"), 2) == ("a", "b")
    assert limit_notices(("a", "b", "c", "d"), 2) == (
        "a",
        "b",
        "and 2 more; neuron-top --once lists them all",
    )


def test_a_file_that_is_not_yaml_is_named_on_the_screen(terminal: Callable[..., Any]) -> None:
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "neurontools"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("top: {theme: [dark]\n  x")
    shown = terminal()
    shown.read_until("YAML")
    assert b"\x1b[?1049l" not in shown.output
    shown.quit()
