"""Documents and templates that are meant to hurt are refused or bounded: saved, compiled, entered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput, FlowEngineError
from flow_engine.runtime.compiled import compile_flow
from flow_engine.use_cases.submissions import Submissions
from system_prompts.loader import load_system_prompts
from tests.api.harness import clinic, open_scene
from tests.flow_engine.documents.samples import JsonObject, full_version
from tests.hostile.test_stalls import watched, without_a_stall

TEMPLATES: list[str] = json.loads((Path(__file__).parent / "templates.json").read_text("utf-8"))
TENANT = {
    "l": list(range(2_000)),
    "deep": [[[[1] * 10] * 10] * 10] * 10,
    "text": "a b" * 7_000,
    "n": 1e15,
    "x": {"__class__": "data"},
}
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    -1e308,
    2**64 - 1,
    "",
    " ",
    "/",
    "..",
    "{{ x",
    "\u0000",
    "\u202e",
    "a" * 5_000,
    [],
    {},
    [[[[]]]],
    {"a": {"b": None}},
    ["x"] * 500,
]
Places = tuple[str | int, ...]


def filled(source: str) -> JsonObject:
    """The source wherever a document is rendered."""
    speech = {"provider": "openai", "voice": source}
    audio = {"presetId": "default", "tts": {"default": speech, "fallback": speech}}
    document = clinic(globalPrompt=source, mediaConfig={"audio": audio, "text": {}})
    for task in document["tasks"]:
        task["prompt"] = task["description"] = source
    return {key: value for key, value in document.items() if key not in ("conversationalFlowId", "_id")}


@pytest.mark.anyio
@without_a_stall
async def test_no_template_breaks_or_stalls_anything() -> None:  # A2 F22
    async with open_scene() as scene, watched() as stall:
        flow = {"name": "f", "campaignId": "campaign-1", "updatedBy": "ada"}
        versions = f"/v1/flows/{(await scene.post('/v1/flows', flow)).json()['id']}/versions"
        ran = 0
        for number, source in enumerate(TEMPLATES):
            saved = await scene.post(versions, filled(source))
            assert saved.status_code in (201, 422), (source, saved.text)
            if saved.status_code == 422:
                continue
            version_id, conversation = saved.json()["versionId"], f"conv-{number}"
            started = await scene.contact(
                conversationalFlowVersionId=version_id, conversationId=conversation, tenant=TENANT
            )
            assert started.status_code == 200, (source, started.text)
            assert len(started.content) < 2_500_000
            ran += 1
        assert 10 < ran < len(TEMPLATES)
    stall.was_short()


def leaves(value: Any, place: Places = ()) -> Iterator[Places]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from leaves(inner, (*place, key))


def replaced(raw: JsonObject, place: Places, value: Any) -> JsonObject:
    changed = deepcopy(raw)
    owner: Any = changed
    for part in place[:-1]:
        owner = owner[part]
    owner[place[-1]] = value
    return changed


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except FlowEngineError as error:
        return type(error).__name__
    return "accepted"


@pytest.mark.parametrize("turn", range(2))
def test_an_odd_value_anywhere_is_refused_or_runs(turn: int) -> None:  # D10 A10
    """Every place of a full document, each with a few of the odd values; what is accepted also compiles."""
    submissions = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version-1")
    original = full_version()
    original["mediaConfig"]["audio"]["presetId"] = "default"
    accepted = 0
    for number, place in enumerate(leaves(original)):
        odd = ODD[(number * 3 + turn) % len(ODD)]
        body = orjson.dumps(replaced(original, place, odd))
        try:
            submission = submissions.check(
                body, flow_id="flow-1", created_by="ada", now=datetime(2026, 1, 15, tzinfo=UTC)
            )
        except CorrectTheInput:
            continue
        accepted += 1
        compiled = outcome(lambda s=submission: compile_flow(orjson.loads(s.document), "hash"))
        assert compiled in ("accepted", "ReloadAndDecide"), (place, odd)
    assert accepted
