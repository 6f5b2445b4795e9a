"""Sensitive variables: masks everywhere but in the memory API and in the parameters of tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import HANDLER, Scene, entry, keyring_of, multi_contact, needs, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version

pytestmark = pytest.mark.anyio

NEEDLES = {
    "code": "NEEDLE-80A01H501U",
    "illness": "needlitis of the knee",
    "card": "4111111111111111",
    "phone": "+393471234567",
    "record": {"deep": ["needle in the record"]},
}
AS_WRITTEN = ("NEEDLE-80A01H501U", "needlitis", "4111111111111111", "3471234567", "needle in the record")
CARD = "4111 1111 1111 1111"
MASKED = {"code": "[hidden identity]", "illness": "[hidden health]", "card": "[hidden card]"}


def document(**changes: Any) -> JsonObject:
    """A version over several contacts whose sensitive variables are in a template, a condition and a tool."""
    closed = {"closureConfig": multi_contact()}
    tools = [
        {"parameterName": name, "assignmentStrategy": "variable", "assignmentValue": name}
        for name in ("code", "card", "plain")
    ]
    selection = {
        "mcpServerName": "desk",
        "selectedTools": [{"toolName": "pay", "toolParameters": tools}],
    }
    visit = aio_task(
        "visit",
        prompt="Known: {{ $values.illness }} of {{ $values.code }}.",
        transitionParameters=needs("code"),
        connectedTasks=["reception"],
        mcpToolSelection=[selection],
        **closed,
    )
    when = "vars.code != 'NEEDLE-80A01H501U' and vars.age > 17 or vars.record.deep == contact.code"
    gated = aio_task("gated", entryCondition={"when": when, "reason": "not now"}, **closed)
    return minimal_version(
        **{
            "variables": [
                {"_id": "code", "name": "code", "type": "string", "prompt": "c", "sensitive": "identity"},
                {"_id": "illness", "name": "illness", "type": "string", "prompt": "i", "sensitive": "health"},
                {"_id": "card", "name": "card", "type": "string", "prompt": "k", "sensitive": "card"},
                {"_id": "phone", "name": "phone", "type": "phone", "prompt": "p", "sensitive": True},
                {"_id": "record", "name": "record", "type": "custom", "sensitive": True},
                {"_id": "age", "name": "age", "type": "number", "prompt": "a"},
                {"_id": "plain", "name": "plain", "type": "string", "prompt": "b", "sensitive": False},
            ],
            "mcpServers": [
                {"name": "desk", "url": "https://desk.example.com", "includedTools": [{"toolName": "pay"}]}
            ],
            "tasks": [aio_task(connectedTasks=["visit", "gated"], **closed), visit, gated],
            **closed,
            **changes,
        }
    )


KEYS = [
    {"key": "agent-key", "tenant": "default", "scopes": ["agent"]},
    {"key": "tools-key", "tenant": "default", "scopes": ["tools"]},
    {"key": "watching", "tenant": "default", "scopes": ["operator"]},
    {"key": "revealing", "tenant": "default", "scopes": ["operator", "privacy"]},
    {"key": "everything", "tenant": "default", "scopes": ["admin"]},
]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    answers = {HANDLER: [OutboundReply(200, b"false")]}
    async with open_scene(document(), answers=answers) as opened:
        yield opened


def described(var: str) -> JsonObject:
    value = NEEDLES[var]
    texts = [{"name": "Record", "value": "needle in the record"}]
    return entry(var, value, **({"descriptionForLLM": texts} if var == "record" else {}))


async def lived(scene: Scene) -> list[str]:
    """A whole conversation that quotes what it knows wherever something can be said; the texts of its replies
    to the agent but for the memory's, which are what a model reads."""
    replies = [(await scene.contact()).text]
    assert (await scene.write(*map(described, NEEDLES), entry("plain", "seen by all"))).status_code == 200
    replies.append((await scene.change("gated", reason="they said NEEDLE-80A01H501U")).text)
    replies.append((await scene.change("visit", reason="needlitis OF the knee")).text)
    for number, src in enumerate(("user", "bot", "agent")):
        said = f"It is needle-80a01h501u, call 347 123 4567, card {CARD}"
        replies.append((await scene.say(f"m{number}", said, src=src)).text)
    told = {"note": f"needlitis of the knee {CARD}", "subtype": "desk"}
    replies.append((await scene.say("m4", told, type="system", src="bot")).text)  # type: ignore[arg-type]
    replies.append(json.dumps(await scene.prompt()))
    replies.append((await scene.http.get("/v1/prompt/conv-1?format=toon")).text)
    replies.append((await scene.end(reason="NEEDLE-80A01H501U hung up")).text)
    again = {"contactId": "call-2", "contact": {"callerId": "+393471234567", "name": "Ada"}}
    replies.append((await scene.contact(**again)).text)
    replies.append((await scene.change("reception", contactId="call-2")).text)
    return replies


