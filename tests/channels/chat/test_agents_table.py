"""The table `ai_agents` over REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api.auth import Keyring
from channels.chat import table
from flow_engine.ports.records import Record
from flows.records import SqliteRecords
from tests.channels.chat.harness import ORDERS, WEATHER, Chat, running_chat

pytestmark = pytest.mark.anyio

KEYS = b"""{"keys": [
  {"key": "designer-key-0123456789", "tenant": "t1", "scopes": ["designer"], "name": "Dora"},
  {"key": "chat-key-0123456789", "tenant": "t1", "scopes": ["chat"], "name": "site"},
  {"key": "other-key-0123456789", "tenant": "t2", "scopes": ["admin"], "name": "other"}]}"""


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-key-0123456789"}


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Chat]:
    async with running_chat(tmp_path) as running:
        yield running


async def errors_of(chat: Chat, row: dict[str, Any]) -> list[tuple[str, str]]:
    answer = await chat.http.post("/v1/ai-agents", json=row)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return [(error["pointer"], error["code"]) for error in answer.json()["errors"]]


async def test_rows_are_created_read_changed_and_deleted(chat: Chat) -> None:  # C1
    made = await chat.http.post("/v1/ai-agents", json=WEATHER)
    assert (made.status_code, made.headers["etag"], made.json()["revision"]) == (201, '"1"', 1)
    assert made.json()["tools"] is None
    patched = await chat.http.patch("/v1/ai-agents/weather_agent", json={"task": "Be brief.", "tools": []})
    assert (patched.status_code, patched.json()["revision"]) == (200, 2)
    assert patched.json()["examples"] == WEATHER["examples"]
    put = await chat.http.put("/v1/ai-agents/weather_agent", json={"name": "weather_agent", "role": "r"})
    assert (put.json()["revision"], put.json()["examples"]) == (3, None)
    names = [row["name"] for row in (await chat.http.get("/v1/ai-agents")).json()]
    assert names == ["orchestrator", "smalltalk_agent", "weather_agent"]
    assert (await chat.http.delete("/v1/ai-agents/weather_agent")).status_code == 204
    for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/effective")):
        answer = await chat.http.request(method, f"/v1/ai-agents/weather_agent{path}", json={})
        assert (answer.status_code, answer.json()["code"]) == (404, "agent_unknown")
    again = await chat.http.post("/v1/ai-agents", json=WEATHER)
    assert (again.status_code, again.json()["revision"]) == (201, 1)
    taken = await chat.http.post("/v1/ai-agents", json=WEATHER)
    assert (taken.status_code, taken.json()["code"]) == (409, "agent_name_taken")


async def test_every_mistake_of_a_row_is_told_with_its_pointer(chat: Chat) -> None:  # C1, C5
    row = {
        "name": "a",
        "base_agent": "nobody",
        "temperature": 9,
        "tools": [7],
        "model": "gpt",
        "languages": ["Italian"],
        "colour": "red",
        "http_tools": {"find": {"url": "{{args.host}}/x", "approval": "maybe"}},
    }
    assert set(await errors_of(chat, row)) == {
        ("/base_agent", "unknown_base"),
        ("/temperature", "less_than_equal"),
        ("/tools/0", "wrong_type"),
        ("/model", "unknown_model"),
        ("/languages/0", "language"),
        ("/colour", "unknown_property"),
        ("/http_tools/find/url", "host_not_fixed"),
        ("/http_tools/find/approval", "not_allowed"),
    }
    row = {"name": "a", "temperature": 9, "tools": ["x"], "http_tools": {"refuse": {"url": "http://h/"}}}
    answer = await chat.http.post("/v1/ai-agents/validate", json=row)
    errors = {each["pointer"]: each for each in answer.json()["errors"]}
    assert set(errors) == {"/temperature", "/http_tools/refuse", "/tools/0"}
    assert errors["/tools/0"]["message"] == "unknown tool 'x'; there are: none"
    for unnamed in ({"name": "no name!"}, {}):
        assert [pointer for pointer, _ in await errors_of(chat, {**unnamed, "base_agent": "nobody"})] == [
            *("/name", "/base_agent")
        ]
    row = {
        "name": "a",
        "base_agent": "nobody",
        "tools": ["x", "find"],
        "http_tools": {"find": {"url": "http://h/"}},
    }
    assert await errors_of(chat, row) == [("/base_agent", "unknown_base"), ("/tools/0", "unknown_tool")]
    no_tools = await errors_of(chat, {**row, "http_tools": 1})
    assert [pointer for pointer, _ in no_tools] == ["/http_tools", "/base_agent"]
    answer = await chat.http.post("/v1/ai-agents/validate", json=row)
    assert (answer.status_code, answer.json()["valid"], len(answer.json()["errors"])) == (200, False, 2)
    assert (await chat.http.get("/v1/ai-agents/a")).status_code == 404
    assert (await chat.http.post("/v1/ai-agents", content=b"{")).status_code == 400


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("name", ["b", "no name!", 7])
async def test_another_name_is_told_beside_what_is_wrong_with_the_row(
    chat: Chat, method: str, name: object
) -> None:  # C1, C5
    await chat.add({"name": "a"})
    row = {"name": name, "temperature": 9, "base_agent": "nobody", "colour": "red"}
    answer = await chat.http.request(method, "/v1/ai-agents/a", json=row)
    assert answer.status_code == 422
    assert {(each["pointer"], each["code"]) for each in answer.json()["errors"]} == {
        ("/name", "name_differs"),
        ("/temperature", "less_than_equal"),
        ("/base_agent", "unknown_base"),
        ("/colour", "unknown_property"),
    }
    assert (await chat.http.get("/v1/ai-agents/a")).json()["revision"] == 1


async def test_bases_make_no_circle_and_stay_while_they_are_needed(chat: Chat) -> None:  # C5
    await chat.add({"name": "a"}, {"name": "b", "base_agent": "a"}, {"name": "c", "base_agent": "b"})
    answer = await chat.http.patch("/v1/ai-agents/a", json={"base_agent": "c"})
    assert answer.status_code == 422
    assert [error["code"] for error in answer.json()["errors"]] == ["base_cycle"]
    answer = await chat.http.delete("/v1/ai-agents/a")
    assert (answer.status_code, answer.json()["code"]) == (409, "agent_is_base")


@pytest.fixture
async def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Chat, Chat]]:
    """On one table, and slow to write: what both read before, they have read when the first has written."""

    def slowly(write: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        async def written(*arguments: Any) -> bool:
            await asyncio.sleep(0.05)
            return await write(*arguments)

        return written

    async with running_chat(tmp_path) as one, running_chat(tmp_path) as other:
        await one.add({"name": "a", "constraints": ["Never."]}, {"name": "b"})
        monkeypatch.setattr(SqliteRecords, "insert", slowly(SqliteRecords.insert))
        monkeypatch.setattr(SqliteRecords, "replace", slowly(SqliteRecords.replace))
        yield one, other


async def test_a_base_is_not_deleted_under_a_new_heir(replicas: tuple[Chat, Chat]) -> None:  # C5, C2
    one, other = replicas
    heir, deleted = await asyncio.gather(
        one.http.post("/v1/ai-agents", json={"name": "heir", "base_agent": "a"}),
        other.http.delete("/v1/ai-agents/a"),
    )
    assert (heir.status_code, deleted.status_code) in ((201, 409), (422, 204))


async def test_two_who_change_bases_at_once_make_no_circle(replicas: tuple[Chat, Chat]) -> None:  # C5
    one, other = replicas
    answers = await asyncio.gather(
        one.http.patch("/v1/ai-agents/a", json={"base_agent": "b"}),
        other.http.patch("/v1/ai-agents/b", json={"base_agent": "a"}),
    )
    assert sorted(answer.status_code for answer in answers) == [200, 422]


async def test_a_replica_that_died_while_it_changed_the_table_stops_nobody(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1
    monkeypatch.setattr(table, "HELD_S", 0.2)
    let_go = SqliteRecords.replace

    async def dies(store: SqliteRecords, tenant_id: str, record: Record, expected_serial: int) -> bool:
        return record.body.get("held") is False or await let_go(store, tenant_id, record, expected_serial)

    monkeypatch.setattr(SqliteRecords, "replace", dies)
    await chat.add({"name": "a"})
    await chat.add({"name": "b"})
    assert (await chat.http.delete("/v1/ai-agents/a")).status_code == 204
    assert [row["name"] for row in (await chat.http.get("/v1/ai-agents")).json()] == [
        *("b", "orchestrator", "smalltalk_agent")
    ]


async def test_null_inherits_and_an_empty_list_does_not(chat: Chat) -> None:  # C1, C2, C5
    await chat.add(
        {"name": "base", "enabled": False, "task": "Help.", "constraints": ["Be kind."], "rules": ["r"]},
        {"name": "heir", "base_agent": "base", "role": "Helper", "rules": [], "task": None},
    )
    effective = (await chat.http.get("/v1/ai-agents/heir/effective")).json()
    fields = effective["fields"]
    assert fields["task"] == {"value": "Help.", "from": "base"}
    assert fields["rules"] == {"value": [], "from": "heir"}
    assert fields["model"] == {"value": None, "from": None}
    assert fields["enabled"] == {"value": True, "from": "heir"}
    prompt = effective["system_prompt"]
    assert prompt.index("Helper") < prompt.index("Be kind.") < prompt.index("Help.")


async def test_of_two_writers_with_one_revision_one_wins(chat: Chat) -> None:  # C1
    await chat.add(ORDERS)
    answers = await asyncio.gather(
        *(
            chat.http.patch("/v1/ai-agents/order_agent", json={"role": str(n)}, headers={"If-Match": '"1"'})
            for n in range(8)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    assert (await chat.http.get("/v1/ai-agents/order_agent")).json()["revision"] == 2
    stale = await chat.http.delete("/v1/ai-agents/order_agent", headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "revision_stale")


async def test_the_history_tells_who_changed_what(tmp_path: Path) -> None:  # C1
    async with running_chat(tmp_path, authenticator=Keyring.parse(KEYS)) as chat:
        chat.http.headers.update(key("designer"))
        await chat.add({"name": "a", "task": "t"})
        await chat.http.patch("/v1/ai-agents/a", json={"task": "u"})
        await chat.http.delete("/v1/ai-agents/a")
        lines = (await chat.http.get("/v1/ai-agents/a/history")).json()
        assert [(line["revision"], line["action"], line["by"]) for line in lines] == [
            (1, "create", "Dora"),
            (2, "update", "Dora"),
            (3, "delete", "Dora"),
        ]
        assert lines[1]["changes"] == {"task": {"before": "t", "after": "u"}}


async def test_tenants_are_apart_and_scopes_hold(tmp_path: Path) -> None:  # C1
    async with running_chat(tmp_path, authenticator=Keyring.parse(KEYS)) as chat:
        made = await chat.http.post("/v1/ai-agents", json=WEATHER, headers=key("designer"))
        assert made.status_code == 201
        others = await chat.http.get("/v1/ai-agents", headers=key("other"))
        assert [row["name"] for row in others.json()] == ["orchestrator", "smalltalk_agent"]
        assert (await chat.http.get("/v1/ai-agents")).status_code == 401
        assert (await chat.http.get("/v1/ai-agents", headers=key("chat"))).status_code == 403


async def test_two_replicas_begin_with_the_same_rows_and_keep_what_was_edited(tmp_path: Path) -> None:  # C4
    async with running_chat(tmp_path) as one, running_chat(tmp_path) as other:
        await one.http.patch("/v1/ai-agents/smalltalk_agent", json={"role": "A poet."})
        async with asyncio.timeout(30):  # live on every replica
            while (await other.http.get("/v1/ai-agents")).json()[1]["role"] != "A poet.":
                await asyncio.sleep(0.05)
    async with running_chat(tmp_path) as chat:
        rows = {row["name"]: row for row in (await chat.http.get("/v1/ai-agents")).json()}
        assert rows["smalltalk_agent"]["role"] == "A poet."
        assert rows["orchestrator"]["tools"] == []
        assert rows["orchestrator"]["revision"] == 1


async def test_many_changes_of_a_large_row_are_not_read_with_every_message(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1
    monkeypatch.setattr(table, "MOST_HISTORY_BYTES", 10_000)
    await chat.add(WEATHER)
    for task in ("a" * 3_000, "b" * 3_000, "c" * 3_000, "d" * 20_000):
        assert (await chat.http.patch("/v1/ai-agents/weather_agent", json={"task": task})).status_code == 200
    history = (await chat.http.get("/v1/ai-agents/weather_agent/history")).json()
    assert [line["revision"] for line in history] == [5]
    await chat.http.patch("/v1/ai-agents/weather_agent", json={"role": "r"})
    await chat.http.patch("/v1/ai-agents/weather_agent", json={"role": "s"})
    history = (await chat.http.get("/v1/ai-agents/weather_agent/history")).json()
    assert [line["revision"] for line in history] == [6, 7]


async def test_the_rows_of_a_table_have_a_size_together(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:  # C1
    monkeypatch.setattr(table, "MOST_TABLE_BYTES", 20_000)
    await chat.add({**WEATHER, "task": "a" * 9_000})
    large = {"task": "b" * 15_000}
    made = await chat.http.post("/v1/ai-agents", json={**ORDERS, **large})
    changed = await chat.http.patch("/v1/ai-agents/weather_agent", json={"role": "r" * 15_000})
    for refused in (made, changed):
        assert (refused.status_code, refused.json()["code"]) == (409, "table_too_large")
    assert (await chat.http.patch("/v1/ai-agents/weather_agent", json={"task": "a"})).status_code == 200
    assert (await chat.http.post("/v1/ai-agents", json={**ORDERS, "task": "b" * 9_000})).status_code == 201
