"""Designers' mutations repeated under an idempotency key (F15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flow_engine.errors import CorrectTheInput, LookElsewhere
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.use_cases.flow_service import KEPT_FOR
from tests.flow_engine.use_cases.flow_service_scene import KEY, Scene, open_scene

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as opened:
        yield opened


async def test_a_repeated_save_gets_the_same_bytes_and_saves_nothing(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    first = await scene.save(flow_id, "v1", key=KEY)
    await scene.save(flow_id, "v2", "v1")
    assert await scene.save(flow_id, "v3", key=KEY) == first == FinalReply(201, b"v1 at 2")
    assert [row["versionId"] for row in await scene.flow_service.list_versions("t", flow_id)] == ["v1", "v2"]
    assert scene.versions.inserts == ["v1", "v2"]


async def test_a_repeated_rename_and_move_change_nothing(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    await scene.save(flow_id, "v1")
    assert await scene.rename(flow_id, "one", key=KEY) == FinalReply(200, b"at 3")
    moving = IdempotencyKey("other", "print")
    assert await scene.move(flow_id, "prod", "v1", key=moving) == FinalReply(200, b"at 4")
    before = await scene.flow_service.get_flow("t", flow_id)
    assert await scene.rename(flow_id, "one", key=KEY) == FinalReply(200, b"at 3")
    assert await scene.move(flow_id, "prod", "v1", key=moving) == FinalReply(200, b"at 4")
    assert await scene.flow_service.get_flow("t", flow_id) == before


async def test_the_key_with_another_request_is_refused(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    await scene.rename(flow_id, "one", key=KEY)
    other = IdempotencyKey(KEY.key, "other print")
    with pytest.raises(CorrectTheInput, match="idempotency_key_reused"):
        await scene.rename(flow_id, "two", key=other)
    with pytest.raises(CorrectTheInput, match="idempotency_key_reused"):
        await scene.save(flow_id, "v1", key=other)
    assert (await scene.flow_service.get_flow("t", flow_id)).name == "one"


async def test_a_refusal_is_not_kept(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    with pytest.raises(LookElsewhere):
        await scene.move(flow_id, "prod", "v1", key=KEY)
    await scene.save(flow_id, "v1")
    assert await scene.move(flow_id, "prod", "v1", key=KEY) == FinalReply(200, b"at 3")


async def test_the_key_is_free_again_after_24_hours(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    await scene.rename(flow_id, "one", key=KEY)
    scene.clock.time += KEPT_FOR
    other = IdempotencyKey(KEY.key, "other print")
    assert await scene.rename(flow_id, "two", key=other) == FinalReply(200, b"at 3")


async def test_a_repeated_creation_finds_the_flow(scene: Scene) -> None:  # F15
    flow_id = await scene.create(key=KEY)
    await scene.rename(flow_id, "renamed since")
    assert await scene.create(key=KEY) == flow_id
    assert len(await scene.flow_service.list_flows("t")) == 1


async def test_creations_at_once_under_one_key_create_one_flow(scene: Scene) -> None:  # F15
    ids = await asyncio.gather(*(scene.create(key=KEY) for _ in range(10)))
    assert len(set(ids)) == 1
    assert [flow.flow_id for flow in await scene.flow_service.list_flows("t")] == ids[:1]


async def test_a_creation_under_the_key_of_another_one_is_refused(scene: Scene) -> None:  # F15
    await scene.create(key=KEY)
    with pytest.raises(CorrectTheInput, match="idempotency_key_reused"):
        await scene.create(name="other", key=IdempotencyKey(KEY.key, "other print"))


async def test_a_creation_under_an_expired_key_is_a_new_flow_and_repeatable(
    scene: Scene,
) -> None:  # F15
    first = await scene.create(key=KEY)
    scene.clock.time += KEPT_FOR
    second = await scene.create(key=KEY)
    assert second != first
    assert await scene.create(key=KEY) == second
    assert len(await scene.flow_service.list_flows("t")) == 2


async def test_saves_at_once_under_one_key_save_one_version(scene: Scene) -> None:  # F15
    flow_id = await scene.create()
    replies = await asyncio.gather(*(scene.save(flow_id, f"v{number}", key=KEY) for number in range(10)))
    assert len(set(replies)) == 1
    assert len(await scene.flow_service.list_versions("t", flow_id)) == 1