async def heard(scene: Scene, *, seconds: float = 1) -> None:
    """What was said has been read, and what waited for that has been sent on."""
    scene.clock.advance(seconds=seconds)
    await scene.work()


async def sent_on(scene: Scene) -> list[Any]:
    """The events of the reporting stream, oldest first."""
    entries = await scene.memory.driver.client.xrange("{flow-engine}:events")
    return [json.loads(fields[b"event"]) for _, fields in entries]


def assert_masked(text: str, *, tools: bool = False) -> None:
    """No needle in it, but for what tools are handed."""
    if tools:
        found = json.loads(text)
        found["mcpTools"] = None
        text = json.dumps(found)
    for needle in AS_WRITTEN:
        assert needle.casefold() not in text.casefold(), (needle, text)
    for spelled in ("347 123 4567", CARD):
        assert spelled not in text, (spelled, text)


async def test_no_needle_is_anywhere_but_in_memory_and_parameters_of_tools(scene: Scene) -> None:
    replies = await lived(scene)  # journal: sensitive
    for reply in replies:
        found = json.loads(reply)
        assert found.get("code") is None or found["code"] == "condition_not_met", reply
        assert_masked(json.dumps({**found, "mcpTools": None, "contact": None}))
    for event in await scene.events():
        assert_masked(json.dumps(event))
    seqs = (await scene.http.get("/v1/conversations/conv-1")).json()["seq"]
    assert seqs > 8
    paths = ["", "/journal", "/recording"] + [f"/at/{seq}" for seq in range(1, seqs + 1)]
    for path in paths:
        reply = await scene.http.get(f"/v1/conversations/conv-1{path}")
        assert reply.status_code == 200, reply.text
        told = reply.json()
        told.pop("versions", None)  # the document of the flow, whose condition names a needle
        assert_masked(json.dumps(told))


async def test_memory_and_parameters_of_tools_show_the_values(scene: Scene) -> None:  # journal: sensitive
    await scene.started()
    await scene.written(*map(described, NEEDLES), entry("plain", "seen by all"))
    reply = await scene.changed("visit")
    parameters = reply["mcpTools"][-1]["tools"][0]["parameters"]
    values = {each["parameterName"]: each["value"] for each in parameters}
    assert values == {"code": NEEDLES["code"], "card": NEEDLES["card"], "plain": "seen by all"}
    assert "Known: [hidden health] of [hidden identity]." in reply["prompt"]
    for row in ("|code||[hidden identity]|", "|record||[hidden]|", "|plain||seen by all|"):
        assert row in reply["prompt"]
    memory = (await scene.http.get("/v1/memory/conv-1")).json()["vars"]
    found = {each["varId"]: (each["value"], each.get("sensitive")) for each in memory}
    assert found["code"] == (NEEDLES["code"], "identity")
    assert found["phone"][0]["number"] == NEEDLES["phone"]
    assert (found["record"], found["plain"]) == ((NEEDLES["record"], True), ("seen by all", None))


