"""docs/architecture.md and docs/where.md say where things are: every place that a page names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text("utf-8") for name in ("architecture.md", "where.md")}
ALL_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *ROOT.glob("*/README.md"),
]
BUILT = {"api/console_dist"}
# A path is meant from the root, or from one of the two packages that the page is about.
BASES = (ROOT, ROOT / "flow_engine", ROOT / "channels" / "voice")


def _found(place: str) -> Iterator[Path]:
    return (path for base in BASES for path in base.glob(place))


def places(text: str) -> list[str]:
    found = re.findall(r"`([a-z_]+(?:/[a-z_0-9<>*.-]+)*(?:/|\.py|\.lua|\.json|\.toml|\.md))`", text)
    return [place for place in found if "<" not in place]


@pytest.mark.parametrize("page", PAGES)
def test_every_place_that_is_named_is_there(page: str) -> None:  # D7
    named = places(PAGES[page])
    assert len(named) > 25
    assert [place for place in named if not any(_found(place.rstrip("/")))] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_names_a_path_that_is_not_there(page: Path) -> None:  # D7
    """Of the repository's own folders; what a build makes is not there before it."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    folders = {each.name for each in ROOT.iterdir() if each.is_dir()}
    named = {place for place in re.findall(r"`([a-z_]+/[\w/.*-]+)`", text) if place.split("/")[0] in folders}
    assert [place for place in sorted(named - BUILT) if not any(_found(place.rstrip("/")))] == []


def test_every_private_function_that_a_page_names_is_there() -> None:  # D7
    named = {name for page in PAGES.values() for name in re.findall(r"`(_\w+)`", page)}
    sources = (path.read_text("utf-8") for path in (ROOT / "flow_engine").rglob("*.py"))
    defined = {name for text in sources for name in re.findall(r"def (_\w+)\(", text)}
    assert named
    assert named - defined == set()


def test_every_port_of_the_core_stands_in_the_table_with_its_file() -> None:  # D7
    table = dict(re.findall(r"^\| (`[^|]+`) \| `([^`|]+)` \|", PAGES["architecture.md"], re.MULTILINE))
    told = {(name, file) for names, file in table.items() for name in re.findall(r"`(\w+)`", names)}
    real: set[tuple[str, str]] = set()
    core = ROOT / "flow_engine"
    for path in core.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
                real.add((node.name, path.relative_to(core).as_posix()))
    assert {row for row in told if row[1].endswith(".py") and row[0][0].isupper()} >= real, real - told


def test_every_package_is_in_the_picture() -> None:  # D7
    picture = PAGES["architecture.md"].partition("```mermaid")[2].partition("```")[0]
    for top in ("channels", "adapters"):
        for each in (ROOT / top).iterdir():
            if each.name.startswith("__") or (each.is_dir() and not (each / "__init__.py").exists()):
                continue
            name = f"{each.name}/" if each.is_dir() else each.name
            assert f'"{name}' in picture, name
    for package in ("service", "api", "memory", "flows", "system_prompts", "flow_engine"):
        assert f'"{package}/' in picture
