"""What a user says in a task where sensitive values are read: shown once it was read, with masks in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.runtime.events import mark_of
from flow_engine.use_cases.delivery import READ_WITHIN
from tests.api.harness import Scene, clinic, open_scene
from tests.api.test_privacy import heard, sent_on
from tests.flow_engine.documents.samples import JsonObject
from tests.flow_engine.listening.test_mining import MINE, says, working_on
from tests.redis_fixture import client_of

pytestmark = pytest.mark.anyio

KINDS = {"var_phone": True, "var_date": "health", "var_boolean": "health", "var_string": "identity"}


def document(*sensitive: str, **changes: Any) -> JsonObject:
    version = clinic(**changes)
    for variable in version["variables"]:
        if variable["_id"] in (sensitive or KINDS):
            variable["sensitive"] = KINDS[variable["_id"]]
    return version


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(document()) as opened:
        await opened.started()
        yield opened


async def bodies(scene: Scene) -> list[Any]:
    """What was said, as it is in the reporting stream."""
    return [event["body"] for event in await sent_on(scene) if event.get("type") == "message"]


async def journal(scene: Scene) -> list[Any]:
    entries = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
    return [each["input"]["body"] for each in entries if each["input"]["op"] == "handle-utterance"]


async def test_an_event_waits_until_its_words_were_read_and_those_after_it_too(scene: Scene) -> None:
    await scene.say("m-1", "Call me on +39 347 123 4567")  # journal: sensitive
    await scene.say("m-2", "Is 3471234567 right?", src="bot")
    await scene.work()
    assert await bodies(scene) == []
    assert await journal(scene) == ["[hidden]", "Is 3471234567 right?"], "nobody knows of a value yet"
    await heard(scene)
    assert await bodies(scene) == ["Call me on [hidden]", "Is [hidden] right?"]
    assert await journal(scene) == ["Call me on [hidden]", "Is [hidden] right?"]
    assert all("unread" not in event for event in await sent_on(scene))
    await scene.say("m-3", "3471234567", src="bot")
    await scene.work()
    assert (await bodies(scene))[-1] == "[hidden]", "what is known is masked at once"


async def test_words_that_tell_a_value_without_quoting_it_are_masked_as_a_whole(scene: Scene) -> None:
    await scene.say("m-1", "Good morning")  # journal: sensitive
    await heard(scene)
    await scene.say("m-2", "The date is 3 May 2026")
    await heard(scene)
    memory = (await scene.http.get("/v1/memory/conv-1")).json()["vars"]
    assert next(each["value"] for each in memory if each["varId"] == "var_date") == "2026-05-03"
    assert await bodies(scene) == ["Good morning", "[hidden health]"]
    assert await journal(scene) == ["Good morning", "[hidden health]"]
    recording = await scene.http.get("/v1/conversations/conv-1/recording")
    assert "May" not in recording.text
    ended = (await scene.end()).json()
    assert "May" not in json.dumps(ended)
    revealed = await scene.http.get("/v1/conversations/conv-1/journal?reveal=true")
    assert "3 May 2026" in revealed.text


async def test_a_summary_has_no_words_that_nobody_has_read() -> None:  # journal: summary
    async with open_scene(document(closureConfig={"multiContact": False})) as scene:
        await scene.started()
        await scene.say("m-1", "Call me on +39 347 123 4567")
        ended = (await scene.end()).json()
        assert "347" not in json.dumps(ended)


async def test_what_one_burst_corrects_is_masked_as_a_whole(scene: Scene) -> None:  # journal: sensitive
    await scene.say("m-1", "Call me on +39 347 123 4567")
    await scene.say("m-2", "No, on +39 347 999 8888")
    await heard(scene)
    assert await bodies(scene) == ["[hidden]", "No, on [hidden]"]
    assert await journal(scene) == ["[hidden]", "No, on [hidden]"]


async def test_words_that_were_still_to_be_read_when_their_version_was_left_are_masked() -> None:
    """The next version has nothing to read them for."""  # journal: sensitive
    closure = {"closureConfig": {"multiContact": False}}
    first = document(**closure)
    newer = clinic(_id="version-2", variables=[], **closure)
    for task in newer["tasks"]:
        task["transitionParameters"] = []
    async with open_scene(first) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow_id, newer)
        await scene.started()
        await scene.say("m-1", "Call me on +39 347 123 4567")
        order = {"fromVersionId": "version-1", "toVersionId": "version-2"}
        moved = await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)
        assert moved.json()["counts"]["migrated"] == 1, moved.text
        await scene.say("m-2", "Good morning")
        await heard(scene)
        assert await bodies(scene) == ["[hidden]", "Good morning"]
        assert await journal(scene) == ["[hidden]", "Good morning"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Ann", ["[hidden identity]"] * 2),  # too short to be looked for
        ("Annabel Lee", ["Hello", "I am [hidden identity]"]),
        ("A. Lee", ["[hidden identity]"] * 2),  # a model does not tell where it read it
        (None, ["Hello", "I am Annabel Lee"]),  # nobody takes it for a value
    ],
)
async def test_what_a_model_reads_is_masked_too(
    scene: Scene, value: str | None, expected: list[str]
) -> None:  # journal: sensitive
    await scene.say("m-1", "Hello")
    await scene.say("m-2", "I am Annabel Lee")
    await working_on(scene, says({"a string": value})).mine(MINE)
    await scene.work()
    assert await bodies(scene) == expected
    assert await journal(scene) == expected


async def test_what_nobody_reads_in_time_leaves_as_a_mask(scene: Scene) -> None:  # journal: sensitive
    await scene.say("m-1", "Call me on +39 347 123 4567")
    relays = scene.service.jobs[0]
    (claim,) = [
        claim
        for claim in await relays.schedule.claim(scene.clock.now(), at_most=9, lease_s=60.0)
        if claim.job.kind == "relay"
    ]
    await relays.run(claim)
    assert await bodies(scene) == []
    scene.clock.at += READ_WITHIN - timedelta(seconds=1)
    name = Job("relay", claim.job.conversation).name
    looks_again = await client_of(scene.memory).zscore("{flow-engine}:jobs", name)
    assert looks_again == (scene.clock.at - READ_WITHIN).timestamp() * 1000 + 2000
    (event,) = await scene.events()
    mark = mark_of(json.dumps(event, separators=(",", ":")).encode())
    assert mark is not None
    assert mark.message == "call-1/m-1"
    scene.clock.advance(seconds=1)
    claims = await relays.schedule.claim(scene.clock.now(), at_most=9, lease_s=60.0)
    for each in claims:
        if each.job.kind == "relay":
            await relays.run(each)
    assert await bodies(scene) == ["[hidden]"]
    for each in claims:
        await relays.run(each)
    assert await journal(scene) == ["Call me on [hidden]"], "the journal shows it once it was read"


async def test_where_nobody_reads_along_nothing_waits() -> None:  # journal: sensitive
    silent = document(aiHelpers=[{"name": "convMiner", "enabled": False}])
    plain, custom = clinic(), clinic()
    custom["variables"][-1]["sensitive"] = True
    for version in (silent, plain, custom):
        async with open_scene(version) as scene:
            await scene.started()
            await scene.say("m-1", "Call me on +39 347 123 4567")
            assert "unread" not in (await scene.events())[0]
            await scene.work()
            assert await bodies(scene) == ["Call me on +39 347 123 4567"]
            entries = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
            assert "mined" not in entries[1]["input"]


async def test_what_was_said_before_it_began_anew_stays_hidden() -> None:  # journal: sensitive
    async with open_scene(document()) as scene:
        await scene.started()
        await scene.say("m-1", "Call me on +39 347 123 4567")
        await scene.end()
        await scene.started(contactId="call-2")
        await scene.say("m-1", "Hello", contactId="call-2")
        await heard(scene)
        assert await bodies(scene) == ["[hidden]", "Hello"]
        assert "347" not in repr(await sent_on(scene)) + repr(await journal(scene))


async def test_what_was_said_before_another_flow_began_it_anew_stays_hidden() -> None:  # journal: sensitive
    single = {"closureConfig": {"multiContact": False}}
    async with open_scene(document(**single), clinic(_id="version-2", **single)) as scene:
        await scene.started()
        await scene.say("m-1", "Call me on +39 347 123 4567")
        await scene.started(contactId="call-2", conversationalFlowVersionId="version-2")
        await heard(scene)
        assert await bodies(scene) == ["[hidden]"]
        assert await journal(scene) == ["[hidden]"]


async def test_a_moment_is_rebuilt_to_the_byte(scene: Scene) -> None:  # journal: at
    said = await scene.say("m-1", "Call me on +39 347 123 4567")
    await heard(scene)
    for seq in (1, 2, 3):
        reply = await scene.http.get(f"/v1/conversations/conv-1/at/{seq}")
        assert reply.status_code == 200
        assert "347" not in reply.text
    assert (await scene.http.get("/v1/conversations/conv-1/at/2")).json()["reply"] == said.text
    ref = ConversationRef("default", "conv-1")
    assert (await scene.memory.conversations.load(ref)).mining.hidden == {}