async def test_at_shows_the_reply_with_masks_and_the_hash_of_what_was_sent(scene: Scene) -> None:
    await scene.started()  # journal: sensitive
    await scene.written(*map(described, NEEDLES))
    sent = await scene.change("visit")
    masked = (await scene.http.get("/v1/conversations/conv-1/at/3")).json()
    clear = (await scene.http.get("/v1/conversations/conv-1/at/3?reveal=true")).json()
    assert clear["reply"] == sent.text
    assert_masked(masked["reply"])
    for found in (masked, clear):
        assert found["replySha256"] == sha256(sent.content).hexdigest()
        assert found["prompt"] == sent.json()["prompt"]
        assert found["promptSha256"] == sha256(found["prompt"].encode()).hexdigest()
    shown = json.loads(masked["reply"])
    parameters = shown["mcpTools"][-1]["tools"][0]["parameters"]
    assert [each["value"] for each in parameters] == ["[hidden identity]", "[hidden card]", None]
    assert {**shown, "mcpTools": None} == {**sent.json(), "mcpTools": None}


async def test_at_masks_what_a_reply_quotes_of_people_and_models(scene: Scene) -> None:
    await scene.started()  # journal: sensitive
    sent = [(await scene.change("needlitis of the knee")).json()["reason"]]
    await scene.written(*map(described, NEEDLES))
    sent.append((await scene.change("needlitis of the knee")).json()["reason"])
    assert all("needlitis of the knee" in reason for reason in sent)
    for seq in (2, 4):
        reply = (await scene.http.get(f"/v1/conversations/conv-1/at/{seq}")).json()["reply"]
        assert_masked(reply)
        assert "[hidden health]" in json.loads(reply)["reason"]


async def test_a_refusal_masks_values_ways_and_conditions(scene: Scene) -> None:  # journal: sensitive
    await scene.started()
    await scene.written(*map(described, NEEDLES))
    condition = (await scene.change("gated")).json()["condition"]
    assert condition["when"].startswith("vars.code != '[hidden identity]' and")
    assert [part["values"] for part in condition["parts"]] == [
        {"vars.code": "[hidden identity]"},
        {"vars.age": None},
        {"vars.record.deep": "[hidden]", "contact.code": None},
    ]
    assert [part["truth"] for part in condition["parts"]] == ["false", "unknown", "unknown"]
    assert any("[hidden identity]" in way for way in condition["wouldHold"])


@pytest.mark.parametrize("path", ["", "/journal", "/at/2"])
async def test_only_the_scope_privacy_reveals(path: str) -> None:  # journal: scopes
    async with open_scene(authenticator=keyring_of(json.dumps({"keys": KEYS}))) as scene:
        url = f"/v1/conversations/conv-1{path}"

        async def asked(key: str, query: str = "") -> tuple[int, str]:
            reply = await scene.http.get(url + query, headers={"Authorization": f"Bearer {key}"})
            return reply.status_code, reply.text

        scene.http.headers["Authorization"] = "Bearer everything"
        await scene.publish(document())
        await scene.started()
        await scene.written(*map(described, NEEDLES))
        status, masked = await asked("watching")
        assert status == 200
        assert_masked(masked)
        assert await asked("watching", "?reveal=false") == (200, masked)
        status, refused = await asked("watching", "?reveal=true")
        assert (status, json.loads(refused)["code"]) == (403, "scope_missing")
        for key in ("revealing", "everything"):
            status, clear = await asked(key, "?reveal=true")
            assert (status, str(NEEDLES["code"]) in clear) == (200, True)
            assert (await asked(key))[1] == masked
        assert (await asked("agent-key", "?reveal=true"))[0] == 403
        assert (await asked("revealing", "?reveal=yes"))[0] == 422
        for key in ("agent-key", "tools-key"):
            headers = {"Authorization": f"Bearer {key}"}
            memory = await scene.http.get("/v1/memory/conv-1", headers=headers)
            assert str(NEEDLES["code"]) in memory.text


