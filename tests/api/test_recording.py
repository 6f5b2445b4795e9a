"""A conversation by itself, as one JSON object: what is in it, who gets it, and what reads it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

import memory.journal as journal_module
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundReply
from flow_engine.use_cases.recording_format import read_recording, recording_schema
from tests.api.harness import HANDLER, Scene, entry, open_scene, over_many_contacts
from tests.flow_engine.listening.test_mining import MINE, Rules, working_on

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(over_many_contacts(), answers={HANDLER: [OutboundReply(200, b"false")]}) as opened:
        yield opened


async def recording(scene: Scene, conversation: str = "conv-1") -> Any:
    reply = await scene.http.get(f"/v1/conversations/{conversation}/recording")
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_it_holds_all_that_a_replay_needs(scene: Scene) -> None:  # journal: recordings
    await scene.started(contact={"callerId": "+390612345678"}, tenant={"timezone": "Europe/Rome"})
    await scene.written(entry("var_string", "cardio"))
    await scene.change("visit", reason="The caller wants a visit.")
    await scene.end(reason="hangup")
    found = await recording(scene)
    Draft202012Validator(recording_schema()).validate(found)
    assert (found["format"], found["formatVersion"], found["complete"]) == ("flow-engine-recording", 1, True)
    assert (found["conversationId"], found["start"], found["tag"]) == ("conv-1", None, None)
    [version] = found["versions"]
    assert version["versionId"] == version["document"]["_id"] == "version-1"
    [contact] = found["contacts"]
    assert (contact["contactId"], contact["data"]) == ("call-1", {"callerId": "+390612345678"})
    start, write, change, end = found["entries"]
    assert start["input"]["tenant"] == {"timezone": "Europe/Rome"}
    assert write["input"]["writes"][0]["value"] == "cardio"
    assert (change["outcome"]["code"], change["rationale"]) == (
        "missing_variables",
        "The caller wants a visit.",
    )
    assert end["outcome"]["closes"] is False
    assert "reception" in end["outcome"]["summary"]
    assert read_recording(orjson.dumps(found)).entries[3].op == "handle-end-contact"


async def test_what_was_heard_is_in_it(scene: Scene) -> None:
    await scene.started()
    await scene.say("m-1", "It is on 3 March 2026")
    await working_on(scene, rules=Rules({"var_date": "2026-03-03"})).mine(MINE)
    heard = (await recording(scene))["entries"][-1]
    assert heard["input"]["op"] == "extraction"
    assert heard["heard"]["values"] == {"var_date": {"value": "2026-03-03", "source": "rules"}}


async def test_every_version_that_it_ran_on_is_in_it(scene: Scene) -> None:
    await scene.started()
    flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
    await scene.save(flow, over_many_contacts(_id="version-2"), tag="next")
    body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
    assert (await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)).status_code == 200
    found = await recording(scene)
    assert [each["versionId"] for each in found["versions"]] == ["version-1", "version-2"]
    assert [each["input"]["op"] for each in found["entries"]] == ["handle-new-contact", "migration"]


async def test_one_whose_beginning_has_made_room_starts_from_what_was_stored(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_ENTRIES", 3)
    monkeypatch.setattr(journal_module, "JOURNAL_BYTES", 4_000)
    await scene.started()
    for number in range(30):
        await scene.written(entry("var_string", "x" * number))
    found = await recording(scene)
    assert found["complete"] is False
    assert found["start"]["tools"]["var_string"]["value"] == "x" * (found["entries"][0]["seq"] - 3)
    assert found["start"]["session"]["versionId"] == found["versions"][0]["versionId"]
    assert len(orjson.dumps(found)) < 40_000


async def test_of_nobody_or_of_another_tenant_there_is_none(scene: Scene) -> None:
    reply = await scene.http.get("/v1/conversations/nobody/recording")
    assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"{", ""),
        (b"[]", ""),
        (b'{"conversationId": 1, "formatVersion": 2}', "/formatVersion"),
        (b'{"entries": [{"seq": 0}]}', "/entries/0/seq"),
    ],
)
def test_what_is_none_is_refused_with_every_breach(text: bytes, place: str) -> None:
    with pytest.raises(CorrectTheInput) as refused:
        read_recording(text)
    assert refused.value.code == "recording_unreadable"
    assert place in [finding.pointer for finding in refused.value.findings]
