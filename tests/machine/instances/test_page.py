"""docs/reference/instances.md is the catalogue's: made anew it is the same, and every decision is in it."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from neurontools.machine.instances.catalogue import instance_names, instance_type

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_what_the_catalogue_makes_of_it():
    page = run_path(str(DOCS / "instances_page.py"))["instances_page"]()
    assert (DOCS / "reference" / "instances.md").read_text() == page, "python docs/generate.py makes it"


def test_the_page_names_every_type_and_every_decision():
    page = (DOCS / "reference" / "instances.md").read_text()
    for name in instance_names():
        assert f"| `{name}` |" in page
        assert all(f"- {decision}\n" in page for decision in instance_type(name).decisions)
