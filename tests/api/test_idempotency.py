"""Requests that come twice under one `Idempotency-Key` (F15)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from flow_engine.ports.outbound import OutboundReply
from tests.api.harness import CALL, HANDLER, Scene, clinic, entry, keyring_of, open_scene, over_many_contacts
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio
KEY = "key-1"
START: JsonObject = {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone"}
SAID: JsonObject = {
    **CALL,
    "messageId": "m-1",
    "ts": "2026-01-15T09:31:00Z",
    "type": "message",
    "src": "user",
    "body": "hello",
}
MUTATIONS: list[tuple[str, str, Any]] = [
    ("POST", "/handle-new-contact", {**START, "contactId": "call-2"}),
    ("POST", "/change-task", {**CALL, "task": "supervised"}),
    ("POST", "/change-task", {**CALL, "task": "island"}),
    ("POST", "/handle-human-task", {**CALL, "outcome": "connected"}),
    ("POST", "/handle-utterance", SAID),
    ("POST", "/handle-end-contact", CALL),
    ("PUT", "/memory/conv-1", [entry("size", "S")]),
]


async def send(
    scene: Scene, method: str, path: str, body: Any, key: str = KEY, **headers: str
) -> httpx.Response:
    return await scene.http.request(method, path, json=body, headers={"Idempotency-Key": key, **headers})


async def in_a_transfer(scene: Scene) -> None:
    await scene.started()
    await scene.changed("operator")


async def whole_state(scene: Scene) -> Any:
    client = scene.memory.driver.client
    return [
        await scene.events(),
        await client.hgetall("{default:conv-1}::snapshot"),
        await client.hgetall("{default:conv-1}::vars::tools"),
        await client.lrange("{default:conv-1}::utterances", 0, -1),
        await client.lrange("{default:conv-1}::previousContacts", 0, -1),
    ]


class TestAgents:
    @pytest.mark.parametrize(("method", "path", "body"), MUTATIONS)
    async def test_a_repeated_request_gets_the_same_bytes_and_changes_nothing(
        self, method: str, path: str, body: Any
    ) -> None:
        answers = {HANDLER: [OutboundReply(200, b"false")]}
        async with open_scene(over_many_contacts(), answers=answers) as scene:
            await in_a_transfer(scene)
            first = await send(scene, method, f"/v1{path}", body)
            assert first.status_code == 200, first.text
            assert "Idempotency-Replayed" not in first.headers
            before, calls = await whole_state(scene), len(scene.outbound.calls)
            scene.clock.advance(minutes=10)
            again = await send(scene, method, f"/v1{path}", body)
            assert (again.status_code, again.content) == (first.status_code, first.content)  # F15
            assert again.headers["Idempotency-Replayed"] == "true"
            assert again.headers["content-type"] == first.headers["content-type"]
            assert await whole_state(scene) == before
            assert len(scene.outbound.calls) == calls

    async def test_the_start_of_a_conversation_is_replayed_too(self) -> None:
        async with open_scene(clinic()) as scene:
            first = await send(scene, "POST", "/v1/handle-new-contact", START)
            await scene.changed("operator")
            again = await send(scene, "POST", "/v1/handle-new-contact", START)
            assert again.content == first.content  # F15
            assert again.json()["command"] == "/start"

    async def test_a_refusal_that_is_data_is_replayed_although_it_would_go_now(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            body = {**CALL, "task": "visit"}
            first = await send(scene, "POST", "/v1/change-task", body)
            assert first.json()["result"] is False
            await scene.written(entry("var_string", "Ada"), entry("var_boolean", True))
            assert (await send(scene, "POST", "/v1/change-task", body)).content == first.content  # F15
            assert (await send(scene, "POST", "/v1/change-task", body, key="key-2")).json()["result"] is True

    async def test_an_error_is_not_kept(self) -> None:
        async with open_scene(clinic()) as scene:
            body = {**CALL, "task": "operator"}
            assert (await send(scene, "POST", "/v1/change-task", body)).status_code == 404
            await scene.started()
            assert (await send(scene, "POST", "/v1/change-task", body)).json()["result"] is True  # F15

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/change-task", {**CALL, "task": "supervised"}),
            ("/v1/handle-end-contact", {**CALL, "reason": "operator"}),
        ],
    )
    async def test_the_key_with_another_request_is_422(self, path: str, body: JsonObject) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await send(scene, "POST", "/v1/change-task", {**CALL, "task": "operator"})
            before = await whole_state(scene)
            reply = await send(scene, "POST", path, body)
            assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")  # F15
            assert await whole_state(scene) == before

    async def test_the_bare_path_is_the_same_request(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            body = {**CALL, "task": "operator"}
            first = await send(scene, "POST", "/v1/change-task", body)
            again = await send(scene, "POST", "/change-task", body)
            assert (again.status_code, again.content) == (200, first.content)  # F15, F27
            assert again.headers["Idempotency-Replayed"] == "true"

    async def test_a_key_belongs_to_its_conversation(self) -> None:
        async with open_scene(clinic()) as scene:
            for conversation in ("conv-1", "conv-2"):
                body = {**START, "conversationId": conversation}
                reply = await send(scene, "POST", "/v1/handle-new-contact", body)
                assert reply.json()["conversationId"] == conversation  # F15

    async def test_a_key_belongs_to_its_tenant(self) -> None:
        keys = b"""{"keys": [{"key": "a", "tenant": "alfa", "scopes": ["admin"]},
                             {"key": "b", "tenant": "beta", "scopes": ["admin"]}]}"""
        async with open_scene(authenticator=keyring_of(keys)) as scene:
            for tenant in ("a", "b"):
                scene.http.headers["Authorization"] = f"Bearer {tenant}"
                await scene.publish(clinic())
                reply = await send(scene, "POST", "/v1/handle-new-contact", START)
                assert reply.status_code == 200
                assert "Idempotency-Replayed" not in reply.headers  # F15, F43
                assert reply.json()["tenantId"] == {"a": "alfa", "b": "beta"}[tenant]

    @pytest.mark.parametrize("key", ["", "k" * 256])
    async def test_a_key_has_1_to_255_characters(self, key: str) -> None:
        async with open_scene(clinic()) as scene:
            reply = await send(scene, "POST", "/v1/handle-new-contact", START, key=key)
            assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_invalid")  # F15

    @pytest.mark.parametrize("key", ["k" * 255, "{}:: *\t%", "::reply::", "é"])
    async def test_any_text_may_be_a_key(self, key: str) -> None:
        async with open_scene(clinic()) as scene:
            headers = {"Idempotency-Key": key.encode("latin-1")}
            replies = [
                await scene.http.post("/v1/handle-new-contact", json=START, headers=headers)  # type: ignore[arg-type]
                for _ in range(2)
            ]
            assert replies[0].content == replies[1].content  # F15
            assert "Idempotency-Replayed" in replies[1].headers

    async def test_the_same_request_many_times_at_once_takes_effect_once(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            body = [entry("size", "S")]
            replies = await asyncio.gather(
                *(send(scene, "PUT", "/v1/memory/conv-1", body) for _ in range(12))
            )
            assert {reply.content for reply in replies} == {b'{"revision":1,"memoryRevision":1}'}  # F15
            assert sum("Idempotency-Replayed" not in reply.headers for reply in replies) == 1

    async def test_a_kept_reply_outlives_a_day_no_longer(self) -> None:
        async with open_scene(clinic()) as scene:
            await send(scene, "POST", "/v1/handle-new-contact", START)
            kept = await scene.memory.driver.client.ttl("{default:conv-1}::reply::key-1")
            assert 86_390 < kept <= 86_400  # F15


class TestDesigners:
    async def mutations(self, scene: Scene) -> list[tuple[str, str, Any]]:
        await scene.publish(clinic())
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        document = {k: v for k, v in clinic().items() if k not in ("_id", "conversationalFlowId")}
        return [
            ("POST", "/flows", {"name": "Second", "campaignId": "c", "updatedBy": "ada"}),
            ("PATCH", f"/flows/{flow_id}", {"name": "Renamed", "updatedBy": "ada"}),
            ("POST", f"/flows/{flow_id}/versions?tag=beta", document),
            ("PUT", f"/flows/{flow_id}/tags/prod", {"versionId": "version-1", "updatedBy": "ada"}),
        ]

    @pytest.mark.parametrize("which", range(4))
    async def test_a_repeated_mutation_gets_the_same_bytes_and_changes_nothing(self, which: int) -> None:
        async with open_scene() as scene:
            method, path, body = (await self.mutations(scene))[which]
            first = await send(scene, method, f"/v1{path}", body)
            assert first.status_code in (200, 201), first.text
            before = (await scene.http.get("/v1/flows")).content
            scene.clock.advance(minutes=10)
            again = await send(scene, method, path, body)
            assert (again.status_code, again.content) == (first.status_code, first.content)  # F15
            assert "Idempotency-Replayed" not in first.headers
            assert again.headers["Idempotency-Replayed"] == "true"
            assert (await scene.http.get("/v1/flows")).content == before

    @pytest.mark.parametrize("which", range(4))
    async def test_the_key_with_another_body_is_422(self, which: int) -> None:
        async with open_scene() as scene:
            method, path, body = (await self.mutations(scene))[which]
            await send(scene, method, f"/v1{path}", body)
            changed = {**body, "name": "Third"} if which < 2 else {**body, "updatedBy": "grace"}
            if which == 2:
                changed = {**body, "globalPrompt": "Another text."}
            reply = await send(scene, method, f"/v1{path}", changed)
            assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")  # F15

    async def test_after_a_day_the_key_is_free_again(self) -> None:
        async with open_scene() as scene:
            body = {"name": "Second", "campaignId": "c", "updatedBy": "ada"}
            first = await send(scene, "POST", "/v1/flows", body)
            scene.clock.advance(hours=24)
            assert (await send(scene, "POST", "/v1/flows", body)).json() != first.json()  # F15
