"""Saving over HTTP: what was read can be edited and saved, and large documents hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import orjson
import pytest

from tests.api.harness import SettableClock, clinic, open_scene
from tests.flow_engine.documents.samples import aio_task, minimal_version

pytestmark = pytest.mark.anyio


class RunningClock(SettableClock):
    """No two moments are the same."""

    def now(self) -> datetime:
        self.advance(milliseconds=1)
        return super().now()


async def test_a_version_that_was_read_can_be_edited_and_saved() -> None:  # D7, contract 8
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        versions = f"/v1/flows/{flow_id}/versions"
        read = (await scene.http.get(f"{versions}/version-1")).json()
        edited = {**read, "globalPrompt": "Another one.", "createdBy": "mallory", "createdAt": "2001"}
        reply = await scene.post(f"{versions}?parentVersionId=version-1", edited)
        assert reply.status_code == 201, reply.text
        saved = (await scene.http.get(f"{versions}/{reply.json()['versionId']}")).json()
        assert saved["_id"] == reply.json()["versionId"] != "version-1"
        assert saved["globalPrompt"] == "Another one."
        assert (saved["createdBy"], saved["createdAt"]) == (read["createdBy"], read["createdAt"])
        assert (await scene.http.get(f"{versions}/version-1")).json() == read


async def test_a_new_id_is_kept() -> None:  # D7, contract 8
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        assert await scene.save(flow_id, clinic(_id="mine-2")) == "mine-2"


@pytest.mark.parametrize("clock", [SettableClock, RunningClock])
@pytest.mark.parametrize("prompts", [("One.",) * 4, ("One.", "Two.", "Three.", "Four.")])
async def test_of_saves_at_once_with_the_same_new_id_all_are_kept(
    prompts: Sequence[str], clock: type[SettableClock]
) -> None:  # F2 F27
    async with open_scene(clinic(), clock=clock()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        documents = [clinic(_id="mine-2", globalPrompt=prompt) for prompt in prompts]
        ids = await asyncio.gather(*(scene.save(flow_id, document) for document in documents))
        assert "mine-2" in ids
        saved = [await scene.http.get(f"/v1/flows/{flow_id}/versions/{each}") for each in ids]
        assert [reply.json()["_id"] for reply in saved] == ids
        assert [reply.json()["globalPrompt"] for reply in saved] == list(prompts)
        assert len(set(ids)) == len(prompts)


@pytest.mark.parametrize("clock", [SettableClock, RunningClock])
async def test_saves_at_once_with_the_same_new_id_under_one_key_are_one(
    clock: type[SettableClock],
) -> None:  # F15
    async with open_scene(clinic(), clock=clock()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        versions = f"/v1/flows/{flow_id}/versions"
        document = {k: v for k, v in clinic(_id="mine-2").items() if k != "conversationalFlowId"}
        replies = await asyncio.gather(
            *(scene.post(versions, document, Idempotency_Key="key-1") for _ in range(4))
        )
        assert {reply.status_code for reply in replies} == {201}
        [body] = {reply.content for reply in replies}
        assert len((await scene.http.get(versions)).json()) == 2
        read = await scene.http.get(f"{versions}/{orjson.loads(body)['versionId']}")
        assert read.status_code == 200


async def test_the_routing_of_a_task_without_a_human_is_kept_and_not_read() -> None:  # F2
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        document = clinic(_id="mine-2")
        document["tasks"][0]["routingParameters"] = {"timeout": "never", "agentSkills": [{}]}
        del document["conversationalFlowId"]
        versions = f"/v1/flows/{flow_id}/versions"
        assert (await scene.post(f"{versions}/validate", document)).json()["valid"] is True
        assert (await scene.post(versions, document)).status_code == 201
        saved = (await scene.http.get(f"{versions}/mine-2")).json()
        assert saved["tasks"][0]["routingParameters"] == document["tasks"][0]["routingParameters"]
        tried = await scene.post(f"/v1/flows/{flow_id}/try", {"document": document})
        assert tried.status_code == 201, tried.text


async def test_a_template_without_a_value_makes_the_fallback_active() -> None:  # D9, contract 9
    voice = {"provider": "openai", "voice": "{{ $tenant.voice }}"}
    speech = {
        "presetId": "default",
        "tts": {"default": voice, "fallback": {"provider": "google", "voice": "plain"}},
        "stt": {"default": {"provider": "{{ $tenant.stt }}"}, "fallback": {"provider": "google"}},
    }
    document = minimal_version(mediaConfig={"audio": speech, "text": {}})
    async with open_scene(document) as scene:
        without = await scene.started()
        assert without["tts"]["active"] == without["tts"]["fallback"]
        assert without["stt"]["active"] == without["stt"]["fallback"]
        other = {"contactId": "call-2", "conversationId": "conv-2"}
        given = await scene.started(**other, tenant={"voice": "alloy", "stt": "openai"})
        assert given["tts"]["active"]["voice"] == "alloy"
        assert given["stt"]["active"]["provider"] == "openai"


async def test_each_task_may_have_another_model() -> None:  # peers 3, peers row 16
    model = "{% if $task.name == 'reception' %}small{% else %}{{ $tenant.model }}{% endif %}"
    llm = {"provider": "openai", "model": model}
    media = {"audio": {"presetId": "default", "llm": llm}, "text": {"llm": llm}}
    ends = {"connectedTasks": ["visit"]}
    document = clinic(mediaConfig=media, tasks=[aio_task(**ends), aio_task("visit")])
    async with open_scene(document) as scene:
        assert (await scene.started())["llm"]["model"] == "small"
        written = {"contactId": "chat-1", "conversationId": "conv-2", "channel": "chat"}
        assert (await scene.started(**written))["llm"] == {**llm, "temperature": None, "model": "small"}
        assert (await scene.changed("visit", conversationId="conv-2", contactId="chat-1"))["llm"][
            "model"
        ] is None
        known = {"contactId": "call-3", "conversationId": "conv-3", "tenant": {"model": "large"}}
        await scene.started(**known)
        changed = await scene.changed("visit", conversationId="conv-3", contactId="call-3")
        assert changed["llm"]["model"] == "large"


async def test_a_model_whose_template_is_not_closed_is_refused() -> None:  # peers 3, D10
    media = {"audio": {"presetId": "default"}, "text": {"llm": {"model": "{{ $task.name"}}}
    document = minimal_version(mediaConfig=media)
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        del document["conversationalFlowId"]
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", document)
        assert reply.status_code == 422
        assert [error["pointer"] for error in reply.json()["errors"]] == ["/mediaConfig/text/llm/model"]


async def test_everything_unusable_is_refused_at_once() -> None:  # D10, contract 10
    async with open_scene(clinic()) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        document = {key: value for key, value in clinic(_id="a/b").items() if key != "conversationalFlowId"}
        document["closureConfig"]["conversationTimeLimit"] = -1e300
        reply = await scene.http.post(f"/v1/flows/{flow_id}/versions", content=orjson.dumps(document))
        assert reply.status_code == 422
        assert {error["pointer"] for error in reply.json()["errors"]} >= {
            "/_id",
            "/closureConfig/conversationTimeLimit",
        }
