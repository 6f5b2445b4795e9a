"""The cache: what shares an entry and what must not, one call for many, and what is never kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from adapters.models.fake_http import Received
from api.auth import Keyring
from channels.gateway.cache import ResponseCache, cache_stats, clear_cache
from channels.gateway.database import GatewayDatabase
from channels.gateway.wire import cache_key, read_request
from tests.adapters.models.exact_server import ExactServer, Reply
from tests.channels.gateway.gateway_world import CHUNKS, completion, either, events_of, gateway, plain, stream
from tests.timing import takes_less_than

pytestmark = pytest.mark.anyio

BASE: Mapping[str, Any] = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "Hi"}]}


def message(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


SAME: tuple[tuple[str, str], ...] = (
    ('{"model":"m","temperature":0,"messages":[]}', '{"messages":[],"temperature":0,"model":"m"}'),
    (
        '{"model":"m","temperature":0,"messages":[]}',
        ' {\n"model" : "m", "temperature":\t0, "messages": [ ] } ',
    ),
    ('{"temperature":0}', '{"temperature":0.0}'),
    ('{"temperature":0}', '{"temperature":-0.0}'),
    ('{"temperature":0}', '{"temperature":0e5}'),
    ('{"top_p":1}', '{"top_p":1.0}'),
    ('{"top_p":0.5}', '{"top_p":5e-1}'),
    ('{"top_p":0.50}', '{"top_p":0.5}'),
    ('{"seed":100}', '{"seed":1e2}'),
    ('{"seed":12345678901234567890}', '{"seed":12345678901234567890.0}'),
    ('{"a":"é"}', '{"a":"\\u00e9"}'),
    ('{"a":"/"}', '{"a":"\\/"}'),
    ('{"a":"\\n"}', '{"a":"\\u000a"}'),
    ('{"a":"\\ud83d\\ude00"}', '{"a":"😀"}'),
    ('{"a":{"x":1,"y":2}}', '{"a":{"y":2,"x":1}}'),
    ('{"a":[{"x":1,"y":[1.0]}]}', '{"a":[{"y":[1],"x":1.0}]}'),
    ('{"model":"alias"}', '{"model":"m"}'),
)
DIFFERENT: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    (message("Hi"), message("hi")),
    (message("Hi"), message("Hi ")),
    (message("Hi"), message(" Hi")),
    (message("Hi"), message("H\u0131")),
    (message("é"), message("e\u0301")),
    (message("Hi"), message("")),
    (message(""), message(None)),
    (message("Hi"), message(["Hi"])),
    (message("Hi"), message([{"type": "text", "text": "Hi"}])),
    (message("1"), message(1)),
    (message("true"), message(True)),
    (message(1), message(True)),
    (message(0), message(False)),
    (message(None), message(False)),
    (message([]), message({})),
    (message([None, "1e0", None]), message(1)),
    (message(["Hi"]), message([["Hi"]])),
    (message("Hi"), message("Hi", name="ann")),
    (message("Hi", name=None), message("Hi")),
    (message("Hi"), {"messages": [{"role": "system", "content": "Hi"}]}),
    (message("Hi"), {"messages": [*message("Hi")["messages"], *message("Hi")["messages"]]}),
    ({"messages": [{"content": "a"}, {"content": "b"}]}, {"messages": [{"content": "b"}, {"content": "a"}]}),
    ({"messages": [{"tool_call_id": "1"}]}, {"messages": [{"tool_call_id": "2"}]}),
    ({"messages": [{"tool_calls": [{"id": "1"}]}]}, {"messages": [{"tool_calls": [{"id": "2"}]}]}),
    ({"messages": [{"reasoning_content": "a"}]}, {"messages": [{"reasoning_content": "b"}]}),
    ({}, {"top_p": 1}),
    ({"top_p": 0.1}, {"top_p": 0.10000000000000001}),
    ({"seed": 1}, {"seed": 2}),
    ({"seed": 12345678901234567890}, {"seed": 12345678901234567891}),
    ({}, {"seed": None}),
    ({}, {"max_tokens": 5}),
    ({"max_tokens": 5}, {"max_tokens": 50}),
    ({"max_tokens": 5}, {"max_completion_tokens": 5}),
    ({"stop": "a"}, {"stop": ["a"]}),
    ({"stop": ["a", "b"]}, {"stop": ["b", "a"]}),
    ({"n": 1}, {"n": 2}),
    ({"tools": [{"x": 1}]}, {"tools": [{"x": 2}]}),
    ({"tools": []}, {}),
    ({"tools": [1, 2]}, {"tools": [2, 1]}),
    ({"tool_choice": "auto"}, {"tool_choice": "none"}),
    ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "text"}}),
    ({"response_format": {"schema": {"A": 1}}}, {"response_format": {"schema": {"a": 1}}}),
    ({"logprobs": True}, {"logprobs": False}),
    ({"logprobs": True}, {"logprobs": 1}),
    ({"logit_bias": {"1": 1}}, {"logit_bias": {"1": -1}}),
    ({"user": "a"}, {"user": "b"}),
    ({"user": "a"}, {"user": "A"}),
    ({"x_unknown": 1}, {"x_unknown": 2}),
    ({"X": 1}, {"x": 1}),
    ({"metadata": {"a": "b"}}, {"metadata": {"b": "a"}}),
    ({"num_ctx": 4096}, {"num_ctx": 8192}),
)


def key(body: Mapping[str, Any] | str, tenant: str = "t", model: str = "m") -> str:
    if isinstance(body, str):
        read = json.loads(body)
        rest = body.strip()[1:]
        missing = {name: value for name, value in {**BASE, "messages": [{}]}.items() if name not in read}
        missing |= {"messages": [{}]}
        body = "{" + "".join(f'"{n}":{json.dumps(v)},' for n, v in missing.items() if n not in read) + rest
        body = body.replace('"messages":[]', '"messages":[{}]').replace('"messages": [ ]', '"messages":[{}]')
        return cache_key(read_request(body.encode(), needs="messages"), tenant, model)
    return cache_key(read_request(json.dumps({**BASE, **body}).encode(), needs="messages"), tenant, model)


def test_there_are_enough_pairs() -> None:
    assert len(SAME) + len(DIFFERENT) >= 60


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_means_the_same_shares_an_entry(one: str, other: str) -> None:  # W7
    assert key(one) == key(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_shares_none(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:  # W7
    if one != {"top_p": 0.1}:
        assert key(one) != key(other)
    assert len({key(one, "t"), key(one, "u"), key(one, "t", "x")}) == 3


def test_digits_that_a_float_would_lose_are_not_lost() -> None:  # W7
    bodies = [
        b'{"model":"m","messages":[{}],"x":%s}' % n for n in (b"0.1", b"0.10000000000000001", b"1e-400")
    ]
    assert len({cache_key(read_request(body, needs="messages"), "t", "m") for body in bodies}) == 3


@pytest.mark.parametrize("value", ["[" + "0," * 2_000_000 + "0]", "0." + "1" * 4_000_000])
def test_what_would_take_long_to_compare_is_not_kept(value: str) -> None:  # W7
    request = read_request(b'{"model":"m","messages":[{}],"x":%s}' % value.encode(), needs="messages")

    def refused() -> None:
        with pytest.raises(ValueError, match="compared"):
            cache_key(request, "t", "m")

    assert takes_less_than(1, refused)


async def outcomes(world: Any, *requests: Mapping[str, Any]) -> list[str]:
    return [(await world.chat(**request)).headers["x-cache"] for request in requests]


COLD: Mapping[str, Any] = {"temperature": 0}
TOOLS: Mapping[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("mode", "fields", "expected"),
    [
        ("strict", COLD, ["miss", "hit-l1"]),
        ("strict", {**COLD, "tools": []}, ["miss", "hit-l1"]),
        ("strict", {}, ["bypass", "bypass"]),
        ("strict", {"temperature": 0.1}, ["bypass", "bypass"]),
        ("strict", {"temperature": None}, ["bypass", "bypass"]),
        ("strict", {"temperature": False}, ["bypass", "bypass"]),
        ("strict", {**COLD, **TOOLS}, ["bypass", "bypass"]),
        ("final", {**COLD, **TOOLS}, ["miss", "hit-l1"]),
        ("final", TOOLS, ["bypass", "bypass"]),
        ("off", COLD, ["bypass", "bypass"]),
    ],
)
async def test_what_is_kept_by_default_and_by_setting(
    mode: str, fields: Mapping[str, Any], expected: list[str], streams: bool, tmp_path: Path
) -> None:  # W7
    async with (
        ExactServer(either()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}, gateway_cache=mode) as world,
    ):
        replies = [await world.chat(**fields, stream=streams) for _ in range(2)]
        assert [reply.headers["x-cache"] for reply in replies] == expected
        assert replies[0].content == replies[1].content
        assert ("age" in replies[1].headers) == expected[1].startswith("hit")
        assert len(server.requests) == (1 if expected[1].startswith("hit") else 2)


CALLS = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    "reply",
    [
        plain(completion("cut", "length")),
        plain(completion("x", None)),
        plain(completion("", "tool_calls", **CALLS)),
        plain({**completion(), "choices": []}),
        plain({"error": {"message": "x"}}, status=429),
        plain({}, status=500),
        Reply([b"{"]),
    ],
)
async def test_what_is_not_whole_is_never_kept(reply: Reply, tmp_path: Path) -> None:  # W7
    async with (
        ExactServer(lambda _: reply).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}, gateway_cache="final") as world,
    ):
        await world.chat(temperature=0)
        await world.chat(temperature=0)
        assert len(server.requests) == 2
        assert (await cache_stats(tmp_path / "gateway.db", 0)).entries == 0


@pytest.mark.parametrize("chunks", [CHUNKS[:3], CHUNKS[:1]])
async def test_a_stream_without_its_finish_is_never_kept(chunks: Any, tmp_path: Path) -> None:  # W7
    async with (
        ExactServer(lambda _: stream(*chunks)).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert await outcomes(world, *[{**COLD, "stream": True}] * 2) == ["miss", "miss"]


async def test_the_request_s_own_controls(tmp_path: Path) -> None:  # W7
    async with (
        ExactServer(either()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):

        async def asked(control: str, **fields: Any) -> tuple[int, str]:
            reply = await world.chat({"Cache-Control": control}, temperature=0, **fields)
            return reply.status_code, reply.headers["x-cache"]

        assert await asked("only-if-cached") == (504, "miss")
        assert await asked("only-if-cached", tools=[{}]) == (504, "miss")
        assert server.requests == []
        assert await asked("no-store") == (200, "bypass")
        assert await asked("") == (200, "miss")
        assert await asked("no-store") == (200, "bypass")
        assert await asked("NO-CACHE, x=1") == (200, "miss")
        assert await asked("only-if-cached") == (200, "hit-l1")
        assert len(server.requests) == 4


async def test_two_hundred_at_once_make_one_call(tmp_path: Path) -> None:  # W7
    slow = Reply(stream(*CHUNKS).pieces, content_type="text/event-stream", pause_s=0.1)
    async with (
        ExactServer(lambda _: slow).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        replies = await asyncio.gather(*(world.quick(stream=True, temperature=0) for _ in range(200)))
        assert {(status, len(events_of(content))) for status, content in replies} == {(200, 5)}
        assert len(set(replies)) == 1
        assert len(server.requests) == 1


async def test_an_entry_never_crosses_tenants_but_keys_of_one_share_it(tmp_path: Path) -> None:  # W7, F43
    keys = [("a", "key-of-tenant-one-1"), ("a", "key-of-tenant-one-2"), ("b", "key-of-tenant-two-1")]
    listed = [{"key": k, "tenant": t, "scopes": ["gateway"], "name": k} for t, k in keys]
    listed.append({"key": "key-with-another-scope", "tenant": "a", "scopes": ["chat"], "name": "x"})
    ring = Keyring.parse(orjson.dumps({"keys": listed}))
    async with (
        ExactServer(either()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}, authenticator=ring) as world,
    ):

        async def outcome(key: str) -> Any:
            return await world.chat({"Authorization": f"Bearer {key}"}, temperature=0)

        got = [(await outcome(key)).headers["x-cache"] for _, key in keys]
        assert got == ["miss", "hit-l1", "miss"]
        assert (await outcome("nobody-s-own-key-here")).status_code == 401
        assert (await world.chat()).json()["error"]["code"] == "invalid_api_key"
        assert (await outcome("key-with-another-scope")).status_code == 403


async def test_the_second_level_outlives_the_process_and_counts(tmp_path: Path) -> None:  # W7
    async with ExactServer(either()).running() as server:
        backend = {"url": f"{server.origin}/v1", "aliases": {"alias": "m"}}
        async with gateway(tmp_path, backend) as world:
            assert await outcomes(world, COLD, {**COLD, "model": "alias"}) == ["miss", "hit-l1"]
        async with gateway(tmp_path, backend) as world:
            assert await outcomes(world, COLD, COLD) == ["hit-l2", "hit-l1"]
    with sqlite3.connect(tmp_path / "gateway.db") as database:
        [(model, count, response)] = database.execute("SELECT model, hit_count, response FROM response_cache")
    database.close()
    assert (model, count) == ("m", 3)
    assert "chatcmpl-1" in response
    stats = await cache_stats(tmp_path / "gateway.db", 0)
    assert (stats.entries, stats.hits, stats.models) == (1, 3, {"m": 1})


async def test_clearing_reaches_a_running_gateway(tmp_path: Path) -> None:  # W7
    async with (
        ExactServer(either()).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert await outcomes(world, COLD, COLD) == ["miss", "hit-l1"]
        assert await clear_cache(tmp_path / "gateway.db") == 1
        async with asyncio.timeout(30):
            while (await outcomes(world, COLD)) != ["miss"]:
                await asyncio.sleep(0.05)


async def test_an_entry_expires_in_both_levels(tmp_path: Path) -> None:  # W7
    now = 1_000.0
    database = GatewayDatabase(tmp_path / "c.db")
    cache = ResponseCache(database, 60, lambda: now)
    async with database.running():
        entry = cache.put("k", [b"{}"], "m", cache.epoch)
        assert entry is not None
        await cache.write("k", entry, cache.epoch)
        assert cache.near("k") is not None
        assert await cache.far("k") is not None
        now = 1_061.0
        assert cache.near("k") is None
        assert await cache.far("k") is None
        for number in range(1_100):
            cache.put(f"k{number}", [b"{}"], "m", cache.epoch)
        assert [cache.near(f"k{number}") is None for number in (0, 1_099)] == [True, False]


async def test_both_levels_hold_so_many_bytes_and_forget_the_oldest(tmp_path: Path) -> None:  # W7
    now = 1_000.0
    database = GatewayDatabase(tmp_path / "c.db")
    cache = ResponseCache(database, 600, lambda: now, l1_bytes=1_000_000, l2_bytes=1_000_000)
    async with database.running():
        for number in range(30):
            now += 1
            entry = cache.put(f"k{number}", [b"x" * 100_000], "m", cache.epoch)
            assert entry is not None
            await cache.write(f"k{number}", entry, cache.epoch)
        assert [number for number in range(30) if cache.near(f"k{number}") is not None] == [*range(20, 30)]
        now += 61
    stats = await cache_stats(tmp_path / "c.db", now)
    assert 5 <= stats.entries <= 10
    with sqlite3.connect(tmp_path / "c.db") as file:
        kept = {key for (key,) in file.execute("SELECT prompt_hash FROM response_cache")}
    file.close()
    assert kept == {f"k{number}" for number in range(30 - stats.entries, 30)}


async def test_a_database_that_fails_costs_nobody_an_answer(tmp_path: Path) -> None:  # W7
    def script(_: Received) -> Reply:
        with sqlite3.connect(tmp_path / "gateway.db") as database:
            database.execute("DROP TABLE IF EXISTS response_cache")
        database.close()
        return plain(completion())

    async with (
        ExactServer(script).running() as server,
        gateway(tmp_path, {"url": f"{server.origin}/v1"}) as world,
    ):
        assert await outcomes(world, COLD, COLD) == ["miss", "hit-l1"]
