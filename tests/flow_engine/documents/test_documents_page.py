"""The published schema says what every property means, and the page for designers is written from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_engine
from flow_engine.documents.json_schema import version_schema
from flow_engine.documents.page import written_anew

PAGE = Path(flow_engine.__file__).parents[1] / "docs" / "flow-document.md"


def properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    schema = version_schema()
    for owner, described in {"FlowVersion": schema, **schema["$defs"]}.items():
        for name, value in described.get("properties", {}).items():
            yield owner, name, value


def test_every_property_has_a_description() -> None:  # peers 2
    described = list(properties())
    assert len(described) > 140
    assert [(owner, name) for owner, name, value in described if not value.get("description")] == []


def test_a_description_says_more_than_the_name() -> None:  # peers 2
    for owner, name, value in properties():
        text = value["description"]
        assert text[0].isupper() or text[0] == "`", (owner, name)
        assert text.endswith("."), (owner, name)


def test_the_page_is_the_schema() -> None:  # peers 2
    written = PAGE.read_text("utf-8")
    assert written == written_anew(written), "python -m flow_engine.documents.page docs/flow-document.md"