async def test_the_journal_masks_what_is_not_known_any_more(scene: Scene) -> None:  # journal: journal
    await scene.started()
    await scene.written(entry("code", "the-first-needle"))
    await scene.say("m1", "I said the-first-needle")
    await heard(scene)
    await scene.written(entry("code", "the-second-needle"))
    await scene.written(entry("code", None))
    found = await scene.http.get("/v1/conversations/conv-1/journal?after=2&limit=1")
    (said,) = found.json()["entries"]
    assert said["input"]["body"] == "I said [hidden identity]"
    whole = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
    assert "needle" not in json.dumps(whole)
    whole = [each for each in whole if each["input"]["op"] != "extraction"]
    assert [each["delta"]["tools"]["code"]["value"] for each in whole if "tools" in each["delta"]] == [
        "[hidden identity]",
        "[hidden identity]",
        None,
    ]
    assert whole[1]["input"]["op"] == "memory"
    assert whole[1]["input"]["writes"][0]["varId"] == "code"


def bare(closure: JsonObject) -> JsonObject:
    """A version that knows nothing of the sensitive variables."""
    return minimal_version(_id="version-2", variables=[], tasks=[aio_task(**closure)], **closure)


async def assert_journal_masked(scene: Scene, conversation: str = "conv-1") -> None:
    url = f"/v1/conversations/{conversation}"
    newest = (await scene.http.get(url)).json()["seq"]
    for path in ("/journal", "/recording", *(f"/at/{seq}" for seq in range(1, newest + 1))):
        reply = await scene.http.get(url + path)
        assert reply.status_code == 200, reply.text
        told = reply.json()
        told.pop("versions", None)
        assert_masked(json.dumps(told))


async def test_a_conversation_before_it_under_its_id_stays_masked() -> None:  # journal: sensitive
    alone = {"closureConfig": {"multiContact": False}}
    async with open_scene(document(tasks=[aio_task(**alone)], **alone), bare(alone)) as scene:
        await scene.started()
        await scene.written(entry("code", NEEDLES["code"]))
        await scene.say("m1", "It is NEEDLE-80A01H501U")
        await scene.end(reason="NEEDLE-80A01H501U hung up")
        await scene.started(contactId="call-2", conversationalFlowVersionId="version-2")
        await assert_journal_masked(scene)


async def test_what_a_conversation_is_told_to_end_with_is_masked_by_its_own_version() -> None:  # F40
    """Another flow begins it anew, or a migration leaves what was sensitive behind, in the same commit."""
    shared = {"closureConfig": multi_contact()}
    desk = hum_task("desk", type="AIS", approval=True, approvalTimeout=60, **shared)
    alone = {"closureConfig": {"multiContact": False}}
    first = aio_task(connectedTasks=["desk"], **alone)
    begun = document(tasks=[first, {**desk, **alone}], **alone)
    tasks = [aio_task(connectedTasks=["desk"], **shared), desk]
    newer = {**bare(shared), "_id": "version-4", "tasks": tasks}
    async with open_scene(begun, bare(alone), document(_id="version-3", tasks=tasks)) as scene:
        flow_id = next(
            flow["id"]
            for flow in (await scene.http.get("/v1/flows")).json()
            if flow["tags"][0]["versionId"] == "version-3"
        )
        await scene.save(flow_id, newer)
        for conversation, version in (("conv-1", "version-1"), ("conv-3", "version-3")):
            own = {"conversationId": conversation}
            await scene.started(**own, conversationalFlowVersionId=version)
            await scene.written(entry("code", NEEDLES["code"]), conversation=conversation)
            await scene.changed("desk", **own)
            said = await scene.human("waiting", text="It is NEEDLE-80A01H501U", **own)
            assert said.status_code == 200, said.text
        await scene.started(contactId="call-2", conversationalFlowVersionId="version-2")
        scene.clock.advance(seconds=61)
        order = {"fromVersionId": "version-3", "toVersionId": "version-4"}
        moved = await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)
        assert moved.json()["counts"]["migrated"] == 1, moved.text
        for conversation, outcome in (("conv-1", "withdrawn"), ("conv-3", "timeout")):
            events = await scene.events(conversation)
            assert outcome in [event["body"].get("outcome") for event in events]
            assert_masked(json.dumps(events))


