"""Write the pages that are made from code: `python docs/generate.py`."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from neurontools import env
from neurontools.machine.faults.kinds import ECC, KINDS, UNRECOVERABLE, FaultKind, Reach
from neurontools.monitor.processes import KEYS
from neurontools.runtime.status import NrtStatus
from neurontools.sysfs.layout import driver_release
from neurontools.tui.names import shown_key
from neurontools.tui.top.keys import key_names

TABLE_BEGIN, TABLE_END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def settings_table() -> str:
    """Return the table of docs/reference/settings.md: every environment variable and its key in config.yaml."""
    rows = [
        f"| {'' if name in env.FOR_CHILDREN else f'`{name.removeprefix(env.PREFIX).lower()}`'} | `{name}` "
        f"| {f'`{default}`' if default else ''} | {meaning} |"
        for name, default, meaning in env.DOCUMENTED
    ]
    return "\n".join(
        ["| in config.yaml | environment variable | default | meaning |", "|---|---|---|---|", *rows, ""]
    )


def faults_table() -> str:
    """Return the table of docs/reference/faults.md: what each kind of fault does to its victim, and where that is counted."""
    rows = []
    for kind, facts in KINDS.items():
        if kind is FaultKind.ECC:
            rows += [
                _row(f"`ecc` `{ecc}`", one.status, one.kernel_word, [one.counter]) for ecc, one in ECC.items()
            ]
        else:
            counted = facts.reach is not Reach.ALLOCATION
            rows.append(_row(f"`{kind}`", facts.status, facts.kernel_word, [], counted=counted))
    rows.append(_row("an unusable core (see `ecc`)", UNRECOVERABLE, "", []))
    head = [
        "fault",
        "victim: NRT status",
        "neuron-monitor",
        "sysfs, of the core",
        "sysfs, of the device",
        "kernel log",
    ]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows, ""])


def with_table(page: str, table: str) -> str:
    """Return a page with its generated table replaced."""
    before, _, rest = page.partition(TABLE_BEGIN)
    return before + TABLE_BEGIN + table + TABLE_END + rest.partition(TABLE_END)[2]


def _row(name: str, status: int, kernel_word: str, counters: list[str], *, counted: bool = True) -> str:
    victim = f"{status} `{NrtStatus(status).name}`" if status else "success"
    monitor = driver = ""
    if status and counted:
        keys = KEYS[NrtStatus(status)]
        monitor = f"`{keys.outcome}`, `{keys.error}`"
        driver = f"`{dict(driver_release('2.32').status_of).get(status, 'generic_error')}`"
    device = ", ".join(f"`{counter}`" for counter in counters)
    kernel = f"`NEURON_HW_ERR={kernel_word}`" if kernel_word else ""
    return f"| {name} | {victim} | {monitor} | {driver} | {device} | {kernel} |"


def instances_page() -> str:
    """Return docs/reference/instances.md."""
    path = Path(__file__).with_name("instances_page.py")
    page: str = run_path(str(path))["instances_page"]()
    return page


def keys_page() -> str:
    """Return docs/reference/neuron-top-keys.md."""
    rows = [
        f"| `{name}` | {' '.join(f'`{shown_key(key)}`' for key in keys.split(','))} | {meaning} |"
        for name, keys, meaning in key_names()
    ]
    return "\n".join(
        [
            "# Keys of neuron-top",
            "",
            "Generated from the bindings by `python docs/generate.py`. Section `top.keys` of `config.yaml` binds keys by these",
            "names ([configuration](../how-to/customize-neuron-top.md#configure-it)). A name without a dot works on every page.",
            "`next-machine`, `previous-machine` and `page-machines` need several machines.",
            "",
            "| name | key | action |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def commands_page() -> str:
    """Return docs/reference/commands.md."""
    page: str = run_path(str(Path(__file__).with_name("commands_page.py")))["commands_page"]()
    return page


def torch_names_page() -> str:
    """Return docs/reference/torch-names.md."""
    page: str = run_path(str(Path(__file__).with_name("torch_names_page.py")))["torch_names_page"]()
    return page


if __name__ == "__main__":
    reference = Path(__file__).parent / "reference"
    (reference / "instances.md").write_text(instances_page(), encoding="utf-8")
    (reference / "commands.md").write_text(commands_page(), encoding="utf-8")
    (reference / "torch-names.md").write_text(torch_names_page(), encoding="utf-8")
    (reference / "neuron-top-keys.md").write_text(keys_page(), encoding="utf-8")
    for name, table in (("faults", faults_table()), ("settings", settings_table())):
        page = reference / f"{name}.md"
        page.write_text(with_table(page.read_text(encoding="utf-8"), table), encoding="utf-8")
