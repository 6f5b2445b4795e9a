"""Conversations that an earlier release has stored go on in this one.

`stored/v0.1.json` holds the Redis keys of four conversations as version 0.1.0 wrote them, with what it
answered about them: one in a task, one supervised, one waiting for a person, one between two contacts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from flow_engine.ports.outbound import OutboundReply
from memory.in_process import embedded
from tests.api.harness import Scene, open_scene

pytestmark = pytest.mark.anyio

STORED: dict[str, Any] = orjson.loads((Path(__file__).parent / "stored" / "v0.1.json").read_bytes())
HANDLER = "https://claims.example.com/close"


async def restored(client: Any) -> None:
    for entry in STORED["keys"]:
        key, value = entry["key"], entry["value"]
        match entry["type"]:
            case "string":
                await client.set(key, value)
            case "hash":
                await client.hset(key, mapping=value)
            case "list":
                await client.rpush(key, *value)
            case "zset":
                await client.zadd(key, dict(value))
            case "stream":
                for number, fields in value:
                    await client.xadd(key, fields, id=number)
            case other:
                raise AssertionError(other)
        if entry["ttlMs"] > 0:
            await client.pexpire(key, entry["ttlMs"])


@asynccontextmanager
async def resumed() -> AsyncIterator[Scene]:
    memory = embedded()
    await restored(memory.driver.client)
    answers = {HANDLER: [OutboundReply(200, b"false")] * 3}
    async with open_scene(memory=memory, samples=True, answers=answers) as scene:
        yield scene


@pytest.mark.parametrize("conversation", sorted(STORED["replies"]))
async def test_its_memory_and_its_task_are_as_they_were(conversation: str) -> None:  # F14, F16
    before = STORED["replies"][conversation]
    async with resumed() as scene:
        memory = (await scene.http.get(f"/v1/memory/{conversation}")).json()
        for variable in memory["vars"]:  # what this release tells besides
            assert (variable.pop("provenance") is None) is (variable["value"] is None)
        assert memory == before["memory"]
        prompt = await scene.prompt(conversation)
        assert prompt["revision"] == before["memory"]["revision"]
        # The part about the task: what is above it is the platform's own and may be put better.
        for heading in ("## Current task", "## Tarea actual"):
            _, found, task = before["prompt"].partition(heading)
            if found:
                assert task.partition("\n## ")[0] in prompt["prompt"]


async def test_a_repeated_request_gets_the_reply_of_then(  # F15
) -> None:
    body = [
        {"updatedBy": "shop", "contactId": "call-1", "varId": name, "value": value, **more}
        for name, value, more in (
            ("quantity", 2, {}),
            ("bagGrams", "500", {}),
            ("giftWrap", False, {}),
            (
                "cart",
                {"items": [{"sku": "KE-AA", "grams": 500, "count": 2}], "total": 36.5},
                {"descriptionForLLM": [{"name": "total", "value": "36.50 euros"}]},
            ),
        )
    ]
    async with resumed() as scene:
        reply = await scene.http.put(
            "/v1/memory/talking",
            content=orjson.dumps(body),
            headers={"Idempotency-Key": "talking-cart"},
        )
        assert reply.headers.get("idempotency-replayed") == "true"
        assert reply.text == STORED["replies"]["talking"]["kept"]


async def test_each_goes_on_from_its_task() -> None:  # F29, F34
    async with resumed() as scene:
        moved = await scene.changed("delivery", conversationId="talking")
        assert moved["taskName"] == "delivery"
        taken = await scene.human("taken_over", conversationId="supervised")
        assert taken.status_code == 200, taken.text
        connected = await scene.human("connected", conversationId="transferred")
        assert connected.status_code == 200, connected.text


async def test_one_between_contacts_is_resumed_by_the_next_contact() -> None:  # F28
    async with resumed() as scene:
        reply = await scene.started(
            contactId="call-2", conversationId="resting", conversationalFlowVersionId="claim-v1"
        )
        assert reply["command"].startswith("/resume")
        assert "Buenos días, he tenido un accidente." in reply["prompt"]
        assert (await scene.end(contactId="call-2", conversationId="resting")).status_code == 200