@pytest.mark.parametrize("forked", [False, True])
async def test_what_the_version_lacks_by_now_stays_masked(forked: bool) -> None:  # journal: sensitive
    shared = {"closureConfig": multi_contact()}
    async with open_scene(document(tasks=[aio_task(**shared)])) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow_id, bare(shared))
        await scene.started()
        await scene.written(entry("code", NEEDLES["code"]))
        if forked:
            order = {"atRevision": 2, "conversationId": "fork-1", "versionId": "version-2"}
            assert (await scene.post("/v1/conversations/conv-1/fork", order)).status_code == 201
            await assert_journal_masked(scene, "fork-1")
            return
        order = {"fromVersionId": "version-1", "toVersionId": "version-2"}
        moved = await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)
        assert moved.json()["counts"]["migrated"] == 1
        await assert_journal_masked(scene)


async def test_card_numbers_are_masked_before_anything_is_kept(scene: Scene) -> None:  # journal: sensitive
    await scene.started()
    await scene.say("m1", f"My card is {CARD}, exp 12/29")
    client: Any = scene.memory.driver
    kept = b""
    for name in [key async for key in client.client.scan_iter("*")]:
        kept += await client.client.dump(name) or b""
    assert b"4111 1111" not in kept
    (event,) = [each for each in await scene.events() if each["type"] == "message"]
    assert event["body"] == "My card is [hidden card], exp 12/29"


async def test_what_templates_quote_of_contact_and_tenant_is_masked() -> None:  # journal: sensitive
    raw = document()
    raw["globalPrompt"] = "{{ $contact.callerId }} of {{ $tenant.line }}, {{ $contact.name }}"
    raw["tasks"][1]["transitionParameters"] = []
    raw["mediaConfig"]["text"]["llm"] = {"provider": "openai", "model": "m-{{ $contact.callerId }}"}
    known = {"contact": {"callerId": NEEDLES["phone"], "name": "Ada"}, "tenant": {"line": "0039 347 1234567"}}
    async with open_scene(raw, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
        started = await scene.started(**known, channel="chat")
        assert f"{NEEDLES['phone']} of 0039 347 1234567, Ada" in started["prompt"]
        await scene.written(entry("phone", NEEDLES["phone"]))
        changed = await scene.changed("visit")
        assert "[hidden] of [hidden], Ada" in changed["prompt"]
        assert changed["llm"]["model"] == "m-[hidden]"


async def test_nobody_is_told_that_the_dialogue_fills_a_card_variable() -> None:  # journal: sensitive
    raw = document()
    raw["tasks"][1] |= {"transitionParameters": needs("card", "code"), "mcpToolSelection": []}
    async with open_scene(raw) as scene:
        await scene.started()
        missing = {v["varId"]: v["fillableBy"] for v in (await scene.change("visit")).json()["missing"]}
        assert missing == {"card": [], "code": ["convMiner"]}


async def test_without_a_card_variable_what_is_said_is_kept_as_it_is() -> None:  # journal: sensitive
    async with open_scene(minimal_version()) as scene:
        await scene.started()
        await scene.say("m1", f"My card is {CARD}")
        (event,) = [each for each in await scene.events() if each["type"] == "message"]
        assert event["body"] == f"My card is {CARD}"


@pytest.mark.parametrize("given", ["maybe", 1, None, {}, "Card"])
async def test_what_a_variable_may_say_of_itself_is_listed(given: object) -> None:  # D1: every error at once
    async with open_scene() as scene:
        flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        whole = document()
        del whole["conversationalFlowId"]
        whole["variables"][0]["sensitive"] = given
        refused = await scene.post(f"/v1/flows/{flow_id}/versions", whole)
        (finding,) = refused.json()["errors"]
        assert (refused.status_code, finding["pointer"]) == (422, "/variables/0/sensitive")
        assert "'card', 'health', 'identity'" in finding["message"]


async def test_the_text_of_the_memory_tool_is_masked_and_its_data_are_not(scene: Scene) -> None:
    await scene.started()
    await scene.written(entry("code", NEEDLES["code"]))
    arguments = {"conversationId": "conv-1", "contactId": "call-1"}
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "get_memory", "arguments": arguments},
    }
    accepted = "application/json, text/event-stream"
    reply = await scene.post("/mcp", message, accept=accepted, content_type="application/json")
    result = reply.json()["result"]
    assert "|code||[hidden identity]|" in result["content"][0]["text"]
    assert str(NEEDLES["code"]) not in result["content"][0]["text"]
    assert result["structuredContent"]["vars"][0]["value"] == NEEDLES["code"]


