"""The models judge documents as the published JSON schemas do, but for the fixes named in F2–F4.

Their facts (types, required properties, defaults, enums, patterns) stand in `schemas.json`.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from pydantic import BaseModel

from flow_engine.documents import (
    AudioMediaConfigPreset,
    FlowVersion,
    media,
    model,
    parse_document,
    parse_version,
)
from flow_engine.errors import CorrectTheInput, pointer
from tests.flow_engine.documents import samples

EXAMPLES = 800 * int(os.environ.get("FLOW_ENGINE_TEST_EXAMPLES", "1"))
"""Documents of each kind that are generated."""
LEAST_COMPARED = 2_000
"""Documents compared with the published schemas in a default run."""

MODELS: dict[str, type[BaseModel] | None] = {
    "AIHelper": model.AiHelper,
    "AudioMediaConfig": media.AudioMediaConfig,
    "AudioMediaConfigPreset": media.AudioMediaConfigPreset,
    "BaseAudioMediaConfig": media.BaseAudioMediaConfig,
    "BaseSTTConfig": media.BaseSttConfig,
    "BaseTTSConfig": media.BaseTtsConfig,
    "Checkpoint": model.Checkpoint,
    "ClosureConfig": model.ClosureConfig,
    "ConversationalFlow": model.Flow,
    "ConversationalFlowTask": model.Task,
    "ConversationalFlowTaskAIO": model.Task,
    "ConversationalFlowTaskAIS": model.Task,
    "ConversationalFlowTaskHUM": model.Task,
    "ConversationalFlowVersion": model.FlowVersion,
    "CourtesyMessageConfig": media.CourtesyMessageConfig,
    "CourtesyMessageGroqParams": media.CourtesyMessageGroqParams,
    "CourtesyMessageRandomParams": media.CourtesyMessageRandomParams,
    "LLMConfig": media.LlmConfig,
    "LanguageCode": None,  # a string
    "LanguageDetectionConfig": media.LanguageDetectionConfig,
    "LanguageSTTConfig": media.LanguageSttConfig,
    "LanguageTTSConfig": media.LanguageTtsConfig,
    "LocalizedText": media.LocalizedText,
    "MCPServer": model.McpServer,
    "MCPToolParameter": model.McpToolParameter,
    "MCPToolParametersMap": model.McpToolParametersMap,
    "MCPToolSelection": model.McpToolSelection,
    "MediaConfig": media.MediaConfig,
    "RoutingParameters": model.RoutingParameters,
    "STTConfig": media.SttConfig,
    "SchemaVersionString": None,  # a string
    "TTSConfig": media.TtsConfig,
    "TextMediaConfig": media.TextMediaConfig,
    "TransitionParameter": model.TransitionParameter,
    "VADConfig": media.VadConfig,
    "Variable": model.Variable,
    "WaitingMessagesConfiguration": model.WaitingMessagesConfiguration,
}


@cache
def published_schemas() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "schemas.json").read_text("utf-8"))


def fixed_schemas() -> dict[str, Any]:
    """The published schemas with the fixes of F2, F3 and F4."""
    schemas = copy.deepcopy(published_schemas())
    template = r"\{\{ .+ \}\}"
    schemas["BaseSTTConfig"]["properties"]["provider"]["pattern"] = (
        rf"\A(google|deepgram|openai|{template})\Z"
    )
    schemas["BaseTTSConfig"]["properties"]["provider"]["pattern"] = (
        rf"\A(google|elevenlabs|openai|{template})\Z"
    )
    schemas["Variable"]["properties"]["enumValues"]["items"]["type"] = ["string", "number"]
    schemas["Variable"]["properties"]["type"]["enum"].append("email")
    for owner, name in (
        ("ClosureConfig", "customHandler"),
        ("MCPServer", "url"),
        ("RoutingParameters", "waitingMusic"),
    ):
        schemas[owner]["properties"][name] = {"type": "string", "format": "http-url"}
    schemas["CourtesyMessageConfig"]["properties"]["providerParams"] = {"type": "object"}
    schemas["CourtesyMessageConfig"]["allOf"] = [
        _when("provider", ["groq"], providerParams="CourtesyMessageGroqParams"),
        _when("provider", ["random"], providerParams="CourtesyMessageRandomParams"),
    ]
    task = schemas["ConversationalFlowTask"]
    task["properties"]["name"] = {"type": "string"}
    _add_conditions(schemas)
    human = _when("type", ["HUM", "AIS"], routingParameters="RoutingParameters")
    human["then"]["required"] = ["routingParameters"]
    task["allOf"] = [human]
    # In a JSON schema `$` is the end of the text; in Python it is the last line break's place as well.
    for text in (
        schemas["SchemaVersionString"],
        schemas["ConversationalFlowVersion"]["properties"]["apiVersion"],
    ):
        text["pattern"] = text["pattern"].replace("$", r"\Z")
    return schemas


def _add_conditions(schemas: dict[str, Any]) -> None:
    """Additions of this format: documents without them are judged as before."""
    text = {"type": "string"}
    for owner in ("Checkpoint", "MCPToolParametersMap"):
        schemas[owner]["properties"]["when"] = text
    parts = {"when": text, "reason": text}
    texts = {"type": "array", "items": text}
    tool = schemas["MCPToolParametersMap"]["properties"]
    tool["writes"] = texts
    tool["resultMapping"] = {"type": "object", "additionalProperties": text}
    schemas["ConversationalFlowVersion"]["properties"]["globalTasks"] = texts
    days = {"type": "number", "minimum": 1, "maximum": 3650}
    retention = {"type": "object", "properties": {"days": days}, "required": ["days"]}
    schemas["ConversationalFlowVersion"]["properties"]["retention"] = retention
    number = {"type": "number"}
    scale = {"type": "object", "properties": {"min": number, "max": number}, "required": ["min", "max"]}
    criterion = {"name": text, "prompt": text, "weight": number}
    criteria = {"type": "object", "properties": criterion, "required": ["name", "prompt"]}
    card = {"name": text, "criteria": {"type": "array", "items": criteria}, "scale": scale}
    cards = {"type": "object", "properties": card, "required": list(card)}
    schemas["ConversationalFlowVersion"]["properties"]["scorecards"] = {"type": "array", "items": cards}
    sensitive = {"enum": [True, False, "card", "health", "identity"]}
    schemas["Variable"]["properties"]["sensitive"] = sensitive
    seconds = {"type": "number", "minimum": 1, "maximum": 315_360_000}
    schemas["Variable"]["properties"]["freshFor"] = seconds
    schemas["Variable"]["properties"]["precedence"] = {"type": "string", "enum": ["tool", "user", "latest"]}
    task = schemas["ConversationalFlowTask"]["properties"]
    task["excludedGlobalTasks"] = texts
    task["returns"] = task["approval"] = {"type": "boolean"}
    task["approvalTimeout"] = {"type": "number"}
    task["entryCondition"] = {"type": "object", "properties": parts, "required": ["when"]}
    advance = {"type": "string", "enum": ["suggest", "auto"]}
    connection = {"type": "object", "properties": {**parts, "advance": advance}}
    task["connectionConditions"] = {"type": "object", "additionalProperties": connection}


def _when(name: str, values: list[str], **shapes: str) -> dict[str, Any]:
    references = {key: {"$ref": f"#/components/schemas/{shape}"} for key, shape in shapes.items()}
    return {
        "if": {"properties": {name: {"enum": values}}, "required": [name]},
        "then": {"properties": references},
    }


@cache
def validator(name: str) -> Draft202012Validator:
    formats = FormatChecker(["date-time"])
    formats.checks("http-url")(_is_http_url)
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": fixed_schemas()}},
        format_checker=formats,
    )


def _is_http_url(value: object) -> bool:
    """Good enough to judge the texts of the mutations below."""
    return not isinstance(value, str) or value in GOOD_URLS or value in FULL_URLS


# --- the errors of a JSON schema as pointers ----------------------------------------------------


def expected_pointers(name: str, document: object) -> set[str]:
    return {place for error in validator(name).iter_errors(document) for place in _places(error)}


def _places(error: ValidationError) -> Iterator[str]:
    path = list(error.absolute_path)
    if error.validator == "required":
        missing = re.match(r"'(.*)' is a required property", error.message)
        assert missing
        yield pointer(*path, missing[1])
    elif error.validator == "additionalProperties":
        assert isinstance(error.instance, dict)
        assert isinstance(error.schema, dict)
        yield from (pointer(*path, key) for key in error.instance if key not in error.schema["properties"])
    elif error.validator == "anyOf":
        # Everywhere one shape or null: the errors are those of the shape.
        for inner in error.context or ():
            if inner.schema_path[0] == 0:
                yield from _places(inner)
    else:
        yield pointer(*path)


def parse_flow(raw: object) -> model.Flow:
    return parse_document(model.Flow, raw, "the flow")


def parse_preset(raw: object) -> AudioMediaConfigPreset:
    return parse_document(AudioMediaConfigPreset, raw, "the audio preset")


def found_pointers(parse: Any, document: object) -> set[str]:
    try:
        parse(document)
    except CorrectTheInput as refusal:
        return {finding.pointer for finding in refusal.findings if finding.code in SCHEMA_CODES}
    return set()


SCHEMA_CODES = {
    "missing_property",
    "unknown_property",
    "wrong_type",
    "not_allowed",
    "invalid_schema_version",
    "invalid_api_version",
    "invalid_provider",
    "invalid_url",
    "invalid_date_time",
}


def without_consequences(pointers: set[str]) -> set[str]:
    """Where a choosing property is itself wrong, nothing is said about what it would have chosen."""
    chosen_by = {
        "prompt": {"type", "generationStrategy"},
        "messagesList": {"generationStrategy"},
        "providerParams": {"provider"},
    }
    return {
        place
        for place in pointers
        if not any(
            f"{place.rpartition('/')[0]}/{choice}" in pointers
            for choice in chosen_by.get(place.rpartition("/")[2], ())
        )
    }


# --- mutated documents --------------------------------------------------------------------------

GOOD_URLS = (
    "http://localhost:8080/mcp",
    "https://www.example.com/a?b=c#d",
    "http://agenda",
    "http://[::1]:9000/",
    "HTTPS://EXAMPLE.COM",
    "http://10.0.0.7/x",
)
FULL_URLS = (
    "https://hooks.example.com/close?flow=1",
    "http://agenda.internal:8080/mcp",
    "https://media.example.com/wait.mp3",
)
BAD_URLS = (
    "ftp://example.com",
    "http://",
    "https:///path",
    "http://a b.example.com/",
    "http://example.com:70000/",
    "//example.com",
    "http://[::1",
    "javascript:alert(1)//https://a.bc",
    " https://example.com",
    "https://example.com\n",
)
TEXTS = (
    *GOOD_URLS,
    *BAD_URLS,
    *(
        "",
        "x",
        "phone",
        "mail",
        "AIO",
        "HUM",
        "AIS",
        "custom",
        "enum",
        "string",
        "fixed",
        "prompt",
        "variable",
    ),
    *("groq", "random", "google", "deepgram", "elevenlabs", "openai", "xdeepgram; rm", "google\n", "azure"),
    *("{{ x }}", "{{x}}", "a {{ x }}", "{{ x }} b", "{{ \n }}", "v1", "v", "v1\n", "xv1", "v1.0", "v٣"),
    *("1.0.0", "1.0", "1.0.0\n", "1.0.0-beta", "CL", "Y", "fasttext", "lingua", "en-US", "default"),
    *("2026-01-31T09:30:00Z", "2026-01-31t09:30:00.123456789z", "2024-02-29T23:59:59+23:59"),
    *(
        "2026-02-29T00:00:00Z",
        "2026-01-31",
        "2026-01-31 09:30:00Z",
        "2026-01-31T09:30:00",
        "0000-01-01T00:00:00Z",
    ),
    *("2026-01-31T24:00:00Z", "2026-01-31T09:30Z", "2026-01-31T09:30:00+24:00"),
    *("2026-1-31T09:30:00Z", "20260131T093000Z", "2026-01-31T09:30:00.Z", "２026-01-31T09:30:00Z"),
    "meta-llama/llama-4-scout-17b-16e-instruct",
)
NAMES = (
    *("_id", "id", "name", "type", "prompt", "draft", "provider", "providerParams", "channels", "x/y~z", ""),
    *("routingParameters", "routing_given", "hideTranscriptionToHuman", "multiContact", "global_prompt"),
    *("customHandler", "generationStrategy", "messagesList", "enumValues", "presetId", "languageDetection"),
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 1.0, 0.5, 10**15, 1e300]),
    st.sampled_from(TEXTS),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)


def _containers(node: Any) -> list[Any]:
    found: list[Any] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict | list):
            found.append(current)
            waiting.extend(current.values() if isinstance(current, dict) else current)
    return found


@st.composite
def mutated(draw: st.DrawFn, originals: tuple[samples.JsonObject, ...]) -> Any:
    document = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        containers = _containers(document)
        target = containers[draw(st.integers(0, len(containers) - 1))]
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        change = draw(st.sampled_from(["replace", "delete", "add"] if keys else ["add"]))
        if change == "add" and isinstance(target, dict):
            target[draw(st.sampled_from(NAMES))] = draw(VALUES)
        elif change == "add":
            target.append(draw(VALUES))
        elif change == "delete":
            del target[draw(st.sampled_from(keys))]
        else:
            key = draw(st.sampled_from(keys))
            kindred = st.sampled_from(TEXTS) if isinstance(target[key], str) else SCALARS
            target[key] = draw(st.one_of(kindred, VALUES))
    return document


def _versions() -> tuple[samples.JsonObject, ...]:
    draft = {**samples.full_version(), "draft": True}
    return samples.minimal_version(), samples.full_version(), draft, {"draft": True}


FLOW = {
    "_id": "flow-1",
    "name": "Clinic",
    "campaignId": "campaign-1",
    "schemaVersion": "1.0.0",
    "updatedBy": "designer",
    "updatedAt": "2026-01-31T09:30:00Z",
}


def compared(documents: st.SearchStrategy[Any], compare: Callable[[Any], None]) -> int:
    """Compare generated documents; how many there were, which is never less than asked for."""
    count = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(documents)
    def run(document: Any) -> None:
        nonlocal count
        count += 1
        compare(document)

    run()
    assert count >= EXAMPLES
    return count


@pytest.mark.long
def test_two_thousand_generated_documents_get_the_verdict_of_the_published_schemas(  # F1 F2 F3
    record_property: Callable[[str, object], None],
) -> None:
    counts = {
        "versions": compared(mutated(_versions()), _compare_version),
        "flows": compared(mutated((FLOW,)), _compare_flow),
        "presets": compared(mutated((samples.full_audio(),)), _compare_preset),
    }
    record_property("compared", counts)
    print(f"documents compared with the published schemas: {counts}")
    assert sum(counts.values()) >= LEAST_COMPARED


def _compare_version(document: Any) -> None:
    expected = expected_pointers("ConversationalFlowVersion", document)
    found = found_pointers(parse_version, document)
    assert bool(found) == bool(expected)
    assert without_consequences(found) == without_consequences(expected)


def _compare_flow(document: Any) -> None:
    expected = expected_pointers("ConversationalFlow", document)
    assert found_pointers(parse_flow, document) == expected


def _compare_preset(document: Any) -> None:
    expected = expected_pointers("AudioMediaConfigPreset", document)
    found = found_pointers(parse_preset, document)
    assert bool(found) == bool(expected)
    assert without_consequences(found) == without_consequences(expected)


def test_an_accepted_version_comes_back_as_it_was() -> None:  # F2
    compared(mutated(_versions()), _comes_back)


def _comes_back(document: Any) -> None:
    try:
        version = FlowVersion.model_validate(document)
    except ValueError:
        return
    # Pydantic takes a foreign property that has the name of an attribute for a set attribute.
    if any("routing_given" in (task.model_extra or {}) for task in version.tasks):
        return
    assert version.model_dump(by_alias=True, exclude_unset=True, mode="json") == document


@pytest.mark.parametrize(
    ("name", "original", "changed"),
    [
        ("ConversationalFlow", FLOW, "updatedAt"),
        ("ConversationalFlow", FLOW, "schemaVersion"),
        ("ConversationalFlowVersion", {"draft": True}, "apiVersion"),
        ("ConversationalFlowVersion", {"draft": True}, "createdAt"),
        ("BaseSTTConfig", samples.stt(), "provider"),
        ("BaseTTSConfig", samples.tts(), "provider"),
        ("MCPServer", {"name": "a", "url": "", "includedTools": []}, "url"),
        ("ClosureConfig", {"multiContact": False}, "customHandler"),
        ("RoutingParameters", samples.full_routing(), "waitingMusic"),
        ("LLMConfig", {}, "provider"),
        ("Checkpoint", {"_id": "a", "name": "a", "prompt": "a"}, "required"),
    ],
)
def test_texts_with_a_form_are_judged_as_published(  # F2 F3
    name: str, original: samples.JsonObject, changed: str
) -> None:
    kind = MODELS[name]
    assert kind
    for value in (*TEXTS, None, True, 1, 1.0, [], {}):
        document = {**original, changed: value}
        expected = validator(name).is_valid(document)
        try:
            kind.model_validate(document)
            accepted = True
        except ValueError:
            accepted = False
        assert accepted == expected, value


@pytest.mark.parametrize("value", [None, [], "text", 3, True])
def test_what_is_no_object_is_no_document(value: object) -> None:  # F1 F2
    assert found_pointers(parse_version, value) == {""} == found_pointers(parse_flow, value)


def test_every_published_schema_has_its_model_with_all_its_properties() -> None:  # F2
    assert set(published_schemas()) == set(MODELS)
    # Read from `model_extra`, since no document is checked against the schema that names it.
    unread = {"hideTranscriptionToHuman"}
    for name, kind in MODELS.items():
        if kind:
            fields = {field.alias for field in kind.model_fields.values()}
            assert _properties(published_schemas()[name]) - unread <= fields, name


def _properties(schema: dict[str, Any]) -> set[str]:
    own = set(schema.get("properties", {}))
    inherited = [_properties(part) for part in schema.get("allOf", []) if "if" not in part]
    if "$ref" in schema:
        inherited.append(_properties(published_schemas()[schema["$ref"].rpartition("/")[2]]))
    return own.union(*inherited)


def test_flows_and_versions_are_closed_and_nothing_else_is() -> None:  # F1 F2
    models = {kind for kind in MODELS.values() if kind}
    assert {kind for kind in models if kind.model_config.get("extra") == "forbid"} == {
        model.Flow,
        FlowVersion,
    }
