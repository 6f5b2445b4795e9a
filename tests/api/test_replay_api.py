"""Replays over HTTP: which conversations, on which version, and who may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.harness import Scene, clinic, entry, needs, open_scene
from tests.api.test_recording import recording

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Two conversations by the tag `latest`, one of them in the task that the draft guards."""
    async with open_scene(clinic()) as opened:
        flow = await flow_of(opened)
        for name in ("visited", "asked"):
            ids = {"conversationId": name, "contactId": f"call-{name}"}
            chosen = {"conversationalFlowVersionId": ..., "flowId": flow, "tag": "latest"}
            await opened.started(**ids, **chosen)
            write = entry("var_string", "cardio", contactId=f"call-{name}")
            await opened.written(write, {**write, "varId": "var_boolean", "value": True}, conversation=name)
            await opened.changed("visit" if name == "visited" else "operator", **ids)
            opened.clock.advance(seconds=1)
        draft = clinic(_id="draft-1", draft=True)
        draft["tasks"][1]["transitionParameters"] = needs("var_phone")
        await opened.save(flow, draft)
        yield opened


async def flow_of(scene: Scene) -> str:
    return (await scene.http.get("/v1/flows")).json()[0]["id"]


async def replays(scene: Scene, body: object, version: str = "draft-1", flow: str | None = None) -> Any:
    return await scene.post(f"/v1/flows/{flow or await flow_of(scene)}/versions/{version}/replays", body)


async def test_conversations_of_a_tag_are_replayed_on_a_draft(scene: Scene) -> None:  # journal: replay
    events = [await scene.events(name) for name in ("visited", "asked")]
    reply = await replays(scene, {"from": "latest", "last": 10})
    assert reply.status_code == 200, reply.text
    report = reply.json()
    assert report["summary"] == {
        "conversations": 2,
        "samePath": 1,
        "otherPath": 1,
        "newRefusals": 1,
        "variablesGone": 0,
        "promptsDiffer": 2,
    }
    rows = {row["conversationId"]: row for row in report["conversations"]}
    assert list(rows) == ["asked", "visited"], "the newest first"
    assert rows["visited"]["firstFork"]["seq"] == 3
    assert [await scene.events(name) for name in ("visited", "asked")] == events
    assert [len((await recording(scene, name))["entries"]) for name in rows] == [3, 3], "nothing is written"
    assert not scene.outbound.calls


async def test_conversations_are_named_or_counted(scene: Scene) -> None:
    for body, names in (
        ({"conversations": ["visited"]}, ["visited"]),
        ({"conversations": ["visited", "asked", "visited"]}, ["visited", "asked"]),
        ({"from": "latest", "last": 1}, ["asked"]),
        ({"from": "latest"}, ["asked", "visited"]),
        ({"from": "nobodys"}, []),
    ):
        report = (await replays(scene, body, "version-1")).json()
        assert [row["conversationId"] for row in report["conversations"]] == names
        assert report["summary"]["samePath"] == len(names)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ""),
        ({"conversations": []}, "/conversations"),
        ({"conversations": ["a"] * 501}, "/conversations"),
        ({"conversations": ["a"], "from": "latest"}, ""),
        ({"conversations": ["a"], "last": 3}, ""),
        ({"from": "latest", "last": 0}, "/last"),
        ({"from": "latest", "last": 501}, "/last"),
        ({"from": "latest", "first": 1}, "/first"),
    ],
)
async def test_what_cannot_be_meant_is_refused(scene: Scene, body: object, place: str) -> None:
    reply = await replays(scene, body)
    assert (reply.status_code, reply.json()["code"]) == (422, "body_invalid")
    assert [each["pointer"] for each in reply.json()["errors"]] == [place]


async def test_what_is_not_there_is_told(scene: Scene) -> None:
    for body, version, flow, code in (
        ({"conversations": ["nobody"]}, "draft-1", None, "conversation_unknown"),
        ({"from": "latest"}, "nothing", None, "version_unknown"),
        ({"from": "latest"}, "draft-1", "nowhere", "flow_unknown"),
    ):
        reply = await replays(scene, body, version, flow)
        assert (reply.status_code, reply.json()["code"]) == (404, code)


async def test_every_conversation_of_another_flow_is_refused_at_once(scene: Scene) -> None:
    other = await scene.publish(clinic(_id="other-1"), flow_name="Other")
    flows = {flow["name"]: flow["id"] for flow in (await scene.http.get("/v1/flows")).json()}
    reply = await replays(scene, {"conversations": ["asked", "visited"]}, other, flows["Other"])
    assert reply.status_code == 422
    assert [(each["pointer"], each["code"]) for each in reply.json()["errors"]] == [
        ("/conversations/0", "conversation_of_other_flow"),
        ("/conversations/1", "conversation_of_other_flow"),
    ]


async def test_a_draft_that_could_not_be_saved_is_refused_with_every_error(scene: Scene) -> None:
    draft = clinic(_id="draft-2", draft=True, firstTask="nowhere")
    draft["tasks"][1]["transitionParameters"] = needs("var_nothing")
    await scene.save(await flow_of(scene), draft)
    reply = await replays(scene, {"from": "latest"}, "draft-2")
    assert (reply.status_code, reply.json()["code"]) == (422, "document_invalid")
    places = {finding["pointer"] for finding in reply.json()["errors"]}
    assert {"/firstTask", "/tasks/1/transitionParameters/0/variableId"} <= places