@pytest.mark.parametrize("sensitive", [True, False])
async def test_what_a_conversation_leaves_behind_when_it_begins_anew_is_masked(sensitive: bool) -> None:
    point = {"_id": "paid", "name": "Paid", "prompt": "p", "required": True}
    whole = document(checkpoints=[point], closureConfig={"multiContact": False})
    for task in whole["tasks"]:
        task["closureConfig"] = {"multiContact": False}
    whole["variables"][0]["sensitive"] = sensitive
    async with open_scene(whole) as scene:
        await scene.started()
        await scene.written(entry("code", NEEDLES["code"]))
        await scene.say("m1", "It is NEEDLE-80A01H501U")
        await heard(scene)
        await scene.started(contactId="call-2")
        ref = ConversationRef("default", "conv-1")
        (former,) = (await scene.memory.conversations.load(ref, with_turns=True)).former
        expected = "It is [hidden]" if sensitive else "It is NEEDLE-80A01H501U"
        assert [turn.body for turn in former.turns] == [expected]


async def erased(scene: Scene, conversation: str) -> int:
    return (await scene.http.delete(f"/v1/conversations/{conversation}")).status_code


async def forked(scene: Scene, original: str, fork: str) -> None:
    reply = await scene.post(f"/v1/conversations/{original}/fork", {"atRevision": 1, "conversationId": fork})
    assert reply.status_code == 201, reply.text


async def test_forks_are_erased_with_what_they_were_forked_from(scene: Scene) -> None:  # journal: DELETE
    await scene.started()
    await forked(scene, "conv-1", "fork-1")
    await forked(scene, "fork-1", "fork-2")
    await forked(scene, "conv-1", "fork-3")
    assert await erased(scene, "fork-3") == 200
    await scene.started(conversationId="fork-3", contactId="call-9")  # its own, under the id of a fork
    assert await erased(scene, "conv-1") == 200
    for gone in ("conv-1", "fork-1", "fork-2"):
        assert (await scene.http.get(f"/v1/conversations/{gone}")).status_code == 404
        (word,) = await scene.events(gone)
        assert word["body"] == {"subtype": "conversation_erased"}
        assert word.keys() == {"eventId", "conversationId", "ts", "body", "type", "src"}
    assert (await scene.http.get("/v1/conversations/fork-3")).status_code == 200
    listed = (await scene.http.get("/v1/conversations")).json()["conversations"]
    assert [row["conversationId"] for row in listed] == ["fork-3"]


async def test_an_erased_fork_leaves_its_original(scene: Scene) -> None:  # journal: DELETE
    await scene.started()
    await forked(scene, "conv-1", "fork-1")
    assert await erased(scene, "fork-1") == 200
    assert (await scene.http.get("/v1/conversations/conv-1")).status_code == 200


