"""The published JSON Schema gives a document the verdict that the service gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator, FormatChecker

from flow_engine.documents import parse_version
from flow_engine.documents.json_schema import version_schema
from flow_engine.errors import CorrectTheInput
from flow_engine.testing.simulation import persona_schema
from flow_engine.use_cases.recording_format import recording_schema
from tests.api.harness import clinic, open_scene, over_many_contacts
from tests.flow_engine.diagrams.drawn import SAMPLES, sample
from tests.flow_engine.documents import samples
from tests.flow_engine.documents.test_documents_parity import EXAMPLES, SCHEMA_CODES, TEXTS, mutated

BASES = (
    samples.minimal_version(),
    samples.full_version(),
    {**samples.full_version(), "draft": True},
    {"draft": True},
)


@cache
def validator() -> Draft202012Validator:
    # In a JSON Schema `$` is the end of the text; in Python it is the last line break's place as well.
    text = re.sub(r'("pattern": "(?:[^"\\]|\\.)*)\$"', r'\1\\\\Z"', json.dumps(version_schema()))
    schema = json.loads(text)
    assert r"\Z" in schema["properties"]["apiVersion"]["pattern"]
    return Draft202012Validator(schema, format_checker=FormatChecker(["date-time"]))


def breaks_the_schema(document: object) -> bool:
    """As the service judges; references between the parts of a document are no matter of a schema."""
    try:
        parse_version(document)
    except CorrectTheInput as refusal:
        return any(finding.code in SCHEMA_CODES for finding in refusal.findings)
    return False


def _patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for inner in node.values():
            yield from _patterns(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _patterns(inner)


@pytest.mark.anyio
async def test_the_schema_is_published_at_two_addresses_without_a_key() -> None:  # F2
    async with open_scene() as scene:
        stable = await scene.http.get("/schemas/flow-version/1.0.0.json")
        newest = await scene.http.get("/schemas/flow-version.json")
        assert stable.status_code == 200
        assert stable.headers["content-type"] == "application/schema+json"
        assert stable.headers["access-control-allow-origin"] == "*"
        assert stable.content == newest.content
        assert stable.json()["$id"] == "urn:flow-engine:schema:flow-version:1.0.0"
        assert stable.json()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        recordings = [await scene.http.get(f"/schemas/recording{each}.json") for each in ("", "/1")]
        assert recordings[0].json() == recordings[1].json() == recording_schema()
        personas = [await scene.http.get(f"/schemas/persona{each}.json") for each in ("", "/1")]
        assert personas[0].json() == personas[1].json() == persona_schema()


def test_it_is_a_schema_of_its_draft() -> None:
    Draft202012Validator.check_schema(version_schema())
    Draft202012Validator.check_schema(recording_schema())
    Draft202012Validator.check_schema(persona_schema())


def test_its_patterns_hold_to_what_every_dialect_knows() -> None:
    """ECMAScript in Unicode mode refuses needless escapes, and other engines have no look-around."""
    for pattern in _patterns(version_schema()):
        assert not re.search(r"\(\?[^:]", pattern), pattern
        assert set(re.findall(r"\\(.)", pattern)) <= set("snrux.{}[]\\"), pattern


def test_it_says_nothing_that_only_the_code_knows() -> None:
    text = json.dumps(version_schema())
    assert "model_extra" not in text
    assert not re.search(r"\(F\d", text)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.name)
def test_the_samples_are_accepted(path: Any) -> None:  # F2
    assert list(validator().iter_errors(sample(path.name))) == []


@pytest.mark.parametrize("document", [*BASES, clinic(), over_many_contacts()])
def test_whole_documents_are_accepted(document: Any) -> None:  # F2
    assert list(validator().iter_errors(document)) == []


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(mutated(BASES))
@pytest.mark.long
def test_a_changed_document_gets_the_same_verdict(document: Any) -> None:  # F2 F3
    assert (not validator().is_valid(document)) == breaks_the_schema(document)


@pytest.mark.parametrize(
    "place",
    [
        ("schemaVersion",),
        ("apiVersion",),
        ("createdAt",),
        ("mcpServers", 0, "url"),
        ("closureConfig", "customHandler"),
        ("closureConfig", "multiContact"),
        ("mediaConfig", "audio", "stt", "default", "provider"),
        ("mediaConfig", "audio", "tts", "fallback", "provider"),
        ("mediaConfig", "audio", "courtesyMessageConfig", "provider"),
        ("mediaConfig", "audio", "courtesyMessageConfig", "providerParams"),
        ("mediaConfig", "text", "courtesyMessageConfig"),
        ("tasks", 0, "type"),
        ("tasks", 1, "type"),
        ("tasks", 1, "channels"),
        ("tasks", 1, "routingParameters"),
        ("tasks", 1, "routingParameters", "waitingMessagesConfiguration", "generationStrategy"),
        ("variables", 0, "type"),
        ("variables", 5, "enumValues"),
        ("draft",),
    ],
    ids=lambda place: "/".join(map(str, place)),
)
def test_every_rule_of_one_place_is_in_the_schema(place: tuple[str | int, ...]) -> None:  # F2 F3
    for value in (..., None, True, False, 1, 0.5, [], {}, ["phone"], [None], {"messages": 1}, *TEXTS):
        document: Any = samples.full_version()
        holder = document
        for step in place[:-1]:
            holder = holder[step]
        if value is ...:
            del holder[place[-1]]
        else:
            holder[place[-1]] = value
        assert (not validator().is_valid(document)) == breaks_the_schema(document), (place, value)
