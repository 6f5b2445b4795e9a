"""What was sent is rebuilt to the byte: every commit of conversations that are played at random."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import httpx
import orjson
import pytest

import memory.journal as journal_module
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from tests.api.harness import HANDLER, Scene, clinic, entry, open_scene, over_many_contacts

pytestmark = pytest.mark.anyio

TALK = ConversationRef("default", "conv-1")
TASKS = ("reception", "visit", "operator", "supervised", "written", "island", "nowhere")
OUTCOMES = ("connected", "completed", "failed", "taken_over", "released")


async def at(scene: Scene, seq: int) -> Any:
    reply = await scene.http.get(f"/v1/conversations/conv-1/at/{seq}")
    assert reply.status_code == 200, reply.text
    return reply.json()


HANDLER_ANSWERS = (
    OutboundReply(200, b"true"),
    OutboundReply(200, b"false"),
    OutboundReply(503, b""),
    OutboundRefused("forbidden"),
    OutboundFailed("away"),
)


async def step(scene: Scene, chance: random.Random, number: int) -> httpx.Response:
    """One request of an agent, as often as not one that is refused. Another contact comes now and then."""
    contact = {"contactId": f"call-{number // 8}"}
    match chance.randrange(9) if number % 8 else 8:
        case 0 | 1 | 2:
            return await scene.change(chance.choice(TASKS), **contact, reason="because")
        case 3 | 4:
            values = [entry("var_string", f"ñ{number}", **contact)]
            if chance.random() < 0.5:
                values.append(entry("var_boolean", chance.choice([True, "no", None]), **contact))
            if chance.random() < 0.3:
                described = [{"name": "Id", "value": "S"}]
                values.append(entry("var_custom", {"n": 1.5}, descriptionForLLM=described, **contact))
            return await scene.write(*values)
        case 5:
            spoken = {"language": "it-IT"} if chance.random() < 0.5 else {"src": "bot", "srcName": "Ada"}
            return await scene.say(f"m-{number}", "Buongiorno", **contact, **spoken)
        case 6:
            return await scene.human(chance.choice(OUTCOMES), **contact)
        case 7:
            return await scene.end(reason="hangup", **contact)
        case _:
            own = {
                "contact": {"callerId": f"+3906{number}", "room": None},
                "tenant": {"timezone": "Europe/Rome"},
            }
            return await scene.contact(**contact, **own, channel=chance.choice(["phone", "chat"]))


@pytest.mark.parametrize("seed", range(6))
async def test_every_commit_is_rebuilt_as_it_was_sent(  # journal: at
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_ENTRIES", 7)
    chance = random.Random(seed)
    verdicts = [chance.choice(HANDLER_ANSWERS) for _ in range(60)]
    document = over_many_contacts() if seed % 2 else clinic()
    async with open_scene(document, answers={HANDLER: verdicts}) as scene:
        sent: dict[int, bytes] = {}
        for number in range(40):
            scene.clock.advance(seconds=chance.choice([0.25, 40, 2000]))
            before = (await scene.memory.listing.one(TALK)).seq
            reply = await step(scene, chance, number)
            after = (await scene.memory.listing.one(TALK)).seq
            assert after - before in (0, 1), reply.text
            if after > before:
                sent[after] = reply.content
        asked_outside = len(scene.outbound.calls)
        events = await scene.events()
        assert len(sent) > 15
        for seq, body in sent.items():
            found = await at(scene, seq)
            assert found["reply"] == body.decode(), (seq, found["reply"])
            assert found["replySha256"] == sha256(body).hexdigest()
            assert found["promptSha256"] == sha256(found["prompt"].encode()).hexdigest()
            told = orjson.loads(body)
            if "prompt" in told:
                assert (found["prompt"], found["prefixHash"]) == (told["prompt"], told["prefixHash"])
                assert (found["state"]["task"], found["revision"]) == (told["taskName"], told["revision"])
        assert len(scene.outbound.calls) == asked_outside, "nothing outside is called"
        assert await scene.events() == events


async def test_a_state_tells_the_values_of_then(scene_of_two_values: Scene) -> None:
    first, second = [await at(scene_of_two_values, seq) for seq in (2, 3)]
    values = [
        {each["varId"]: each["value"] for each in found["state"]["vars"]}["var_string"]
        for found in (first, second)
    ]
    assert values == ["one", "two"]
    assert first["state"] | {"vars": []} == {
        "taskId": "reception",
        "task": "reception",
        "taskStatus": None,
        "status": "active",
        "channel": "phone",
        "language": "en-US",
        "contactId": "call-1",
        "vars": [],
    }
    assert (first["seq"], first["revision"], first["memoryRevision"]) == (2, 1, 1)
    assert "|one|" in first["prompt"]
    assert "|one|" not in second["prompt"]


@pytest.fixture
async def scene_of_two_values() -> Any:
    async with open_scene(clinic()) as scene:
        await scene.started()
        await scene.written(entry("var_string", "one"))
        await scene.written(entry("var_string", "two"))
        yield scene


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("conv-1/at/4", 404, "entry_unknown"),
        ("nobody/at/1", 404, "conversation_unknown"),
        ("conv-1/at/0", 422, "seq_invalid"),
        ("conv-1/at/last", 422, "seq_invalid"),
        ("conv-1/at/9999999999999999999", 422, "seq_invalid"),
        ("conv-1/at/" + 5_000 * "9", 422, "seq_invalid"),
    ],
)
async def test_what_is_not_there_is_told(
    scene_of_two_values: Scene, path: str, status: int, code: str
) -> None:
    refused = await scene_of_two_values.http.get(f"/v1/conversations/{path}")
    assert (refused.status_code, refused.json()["code"]) == (status, code)


async def test_work_in_the_background_sent_no_reply(scene_of_two_values: Scene) -> None:
    scene = scene_of_two_values
    body = {"fromVersionId": "version-1", "toVersionId": "version-2"}
    flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
    await scene.save(flow, clinic(_id="version-2"), tag="next")
    moved = await scene.post(f"/v1/flows/{flow}/migrations?dryRun=false", body)
    assert moved.status_code == 200, moved.text
    found = await at(scene, 4)
    assert (found["reply"], found["replySha256"]) == (None, None)
    assert found["prompt"] == (await scene.prompt())["prompt"]


async def test_a_reply_that_is_made_otherwise_now_is_not_told_as_what_was_sent(
    scene_of_two_values: Scene,
) -> None:
    scene = scene_of_two_values
    key, client = "{default:conv-1}::journal", scene.memory.driver.client
    ((_, fields),) = await client.xrange(key, "1-0", "1-0")
    stored = orjson.loads(fields[b"entry"])
    entries = [(number, kept) for number, kept in await client.xrange(key) if number != b"1-0"]
    await client.delete(key)
    await client.xadd(key, {**fields, b"entry": orjson.dumps({**stored, "reply": 1})}, id="1-0")
    for number, kept in entries:
        await client.xadd(key, kept, id=number)
    assert (await at(scene, 1))["reply"] is None
    assert (await at(scene, 2))["reply"] is not None