async def test_a_live_contact_is_over_with_its_conversation(scene: Scene) -> None:  # journal: DELETE
    await scene.started()
    assert await erased(scene, "conv-1") == 200
    for reply in (
        await scene.say("m1", "Hello?"),
        await scene.change("visit"),
        await scene.end(reason="hangup"),
        await scene.write(entry("plain", "x")),
        await scene.http.get("/v1/prompt/conv-1"),
    ):
        assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown")
    assert len(await scene.events()) == 1


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("lacking", [False, True])
async def test_what_was_sensitive_stays_so_on_another_version(  # journal: sensitive
    forked: bool, lacking: bool
) -> None:
    """The next version has the variables and hides none, or has none; the one after it has them again."""
    open_ones = [{k: v for k, v in each.items() if k != "sensitive"} for each in document()["variables"]]
    second = (
        bare({"closureConfig": multi_contact()})
        if lacking
        else document(_id="version-2", variables=open_ones)
    )
    async with open_scene(document()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        for version in (second, document(_id="version-3", variables=open_ones)):
            await scene.save(flow_id, version)
        await lived(scene)
        await heard(scene)
        if forked:
            await assert_masked_everywhere(scene, await moved_by_fork(scene, "conv-1", "fork-1", "version-2"))
        else:
            order = {"fromVersionId": "version-1", "toVersionId": "version-2"}
            moved = await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)
            assert moved.json()["counts"]["migrated"] == 1, moved.text
            await assert_masked_everywhere(scene, "conv-1")
        before = "fork-1" if forked else "conv-1"
        await assert_masked_everywhere(scene, await moved_by_fork(scene, before, "fork-2", "version-3"))


async def test_a_fork_that_is_begun_anew_stays_masked() -> None:  # journal: sensitive
    alone = {"closureConfig": {"multiContact": False}}
    first = document(tasks=[aio_task(**alone)], **alone)
    open_ones = [{k: v for k, v in each.items() if k != "sensitive"} for each in first["variables"]]
    async with open_scene(first) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow_id, {**first, "_id": "version-2", "variables": open_ones})
        await scene.started()
        await scene.written(*map(described, NEEDLES))
        fork = await moved_by_fork(scene, "conv-1", "fork-1", "version-2")
        await scene.started(conversationId=fork, contactId="call-2", conversationalFlowVersionId="version-2")
        await assert_journal_masked(scene, fork)


async def moved_by_fork(scene: Scene, original: str, fork: str, version: str) -> str:
    """The id of a fork from its newest entry, on another version."""
    newest = (await scene.http.get(f"/v1/conversations/{original}")).json()["seq"]
    order = {"atRevision": newest, "conversationId": fork, "versionId": version}
    reply = await scene.post(f"/v1/conversations/{original}/fork", order)
    assert reply.status_code == 201, reply.text
    assert_masked(reply.text)
    return fork


async def assert_masked_everywhere(scene: Scene, conversation: str) -> None:
    own, url = {"conversationId": conversation, "contactId": "call-2"}, f"/v1/conversations/{conversation}"
    said = f"Again: needle-80a01h501u, needlitis of the knee, {CARD}"
    assert_masked((await scene.say(f"{conversation}-more", said, **own)).text)
    await heard(scene)
    assert_masked((await scene.http.get(url)).text)
    await assert_journal_masked(scene, conversation)
    assert_masked(json.dumps(await scene.prompt(conversation)), tools=True)
    for variable in (await scene.http.get(f"/v1/memory/{conversation}")).json()["vars"]:
        assert variable.get("sensitive") or variable["varId"] not in NEEDLES, "for the texts of MCP tools"
    assert_masked((await scene.end(**own)).text)
    await heard(scene, seconds=30)
    assert_masked(json.dumps(await sent_on(scene)))
    assert_masked((await scene.contact(**own | {"contactId": f"{conversation}-3"})).text, tools=True)
