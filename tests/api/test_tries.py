"""Tries: a document that is not published is talked to, and nothing of that is a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fakeredis import FakeServer

from adapters.models.scripted import CallsTools, Fails, Says, ScriptedModel
from flow_engine.ports.models import LLMRequest, ToolCall
from flow_engine.testing.tries import ANSWERS_KEPT, TryLimits
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from service.stores import FlowDatabase
from tests.api.harness import HANDLER, Scene, clinic, entry, keyring_of, open_scene, over_many_contacts

pytestmark = pytest.mark.anyio

GREEDY = {"keys": [{"key": f"{t}-designer", "tenant": t, "scopes": ["designer"]} for t in ("a", "b")]}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        yield opened


async def flow_of(scene: Scene) -> str:
    return (await scene.http.get("/v1/flows")).json()[0]["id"]


class Tried:
    """A try over HTTP. `last` is the reply to the last turn."""

    def __init__(self, scene: Scene, flow: str, last: Any) -> None:
        self.scene = scene
        self.path = f"/v1/flows/{flow}/try/{last['tryId']}"
        self.last = last

    async def refused(self, **turn: Any) -> httpx.Response:
        return await self.scene.post(self.path, turn)

    async def turn(self, **turn: Any) -> Any:
        reply = await self.refused(**turn)
        assert reply.status_code == 200, reply.text
        self.last = reply.json()
        return self.last

    @property
    def values(self) -> dict[str, Any]:
        return {each["varId"]: each["value"] for each in self.last["memory"] if each["value"] is not None}


async def begun(scene: Scene, **order: Any) -> Tried:
    flow = await flow_of(scene)
    reply = await scene.post(f"/v1/flows/{flow}/try", order)
    assert reply.status_code == 201, reply.text
    return Tried(scene, flow, reply.json())


def unsaved(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in clinic(**changes).items() if k not in ("_id", "conversationalFlowId")}


# --- what is tried ----------------------------------------------------------------------------


async def test_an_unsaved_document_is_talked_to(scene: Scene) -> None:  # console: try
    document = unsaved(draft=True)
    document["tasks"][0]["prompt"] = "Ask what it is about, twice."
    tried = await begun(scene, document=document, channel="phone", contact={"callerId": "+39061234567"})
    last = tried.last
    assert (last["turn"], last["turnsLeft"], last["status"], last["hasModel"]) == (1, 200, "active", False)
    assert last["task"] == {
        "taskId": "reception",
        "name": "reception",
        "type": "AIO",
        "status": None,
        "pointer": "/tasks/0",
    }
    texts = {part["name"]: part for part in last["prompt"]["parts"]}
    assert "twice" in texts["task_prompt"]["text"]
    assert not texts["task_prompt"]["volatile"]
    assert texts["memory"]["volatile"]
    assert "+39061234567" in texts["contact"]["text"]
    assert last["prompt"]["tokens"] == sum(part["tokens"] for part in last["prompt"]["parts"]) > 100
    assert [action["command"] for action in last["actions"]] == ["/start"]
    assert [event["body"]["subtype"] for event in last["events"]] == ["contact_started"]
    assert [row["seq"] for row in last["journal"]] == [1]
    assert {row["name"] for row in last["reachableTasks"]} == {"Visita Perché", "operator", "supervised"}


async def test_a_draft_a_tag_and_the_newest_version_are_tried(scene: Scene) -> None:
    draft = clinic(_id="draft-1", draft=True)
    draft["tasks"][0]["name"] = "front desk"
    await scene.save(await flow_of(scene), draft)
    for order, task in (
        ({"versionId": "draft-1"}, "front desk"),
        ({"versionId": "latest"}, "reception"),
        ({"versionId": "version-1"}, "reception"),
        ({}, "front desk"),
    ):
        assert (await begun(scene, **order)).last["task"]["name"] == task


async def test_a_document_that_cannot_run_is_refused_with_every_error(scene: Scene) -> None:
    document = unsaved(firstTask="nowhere")
    document["tasks"][1]["connectedTasks"] = ["nowhere"]
    reply = await scene.post(f"/v1/flows/{await flow_of(scene)}/try", {"document": document})
    assert (reply.status_code, reply.json()["code"]) == (422, "document_invalid")
    assert {"/firstTask", "/tasks/1/connectedTasks/0"} <= {e["pointer"] for e in reply.json()["errors"]}


async def test_what_is_not_there_is_told(scene: Scene) -> None:
    flow = await flow_of(scene)
    for path, body, code in (
        ("/v1/flows/nowhere/try", {}, "flow_unknown"),
        (f"/v1/flows/{flow}/try", {"versionId": "nothing"}, "version_unknown"),
        (f"/v1/flows/{flow}/try/nobody", {"text": "hello"}, "try_unknown"),
    ):
        reply = await scene.post(path, body)
        assert (reply.status_code, reply.json()["code"]) == (404, code)
    both = await scene.post(f"/v1/flows/{flow}/try", {"document": unsaved(), "versionId": "version-1"})
    channel = await scene.post(f"/v1/flows/{flow}/try", {"channel": "mail"})
    assert (both.status_code, both.json()["code"]) == (422, "body_invalid")
    assert (channel.status_code, channel.json()["code"]) == (422, "channel_not_supported")


# --- turns ------------------------------------------------------------------------------------


async def test_turns_are_those_of_a_conversation(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    refused = await tried.turn(changeTask="visit")
    assert [each["code"] for each in refused["refusals"]] == ["missing_variables"]
    assert refused["actions"][0]["refusal"]["missing"][0]["varId"] == "var_string"
    assert (refused["task"]["name"], refused["journal"][0]["outcome"]["code"]) == (
        "reception",
        "missing_variables",
    )
    await tried.turn(memory={"var_string": "cardiology", "a boolean": True, "var_custom": {"at": "nine"}})
    known = {each["varId"]: each for each in tried.last["memory"]}
    assert known["var_string"]["provenance"]["source"] == "tool"
    assert known["var_custom"]["descriptionForLLM"] == [{"name": "at", "value": "nine"}]
    entered = await tried.turn(changeTask="visit")
    assert (entered["task"]["pointer"], entered["actions"][0]["command"]) == (
        "/tasks/1",
        "/start_task Visita Perché AIO",
    )
    assert [event["body"]["subtype"] for event in entered["events"]] == ["task_changed"]
    ended = await tried.turn(hangup={"reason": "busy"})
    assert (ended["status"], ended["journal"][0]["input"]["op"]) == ("closed", "handle-end-contact")
    over = await tried.refused(changeTask="reception")
    assert (over.status_code, over.json()["code"]) == (409, "conversation_closed")
    again = await tried.turn(newContact={"channel": "chat"})
    assert (again["status"], again["channel"], again["task"]["name"], tried.values) == (
        "active",
        "chat",
        "reception",
        {},
    )


async def test_what_is_said_is_read_in_the_same_turn(scene: Scene) -> None:  # F37
    document = unsaved()
    document["tasks"][0]["connectedTasks"] = ["visit"]
    tried = await begun(scene, document=document, channel="phone", language="en-US")
    said = await tried.turn(text="My number is +39 347 123 4567, please call me.")
    assert tried.values["var_phone"]["number"] == "+393471234567"
    heard = next(each for each in said["memory"] if each["varId"] == "var_phone")
    assert (heard["provenance"]["source"], heard["updatedBy"]) == ("rules", "convMiner")
    assert [row["input"]["op"] for row in said["journal"]] == ["handle-utterance", "extraction"]


async def test_a_text_waits_for_a_person_in_a_try_and_in_its_test(scene: Scene) -> None:  # F34
    document = unsaved(channels=["phone", "chat"])
    document["tasks"][0] |= {
        "type": "AIS",
        "approval": True,
        "approvalTimeout": 60,
        "routingParameters": {"timeout": 30},
    }
    tried = await begun(scene, document=document, channel="chat")
    waiting = await tried.turn(humanTask={"outcome": "waiting", "text": "It is the 5th."})
    assert (waiting["task"]["status"], waiting["refusals"]) == ("waiting", [])
    edited = await tried.turn(humanTask={"outcome": "edited", "text": "It is the 6th."})
    assert edited["task"]["status"] == "edited"
    assert edited["actions"][0]["command"] == "/human_task_edited"
    late = await tried.turn(humanTask={"outcome": "approved"})
    assert [refusal["code"] for refusal in late["refusals"]] == ["already_decided"]
    await tried.turn(humanTask={"outcome": "waiting", "text": "And the 7th."})
    assert (await tried.turn(wait=61))["task"]["status"] == "timeout"

    test = yaml.safe_load((await scene.http.get(f"{tried.path}/test")).text)
    steps = [step["human_task"] for step in test["scenarios"][0]["steps"] if "human_task" in step]
    assert {"outcome": "edited", "text": "It is the 6th."} in steps


async def test_a_human_part_a_wait_and_a_contact_that_comes_back(scene: Scene) -> None:  # F10, F28
    tried = await begun(
        scene, document=over_many_contacts(conversationalFlowId=await flow_of(scene)), channel="phone"
    )
    routed = await tried.turn(changeTask="operator")
    assert (routed["task"]["type"], routed["task"]["status"]) == ("HUM", "routing")
    connected = await tried.turn(humanTask={"outcome": "connected"})
    assert connected["task"]["status"] == "connected"
    away = await tried.turn(hangup={"closes": False})
    assert away["status"] == "between_contacts"
    await tried.turn(wait=600)
    back = await tried.turn(newContact={"channel": "chat", "contactId": "second"})
    assert (back["contactId"], back["channel"], back["actions"][0]["command"]) == (
        "second",
        "chat",
        "/resume",
    )
    assert back["journal"][0]["at"] == "2026-01-15T09:40:00Z"
    closed = await tried.turn(hangup={"closes": True})
    assert closed["status"] == "closed"
    assert not scene.outbound.calls, f"{HANDLER} is not asked"


async def test_commands_stand_for_what_a_model_would_do(scene: Scene) -> None:  # console: Talk
    tried = await begun(scene, channel="phone")
    refused = await tried.turn(text="/task Visita Perché")
    assert (refused["actions"][0]["by"], refused["refusals"][0]["code"]) == ("agent", "missing_variables")
    await tried.turn(text="/set a string two words")
    await tried.turn(text="/set var_boolean true")
    await tried.turn(text="/set a number 12.5")
    await tried.turn(text='/set appointment {"doctor": "Rossi"}')
    assert tried.values == {
        "var_string": "two words",
        "var_boolean": True,
        "var_number": 12.5,
        "var_custom": {"doctor": "Rossi"},
    }
    await tried.turn(text="/set a string")
    assert "var_string" not in tried.values, "without a value it is taken back"
    await tried.turn(text="/set var_string cardiology")
    assert (await tried.turn(text="/task visit"))["task"]["taskId"] == "visit"
    assert (await tried.turn(text=" /hangup  no time "))["status"] == "closed"
    assert tried.last["journal"][0]["input"]["reason"] == "no time"


async def test_a_command_that_cannot_be_meant_is_refused(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    for text, code, place in (
        ("/set nothing 1", "command_invalid", "/text"),
        ("/set", "command_invalid", "/text"),
        ("/task", "command_invalid", "/text"),
        ("/set a number many", "memory_invalid", "/text"),
        ("/goto visit", "command_invalid", "/text"),
    ):
        reply = await tried.refused(text=text)
        assert (reply.status_code, reply.json()["code"]) == (422, code)
        assert [error["pointer"] for error in reply.json()["errors"]] == [place]
    assert "accepted are /task NAME, /set VARIABLE VALUE" in (await tried.refused(text="/goto")).text
    for said in ("1/2", "/ 7", "/etc/hosts", "and/or"):
        assert (await tried.turn(text=said))["actions"][0]["kind"] == "utterance"


@pytest.mark.parametrize(
    ("turn", "place"),
    [
        ({}, ""),
        ({"text": "a", "hangup": True}, ""),
        ({"hangup": False}, ""),
        ({"text": ""}, "/text"),
        ({"changeTask": "visit", "language": "it-IT"}, ""),
        ({"memory": {}}, "/memory"),
        ({"memory": {"var_number": "many", "nothing": 1}}, "/memory/var_number"),
        ({"newContact": {"channel": "mail"}}, "/newContact/channel"),
        ({"wait": -1}, "/wait"),
        ({"wait": 1e12}, "/wait"),
        ({"humanTask": {"outcome": "lost"}}, "/humanTask/outcome"),
        ({"humanTask": {"outcome": "edited"}}, "/humanTask/text"),
        ({"humanTask": {"outcome": "connected", "text": "no"}}, "/humanTask/text"),
        ({"hangup": {"closes": "maybe"}}, "/hangup/closes"),
        ({"hangup": "yes"}, "/hangup"),
        ({"say": "hello"}, "/say"),
    ],
)
async def test_a_turn_that_cannot_be_taken_has_pointers(scene: Scene, turn: Any, place: str) -> None:
    tried = await begun(scene, channel="phone")
    reply = await tried.refused(**turn)
    assert reply.status_code == 422, reply.text
    pointers = [error["pointer"] for error in reply.json()["errors"]]
    assert place in pointers
    assert "hangup" not in turn or pointers == [place]
    assert (await scene.http.get(tried.path)).json()["turn"] == 1, "nothing was done"


async def test_a_value_that_no_float_equals_is_refused_in_a_turn(scene: Scene) -> None:  # F21
    tried = await begun(scene, channel="phone")
    reply = await scene.http.post(tried.path, content=b'{"memory":{"var_number":9007199254740993.0}}')
    assert [(error["pointer"], error["code"]) for error in reply.json()["errors"]] == [
        ("/memory/var_number", "number_inexact")
    ]
    assert (await tried.turn(memory={"var_number": 9007199254740992}))["turn"] > 1
    assert tried.values["var_number"] == 9007199254740992
    assert (await scene.http.get(tried.path + "/test")).status_code == 200


async def test_what_stands_now_is_told_without_a_turn(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    turned = await tried.turn(memory={"var_string": "x"})
    looked = (await scene.http.get(tried.path)).json()
    of_turn = {"actions": [], "said": [], "refusals": [], "events": [], "journal": []}
    assert looked == {**turned, **of_turn}


# --- with a model -----------------------------------------------------------------------------


def script(request: LLMRequest) -> Any:
    """The agent greets, tries a task that is closed, and moves once a value is there."""
    if request.purpose != "try":
        return Says("{}")
    heard = [message.content for message in request.messages if message.role == "user"]
    after = request.messages[-1]
    if after.role == "tool":
        return Says("What is it about?" if "missing_variables" in after.content else "It is booked.")
    if heard == ["/start"]:
        return Says("Good morning!")
    return CallsTools((ToolCall("call-1", "change_task", {"task": "visit"}),))


async def test_a_model_plays_the_agent_where_one_is_configured() -> None:
    model = ScriptedModel(script)
    async with open_scene(clinic(), model=model) as scene:
        tried = await begun(scene, channel="phone")
        assert (tried.last["hasModel"], tried.last["said"]) == (True, ["Good morning!"])
        await tried.turn(text="A visit, please.")
        assert tried.last["said"] == ["What is it about?"]
        assert [(each["by"], each["kind"]) for each in tried.last["actions"]] == [
            ("user", "utterance"),
            ("agent", "change_task"),
            ("agent", "utterance"),
        ]
        assert [each["code"] for each in tried.last["refusals"]] == ["missing_variables"]
        assert tried.last["actions"][1]["problem"] is None
        await tried.turn(memory={"var_string": "heart", "var_boolean": True})
        await tried.turn(text="Now?")
        assert (tried.last["task"]["taskId"], tried.last["said"]) == ("visit", ["It is booked."])
    asked = [request for request in model.requests if request.purpose == "try"]
    assert {request.conversation.tenant_id for request in asked if request.conversation} == {"default"}
    assert "Visita Perché" in asked[0].messages[0].content
    assert [message.content for message in asked[-1].messages[1:3]] == ["/start", "Good morning!"]


async def test_what_a_model_writes_in_a_try_waits_for_a_person() -> None:  # F34
    def writes(request: LLMRequest) -> Any:
        if request.purpose != "try":
            return Says("{}")
        reason = "too short" in request.messages[0].content
        return Says("The 6th, at nine." if reason else "The 5th.")

    model = ScriptedModel(writes)
    async with open_scene(clinic(), model=model) as scene:
        document = unsaved(channels=["chat", "phone"])
        document["tasks"][0] |= {"type": "AIS", "approval": True, "routingParameters": {"timeout": 30}}
        tried = await begun(scene, document=document, channel="chat")
        assert (tried.last["said"], tried.last["approvalRequired"]) == ([], True)
        assert [(each["by"], each["outcome"]) for each in tried.last["actions"][1:]] == [("agent", "waiting")]
        assert (tried.last["approval"]["status"], tried.last["approval"]["text"]) == ("waiting", "The 5th.")
        meanwhile = await tried.turn(text="Hello?")
        assert [each["by"] for each in meanwhile["actions"]] == ["user"], "nothing more is written"
        rejected = await tried.turn(humanTask={"outcome": "rejected", "reason": "too short"})
        assert rejected["approval"]["text"] == "The 6th, at nine."
        edited = await tried.turn(humanTask={"outcome": "edited", "text": "On the 6th, at nine."})
        assert [(each["by"], each["kind"], each["text"]) for each in edited["actions"]] == [
            ("human", "human_task", "On the 6th, at nine."),
            ("agent", "utterance", "On the 6th, at nine."),
        ]
        again = await tried.turn(humanTask={"outcome": "edited", "text": "On the 6th, at nine."})
        assert again["said"] == [], "it is said once"
        await tried.turn(humanTask={"outcome": "taken_over"})
        asked = len(model.requests)
        assert (await tried.turn(text="Are you there?"))["said"] == []
        assert [r for r in model.requests[asked:] if r.purpose == "try"] == [], "a person has the word"
        spoken = await begun(scene, document=document, channel="phone")
        assert spoken.last["said"] == ["The 5th."]


async def test_a_model_that_fails_is_told_and_the_turn_stays() -> None:
    async with open_scene(clinic(), model=ScriptedModel(lambda _: Fails("refused"))) as scene:
        tried = await begun(scene, channel="phone")
        assert "refused" in tried.last["modelFailed"]
        assert (await tried.turn(text="Hello?"))["turn"] == 2
        assert "model" in tried.last["modelFailed"] or "refused" in tried.last["modelFailed"]


# --- nothing of it is a conversation ----------------------------------------------------------


async def test_nothing_of_a_try_is_in_lists_events_jobs_or_metrics(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    await tried.turn(text="My number is +39 347 123 4567.")
    await tried.turn(hangup=True)
    keys = {key.decode() for key in await scene.memory.driver.client.keys("*")}
    assert keys == {"{default:tries}::index", f"{{default:tries}}::try:{tried.last['tryId']}"}
    assert (await scene.http.get("/v1/conversations")).json()["conversations"] == []
    assert await scene.work() == 0
    metrics = (await scene.http.get("/metrics")).text
    assert 'contacts_started_total{channel="phone"}' not in metrics
    assert (await scene.contact(conversationId=tried.last["tryId"])).status_code == 200, "an id like others"
    document = (await scene.http.get(f"/v1/flows/{await flow_of(scene)}/versions")).json()
    assert [row["versionId"] for row in document] == ["version-1"]


def database_in(folder: Path) -> FlowDatabase:
    database = SqliteDatabase(folder)
    return FlowDatabase(database, SqliteFlowStore(database), SqliteVersionStore(database))


async def test_any_process_goes_on_with_a_try(tmp_path: Path) -> None:  # serve --workers
    server = FakeServer()
    async with open_scene(clinic(), server=server, flows=database_in(tmp_path)) as one:
        tried = await begun(one, channel="phone")
        await tried.turn(memory={"var_string": "heart", "var_boolean": True})
        async with open_scene(server=server, flows=database_in(tmp_path)) as other:
            tried.scene = other
            assert (await tried.turn(changeTask="visit"))["task"]["taskId"] == "visit"
            await tried.turn(text="hello")
        tried.scene = one
        assert (await tried.turn(hangup=True))["turn"] == 5
        assert [row["seq"] for row in tried.last["journal"]] == [6, 7], "what was done elsewhere counts"


# --- bounds -----------------------------------------------------------------------------------


async def test_a_try_is_gone_when_nobody_goes_on_with_it(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    assert tried.last["expiresAt"] == "2026-01-15T10:00:00Z"
    scene.clock.advance(minutes=29)
    assert (await tried.turn(text="still here"))["expiresAt"] == "2026-01-15T10:29:00Z"
    scene.clock.advance(minutes=30)
    gone = await tried.refused(text="and now?")
    assert (gone.status_code, gone.json()["code"]) == (404, "try_unknown")


async def test_a_tenant_has_so_many_tries_and_each_so_many_turns() -> None:
    few = TryLimits(at_once=2, turns=3, most_bytes=200_000, idle_s=60.0)
    async with open_scene(clinic(), try_limits=few) as small:
        first = await begun(small, channel="phone")
        await begun(small)
        full = await small.post(f"/v1/flows/{await flow_of(small)}/try", {})
        assert (full.status_code, full.json()["code"]) == (409, "too_many_tries")
        for _ in range(3):
            await first.turn(text="again")
        assert first.last["turnsLeft"] == 0
        over = await first.refused(text="once more")
        assert (over.status_code, over.json()["code"]) == (409, "try_full")
        ended = await small.http.delete(first.path)
        assert (ended.status_code, ended.json()) == (200, {"tryId": first.last["tryId"]})
        assert (await small.http.get(first.path)).status_code == 404
        large = await begun(small)
        for _ in range(2):
            reply = await large.refused(memory={"var_string": "x" * 45_000})
        assert (reply.status_code, reply.json()["code"]) == (409, "try_full")
        small.clock.advance(minutes=1)
        assert (await begun(small)).last["turn"] == 1, "those that expired make room"


async def test_of_two_turns_at_once_one_is_told_to_come_again(scene: Scene) -> None:
    tried = await begun(scene, channel="phone")
    kept = await scene.memory.tries.load("default", tried.last["tryId"])
    assert kept is not None
    now = scene.clock.now()
    await tried.turn(text="the faster one")
    assert not await scene.memory.tries.save("default", tried.last["tryId"], kept, now=now)
    assert not await scene.memory.tries.save("default", "nobody", kept, now=now)
    assert (await tried.turn(text="the same again"))["turn"] == 3


async def test_another_tenants_try_is_unknown() -> None:
    async with open_scene(authenticator=keyring_of(str(GREEDY).replace("'", '"').encode())) as scene:
        mine, others = ({"Authorization": f"Bearer {t}-designer"} for t in ("a", "b"))
        flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await scene.http.post("/v1/flows", json=flow, headers=mine)).json()["id"]
        begin = {"document": unsaved()}
        reply = await scene.http.post(f"/v1/flows/{flow_id}/try", json=begin, headers=mine)
        assert reply.status_code == 201, reply.text
        path = f"/v1/flows/{flow_id}/try/{reply.json()['tryId']}"
        assert (await scene.http.get(path, headers=mine)).status_code == 200
        assert (await scene.http.get(path, headers=others)).json()["code"] == "flow_unknown"
        assert (await scene.http.post(path, json={"text": "a"}, headers=others)).status_code == 404


# --- a try as a flow test ---------------------------------------------------------------------


async def test_a_try_is_saved_as_a_flow_test_that_passes(scene: Scene) -> None:
    tried = await begun(scene, channel="phone", contact={"callerId": "+39061234567"})
    await tried.turn(changeTask="visit")
    await tried.turn(text="My number is +39 347 123 4567.")
    await tried.turn(memory={"var_string": "heart", "var_boolean": True})
    await tried.turn(text="/task visit")
    await tried.turn(wait=90)
    await tried.turn(hangup=True)
    reply = await scene.http.get(f"{tried.path}/test")
    assert (reply.status_code, reply.headers["content-type"].split(";")[0]) == (200, "application/yaml")
    steps = yaml.safe_load(reply.text)["scenarios"][0]["steps"]
    assert {"wait": 90.0} in steps
    assert {"change_task": "Visita Perché"} in steps
    played = await scene.post(
        f"/v1/flows/{await flow_of(scene)}/versions/version-1/tests", {"tests": reply.text}
    )
    assert played.status_code == 200, played.text
    assert (played.json()["passed"], played.json()["failed"]) == (1, 0)
    broken = reply.text.replace("refused: missing_variables", "refused: task_unknown")
    failed = await scene.post(f"/v1/flows/{await flow_of(scene)}/versions/version-1/tests", {"tests": broken})
    assert failed.json()["failed"] == 1
    assert failed.json()["scenarios"][0]["failure"]["line"] > 1


async def test_a_try_ends_where_a_store_forgets_its_conversation(scene: Scene) -> None:  # F16
    tried = await begun(scene, channel="phone")
    day = 24 * 60 * 60
    over = await tried.refused(wait=day)
    assert (over.status_code, over.json()["code"]) == (409, "try_full")
    assert f"{day} seconds after its last change" in over.json()["detail"]
    await tried.turn(wait=day - 60)
    await tried.turn(text="still here")
    waited = await tried.turn(wait=day - 60)
    assert waited["expiresAt"] == "2026-01-15T09:31:00Z"
    test = (await scene.http.get(f"{tried.path}/test")).text
    path = f"/v1/flows/{await flow_of(scene)}/versions/version-1/tests"
    assert (await scene.post(path, {"tests": test})).json()["failed"] == 0
    scene.clock.advance(minutes=1)
    gone = await tried.refused(text="and now?")
    assert (gone.status_code, gone.json()["code"]) == (404, "try_unknown")


async def test_sensitive_values_have_masks_and_stand_ins() -> None:
    document = unsaved()
    for variable in document["variables"]:
        if variable["_id"] == "var_string":
            variable["sensitive"] = True
    async with open_scene(clinic()) as scene:
        tried = await begun(scene, document=document, channel="phone")
        reply = await tried.refused(memory={"var_string": "HIV-SECRET", "var_boolean": True})
        assert reply.status_code == 200
        assert "HIV-SECRET" not in reply.text
        again = await tried.refused(text="it is HIV-SECRET")
        assert "HIV-SECRET" not in again.text
        test = (await scene.http.get(f"{tried.path}/test")).text
        assert "HIV-SECRET" not in test
        assert "var_string" not in tried.values


# --- flow tests of a version ------------------------------------------------------------------


async def test_flow_tests_of_a_draft_tell_what_they_reach(scene: Scene) -> None:
    flow = await flow_of(scene)
    await scene.save(flow, clinic(_id="draft-1", draft=True))
    tests = (
        "scenarios:\n"
        "- name: to a person\n  steps:\n  - change_task: operator\n  - expect: {task: operator}\n"
        "- name: not possible\n  steps:\n  - change_task: island\n"
    )
    reply = await scene.post(f"/v1/flows/{flow}/versions/draft-1/tests", {"tests": tests})
    assert reply.status_code == 200, reply.text
    verdict = reply.json()
    assert (verdict["passed"], verdict["failed"]) == (1, 1)
    assert verdict["scenarios"][1]["failure"]["line"] == 8
    coverage = verdict["coverage"]
    assert coverage["entered"] == ["reception", "operator"]
    assert coverage["taken"] == [{"from": "reception", "to": "operator"}]
    assert (coverage["tasks"]["reached"], coverage["tasks"]["total"]) == (2, 6)
    assert "reception → written" in coverage["transitions"]["leftOut"]


async def test_flow_tests_that_cannot_be_played_are_refused_with_every_mistake(scene: Scene) -> None:
    flow = await flow_of(scene)
    path = f"/v1/flows/{flow}/versions/version-1/tests"
    wrong = await scene.post(
        path, {"tests": "scenarios:\n- name: a\n  steps:\n  - expect: {task: nowhere}\n"}
    )
    assert (wrong.status_code, wrong.json()["code"]) == (422, "tests_invalid")
    assert wrong.json()["errors"][0]["pointer"] == "/scenarios/0/steps/0/expect/task"
    several = "scenarios:\n- name: a\n  steps:\n  - expect: {task: nowhere}\n  - jump: 1\n"
    told = (await scene.post(path, {"tests": several})).json()["errors"]
    assert [each["code"] for each in told] == ["unknown_task", "union_tag_not_found"]
    for body, code in (({}, "body_invalid"), ({"tests": ""}, "body_invalid")):
        reply = await scene.post(path, body)
        assert (reply.status_code, reply.json()["code"]) == (422, code)
    unknown = await scene.post(f"/v1/flows/{flow}/versions/nothing/tests", {"tests": "scenarios: []"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "version_unknown")


async def test_the_journal_of_a_try_is_that_of_a_conversation(scene: Scene) -> None:  # journal: rows
    """The same requests, once in the store and once tried: the same entries, but for the ids."""
    data = {"callerId": "+39061234567"}
    await scene.started(contactId="contact-1", contact=data)
    writes = [entry("var_string", "heart"), entry("var_boolean", value=True)]
    await scene.written(*({**each, "contactId": "contact-1", "updatedBy": "flow-test"} for each in writes))
    await scene.changed("visit", contactId="contact-1")
    await scene.change("visit", contactId="contact-1")
    await scene.end(contactId="contact-1", reason="busy")
    rows = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
    tried = await begun(scene, channel="phone", contact=data)
    told = [*tried.last["journal"]]
    for turn in (
        {"memory": {"var_string": "heart", "var_boolean": True}},
        {"changeTask": "visit"},
        {"changeTask": "visit"},
        {"hangup": {"reason": "busy"}},
    ):
        told += (await tried.turn(**turn))["journal"]
    assert [row["input"]["op"] for row in told] == [row["input"]["op"] for row in rows] + ["conclusion"]
    for mine, stored in zip(told, rows, strict=False):
        for row in (mine, stored):
            for name in ("conversationId", "contentHash", "versionId"):
                row["delta"].get("session", {}).pop(name, None)
            row["input"].pop("conversationalFlowVersionId", None)
        assert mine == stored


# --- the same request again -------------------------------------------------------------------


async def keyed(scene: Scene, path: str, body: Any, key: str) -> httpx.Response:
    return await scene.http.post(path, json=body, headers={"Idempotency-Key": key})


async def test_a_try_that_is_begun_again_under_its_key_is_the_same_one(scene: Scene) -> None:  # F15
    path = f"/v1/flows/{await flow_of(scene)}/try"
    first = await keyed(scene, path, {"channel": "phone"}, "begin")
    assert first.status_code == 201
    assert "Idempotency-Replayed" not in first.headers
    await scene.post(f"{path}/{first.json()['tryId']}", {"text": "meanwhile it goes on"})
    again = await keyed(scene, path, {"channel": "phone"}, "begin")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    other = await keyed(scene, path, {"channel": "chat"}, "begin")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    fresh = await keyed(scene, path, {"channel": "phone"}, "another")
    assert fresh.json()["tryId"] != first.json()["tryId"]
    too_long = await keyed(scene, path, {"channel": "phone"}, "x" * 256)
    assert (too_long.status_code, too_long.json()["code"]) == (422, "idempotency_key_invalid")


async def test_a_turn_that_comes_again_under_its_key_is_taken_once(scene: Scene) -> None:  # F15
    tried = await begun(scene, channel="phone")
    first = await keyed(scene, tried.path, {"changeTask": "supervised"}, "turn")
    assert (first.status_code, first.json()["turn"]) == (200, 2)
    again = await keyed(scene, tried.path, {"changeTask": "supervised"}, "turn")
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    other = await keyed(scene, tried.path, {"text": "else"}, "turn")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    now = (await scene.http.get(tried.path)).json()
    assert (now["turn"], now["task"]["taskId"]) == (2, "supervised"), "taken once"
    refused = await keyed(scene, tried.path, {"memory": {"nothing": 1}}, "refused")
    assert refused.status_code == 422
    assert (await keyed(scene, tried.path, {"text": "better"}, "refused")).status_code == 200, (
        "an error is no reply"
    )


async def test_so_many_keyed_replies_of_a_try_are_kept(scene: Scene) -> None:
    path = f"/v1/flows/{await flow_of(scene)}/try"
    first = await keyed(scene, path, {"channel": "phone"}, "begin")
    turns = f"{path}/{first.json()['tryId']}"
    sent = [await keyed(scene, turns, {"wait": 1}, f"turn-{n}") for n in range(ANSWERS_KEPT + 1)]
    assert [reply.json()["turn"] for reply in sent] == [*range(2, ANSWERS_KEPT + 3)]
    assert (await keyed(scene, path, {"channel": "phone"}, "begin")).content == first.content
    for n, reply in list(enumerate(sent))[1:]:
        assert (await keyed(scene, turns, {"wait": 1}, f"turn-{n}")).content == reply.content
    assert (await keyed(scene, turns, {"wait": 1}, "turn-0")).json()["turn"] == ANSWERS_KEPT + 3, (
        "too long ago"
    )


async def test_of_the_same_request_at_once_one_is_done(scene: Scene) -> None:  # F15
    path = f"/v1/flows/{await flow_of(scene)}/try"
    begins = await asyncio.gather(*(keyed(scene, path, {"channel": "phone"}, "begin") for _ in range(4)))
    assert {reply.status_code for reply in begins} == {201}
    assert len({reply.content for reply in begins}) == 1
    turns = f"{path}/{begins[0].json()['tryId']}"
    taken = await asyncio.gather(*(keyed(scene, turns, {"text": "hello"}, "turn") for _ in range(4)))
    assert {(reply.status_code, reply.content) for reply in taken} == {(200, taken[0].content)}
    assert (await scene.http.get(turns)).json()["turn"] == 2
