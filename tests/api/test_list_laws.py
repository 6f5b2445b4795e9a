"""Laws of the operators' lists: pages together are the whole, filters are sets, each list is one tenant's."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from api.auth import ALL_SCOPES
from tests.api.harness import Scene, clinic, keyring_of, open_scene

pytestmark = pytest.mark.anyio

CHANNELS = ("phone", "chat")
TASKS = ("reception", "operator", "supervised")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def scene() -> AsyncIterator[Scene]:
    """Twenty-four conversations that differ in all that can be filtered by."""
    async with open_scene(clinic()) as opened:
        flow = (await opened.http.get("/v1/flows")).json()[0]["id"]
        chance = random.Random(7)
        for number in range(24):
            ids = {"conversationId": f"c{number % 3}-{number}", "contactId": f"call-{number}"}
            by_tag = {"conversationalFlowVersionId": ..., "flowId": flow, "tag": "latest"}
            await opened.started(**ids, channel=chance.choice(CHANNELS), **(by_tag if number % 2 else {}))
            task = chance.choice(TASKS)
            if task != "reception":
                await opened.changed(task, **ids)
            if chance.random() < 0.4:
                assert (await opened.end(**ids)).status_code == 200
            if chance.random() < 0.6:  # some start within one millisecond
                opened.clock.advance(seconds=chance.choice([0.0005, 1, 30]))
        yield opened


async def read(scene: Scene, path: str, **query: object) -> Any:
    parameters = {name: str(value) for name, value in query.items()}
    reply = await scene.http.get(path, params=parameters)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def rows(scene: Scene, limit: int = 200, **query: object) -> list[Mapping[str, Any]]:
    """All of them, page after page."""
    found: list[Mapping[str, Any]] = []
    cursor: dict[str, object] = {}
    while True:
        page = await read(scene, "/v1/conversations", limit=limit, **query, **cursor)
        assert len(page["conversations"]) <= limit
        found += page["conversations"]
        assert page["cut"] is False
        if page["nextCursor"] is None:
            return found
        cursor = {"cursor": page["nextCursor"]}


def ids(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["conversationId"] for row in found]


FILTERS: tuple[dict[str, str], ...] = (
    {"tag": "latest"},
    {"channel": "phone"},
    {"channel": "chat"},
    {"status": "active"},
    {"status": "closed"},
    {"task": "operator"},
    {"q": "c1-"},
    {"q": "call-1"},
    {"from": "2026-01-15T09:30:10Z"},
    {"to": "2026-01-15T09:31:00Z"},
)


@pytest.mark.parametrize("limit", [1, 2, 5, 23, 24, 25])
async def test_pages_of_any_size_are_the_whole_list(scene: Scene, limit: int) -> None:  # journal: lists
    whole = await rows(scene)
    assert len(set(ids(whole))) == len(whole) == 24
    starts_ms = [int(datetime.fromisoformat(row["startedAt"]).timestamp() * 1000) for row in whole]
    assert starts_ms == sorted(starts_ms, reverse=True)
    assert await rows(scene, limit) == whole


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
async def test_a_filtered_list_is_the_whole_without_what_does_not_fit(
    scene: Scene, wanted: dict[str, str]
) -> None:
    whole = await rows(scene)
    some = await rows(scene, **wanted)
    assert 0 < len(some) < len(whole)
    assert [row for row in whole if row in some] == some, "in the same order, the same rows"
    assert await rows(scene, 3, **wanted) == some
    [(name, value)] = wanted.items()
    if name in {"tag", "channel", "status", "task"}:
        assert some == [row for row in whole if row[name] == value]


async def test_two_filters_are_what_both_take(scene: Scene) -> None:
    by_filter = {str(wanted): set(ids(await rows(scene, **wanted))) for wanted in FILTERS}
    for one, other in itertools.combinations(FILTERS, 2):
        if one.keys() & other.keys():
            continue
        both = await rows(scene, 9, **one, **other)
        assert set(ids(both)) == by_filter[str(one)] & by_filter[str(other)], (one, other)


async def test_a_cursor_stays_good_while_conversations_begin_and_end(scene: Scene) -> None:
    whole = ids(await rows(scene))
    first = await read(scene, "/v1/conversations", limit=10)
    await scene.started(conversationId="newest", contactId="newest")
    await scene.end(conversationId="newest", contactId="newest")
    seen, cursor = ids(first["conversations"]), first["nextCursor"]
    while cursor is not None:
        page = await read(scene, "/v1/conversations", limit=10, cursor=cursor)
        seen += ids(page["conversations"])
        cursor = page["nextCursor"]
    assert seen == whole, "what was there then, each once; nothing that came since"
    assert (await scene.http.delete("/v1/conversations/newest")).status_code == 200


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_a_journal_are_the_whole_journal(limit: int) -> None:  # journal: journal
    async with open_scene(clinic()) as scene:
        await scene.started()
        for task in ("supervised", "reception", "operator", "reception", "nowhere"):
            await scene.change(task)
        await scene.end()
        path = "/v1/conversations/conv-1/journal"
        whole = (await read(scene, path, limit=999))["entries"]
        assert [entry["seq"] for entry in whole] == list(range(1, len(whole) + 1))
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            page = await read(scene, path, limit=limit, after=after)
            assert len(page["entries"]) <= limit
            found += page["entries"]
            after = page["next"]
        assert found == whole


async def test_pages_of_the_events_are_the_whole(scene: Scene) -> None:
    await scene.work()
    whole = (await read(scene, "/v1/events", limit=200))["events"]
    found: list[Any] = []
    query: dict[str, object] = {}
    while True:
        page = await read(scene, "/v1/events", limit=7, **query)
        found += page["events"]
        if page["nextBefore"] is None:
            break
        query = {"before": page["nextBefore"]}
    assert len(whole) > 7
    assert found == whole


async def test_a_limit_of_a_flows_history_leaves_the_oldest_out(scene: Scene) -> None:
    path = f"/v1/flows/{(await read(scene, '/v1/flows'))[0]['id']}/history"
    whole = await read(scene, path, limit=200)
    [(key, entries)] = [(key, value) for key, value in whole.items() if isinstance(value, list)]
    assert len(entries) > 1
    for limit in range(1, len(entries) + 1):
        assert (await read(scene, path, limit=limit))[key] == entries[:limit]


async def test_no_list_tells_another_tenant_anything() -> None:  # F43
    keys = [{"key": name, "tenant": name, "scopes": sorted(ALL_SCOPES)} for name in ("acme", "other")]
    async with open_scene(authenticator=keyring_of(json.dumps({"keys": keys}))) as scene:
        scene.http.headers["Authorization"] = "Bearer acme"
        await scene.publish(clinic())
        await scene.started()
        mine = {
            path: await read(scene, path)
            for path in ("/v1/conversations", "/v1/flows", "/v1/events", "/v1/jobs")
        }
        assert "conv-1" in str(mine["/v1/conversations"])
        flow = mine["/v1/flows"][0]["id"]
        scene.http.headers["Authorization"] = "Bearer other"
        for path in mine:
            assert "conv-1" not in str(await read(scene, path)), path
            assert flow not in str(await read(scene, path)), path
        cursor = (await scene.http.get("/v1/conversations?limit=1")).json()["nextCursor"]
        assert cursor is None
        for path in ("", "/journal", "/at/1", "/recording", "/stream"):
            reply = await scene.http.get(f"/v1/conversations/conv-1{path}")
            assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown"), path
        assert (await scene.http.get(f"/v1/flows/{flow}/history")).status_code == 404
