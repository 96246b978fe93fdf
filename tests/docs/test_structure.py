"""Pages made from code are up to date, and the README names the two commands that matter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def generator():
    """Return docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_the_table_of_settings_is_generated_from_the_code():
    generate = generator()
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert generate.with_table(page, generate.settings_table()) == page


def test_the_page_of_commands_is_generated_from_the_parsers():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert generator().commands_page() == page, "python docs/generate.py"


def test_the_readme_names_the_commands_and_shows_real_pictures():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    pictures = [
        line.partition("](")[2].partition(")")[0] for line in readme.splitlines() if line.startswith("![")
    ]
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_the_architecture_draws_every_folder():
    drawing = (ROOT / "ARCHITECTURE.md").read_text().partition("```\n")[2].partition("```")[0]
    homes = [ROOT / "neurontools", ROOT / "tui", ROOT / "commands"]
    packages = [path.parent for home in homes for path in home.glob("*/__init__.py")]
    assert packages
    for package in packages:
        inner = (
            [path.parent.name for path in package.glob("*/__init__.py")] if package.name != "compat" else []
        )
        for name in (package.name, *inner):
            assert f"{name}/ " in drawing, name
    drawn = [name for line in drawing.splitlines() for name in re.findall(r"(?:^| )([a-z]+)/(?= )", line)]
    assert [
        name
        for name in drawn
        if not any(any(home.rglob(name)) for home in homes) and not (ROOT / name).is_dir()
    ] == []


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as they are made from their words."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_leads_somewhere():
    results = [
        page
        for folder in ("benchmarks", "tests/mutation", "tests/stress")
        for page in (ROOT / folder).glob("*.md")
    ]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *results]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                broken.append((page.name, link))
    assert broken == []


def test_the_gallery_shows_every_screen_in_dark_and_light():
    gallery = (ROOT / "docs" / "reference" / "gallery.md").read_text()
    shown = re.findall(r"\]\(\.\./images/([^)]+)\)", gallery)
    light = {f"light/{path.name}" for path in (ROOT / "docs" / "images" / "light").glob("*.svg")}
    assert light <= set(shown)
    assert {name.removeprefix("light/") for name in light} <= set(shown)
    assert all((ROOT / "docs" / "images" / name).is_file() for name in shown)


def test_every_page_is_reached_from_the_readme():
    seen, wait = set[Path](), [ROOT / "README.md"]
    while wait:
        page = wait.pop().resolve()
        if page.suffix == ".md" and page not in seen:
            seen.add(page)
            wait += [page.parent / path for path in re.findall(r"\]\(([^)#:\s]+\.md)", page.read_text())]
    assert {path.resolve() for path in (ROOT / "docs").rglob("*.md")} <= seen


def test_every_page_is_in_the_navigation_of_the_site():
    named = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_every_file_that_a_page_names_is_there():
    named = r"`(?:python )?((?:tests|benchmarks|fixtures|docs|commands|tui)/[\w./*-]+)"
    missing = [
        (page.name, name)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(named, page.read_text())
        if not list(ROOT.glob(name))
    ]
    assert missing == []


def test_lines_are_at_most_120_characters_long():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    long = [
        (page.name, line)
        for page in pages
        for line in re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
        if len(line) > 120 and not line.startswith("|")  # a row of a table is one line
    ]
    assert long == []
