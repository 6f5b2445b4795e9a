"""One connection for all requests: each gets its own answer, a lost connection costs a 503 at most (F42)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from flow_engine.errors import CallTheOperator, RetryLater
from memory import multiplexed
from memory.connection import connect
from memory.driver import KeyNames, Naming, Script, Subscription
from memory.multiplexed import Address, MultiplexedDriver, MultiplexedSubscription
from memory.redis_py import driver_to, translate
from memory.script_calls import evaluation
from tests.ports import free_port
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio
COMMIT = Script.read("commit")


@asynccontextmanager
async def driver_of(server: RedisServer) -> AsyncIterator[MultiplexedDriver]:
    driver = connect(server.url).driver
    assert isinstance(driver, MultiplexedDriver)
    yield driver
    await driver.close()


async def connections(driver: MultiplexedDriver) -> int:
    """Without the one of redis-py that asks."""
    return len(await driver.client.client_list()) - 1


async def test_a_thousand_requests_at_once_share_a_connection_and_each_gets_its_own_answer(
    redis_server: RedisServer,
) -> None:
    async with driver_of(redis_server) as driver:
        for number in range(1000):
            await driver.client.set(f"many:{number}", b"%d" % number, ex=60)
        before = await connections(driver)
        answers = await asyncio.gather(*(driver.get(f"many:{number}") for number in range(1000)))
        assert answers == [b"%d" % number for number in range(1000)]
        assert await connections(driver) == before + 1


VALUES = st.one_of(st.binary(max_size=40), st.text(max_size=40), st.integers(0, 2**63), st.just(b"x" * 5_000))
OF_BYTES = st.binary(max_size=40)


def argument_sets(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    given_always = dict.fromkeys(COMMIT.scalars, values)
    left_out: dict[str, st.SearchStrategy[Any]] = dict.fromkeys((*COMMIT.options,), values)
    left_out |= {name: st.lists(values, max_size=4) for name in COMMIT.lists}
    return st.fixed_dictionaries(given_always, optional=left_out)


def named(keys: list[str]) -> Mapping[str, str]:
    return dict(zip(COMMIT.keys, keys, strict=False))


REPLY_AT = COMMIT.keys.index("reply")


@st.composite
def key_names(draw: st.DrawFn) -> KeyNames:
    ends = draw(st.lists(st.text(max_size=30), min_size=REPLY_AT, max_size=REPLY_AT))
    reply = draw(st.none() | st.text(max_size=30))
    behind = COMMIT.keys[REPLY_AT + 1 :] if reply is not None else ()
    others = draw(st.lists(st.text(max_size=30), max_size=len(behind)))
    naming = Naming(named(ends), dict(zip(behind, others, strict=False)))
    return KeyNames(naming, draw(st.text(st.characters(codec="ascii"), max_size=300)), reply)


@given(
    keys=st.one_of(
        key_names(), st.lists(st.text(max_size=30), min_size=1, max_size=len(COMMIT.keys)).map(named)
    ),
    args=st.one_of(argument_sets(OF_BYTES), argument_sets(VALUES)),
)
def test_a_call_of_a_script_is_written_as_hiredis_writes_it(
    keys: Mapping[str, str], args: dict[str, Any]
) -> None:
    number, packed = COMMIT.packed(keys, args)
    sent = evaluation("EVALSHA", COMMIT.sha, COMMIT, keys, args)
    assert sent == hiredis.pack_command(("EVALSHA", COMMIT.sha, number, *packed))


@given(keys=key_names(), other=key_names())
def test_the_names_of_a_conversations_keys_are_those_of_a_plain_mapping(
    keys: KeyNames, other: KeyNames
) -> None:
    plain = {name: keys[name] for name in keys}
    assert keys == plain
    assert (keys == other) == (plain == dict(other))
    assert len(keys) == len(plain)
    assert "nothing" not in keys
    assert ("reply" in keys) == (keys.reply is not None)


def test_a_call_of_a_script_has_the_names_of_the_script_alone() -> None:
    args = dict.fromkeys(COMMIT.scalars, b"")
    for wrong in ({**args, "sesion": b""}, {"session": b""}):
        with pytest.raises(KeyError):
            evaluation("EVALSHA", COMMIT.sha, COMMIT, {COMMIT.keys[0]: "k"}, wrong)


async def test_a_caller_that_waits_no_longer_shifts_nobodys_answer(redis_server: RedisServer) -> None:
    async with driver_of(redis_server) as driver:
        await driver.set("a", b"1", lifetime_s=60)
        await driver.set("b", b"2", lifetime_s=60)
        await driver.ping()
        tasks = [asyncio.ensure_future(driver.get("a" if n % 2 else "b")) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            assert (
                isinstance(answer, asyncio.CancelledError)
                if number % 3 == 0
                else answer == b"21"[number % 2 : 1 + number % 2]
            )


async def test_the_oldest_entries_of_a_stream_are_read_over_the_connection_that_all_share(
    redis_server: RedisServer,
) -> None:
    async with driver_of(redis_server) as driver:
        await driver.client.delete("stream")
        ids = [await driver.client.xadd("stream", {"event": b"%d" % n, "kind": "k"}) for n in range(3)]
        before = await connections(driver)
        assert await driver.xrange("stream", at_most=2) == [
            (id.decode(), {b"event": b"%d" % n, b"kind": b"k"}) for n, id in enumerate(ids[:2])
        ]
        assert await driver.xrange("none", at_most=2) == []
        assert await connections(driver) == before + 1


async def test_without_an_answer_when_the_connection_is_cut_a_request_is_to_be_tried_again(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    async with driver_of(server) as driver:
        await driver.set("a", b"1", lifetime_s=60)
        await driver.ping()
        server.pause()
        waiting = [asyncio.ensure_future(driver.get("a")) for _ in range(20)]
        await asyncio.sleep(0.05)
        server.kill()
        for failure in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failure, RetryLater)
            assert failure.code == "memory_unavailable"
        with pytest.raises(RetryLater):
            await driver.get("a")
        server.start()
        server.wait_until_ready()
        assert await driver.get("a") == b"1"


async def test_a_server_that_does_not_answer_holds_nobody_for_long(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    async with driver_of(server) as driver:
        await driver.ping()
        server.pause()
        with monkeypatch.context() as impatient:
            impatient.setattr(multiplexed, "ANSWER_WITHIN_S", 0.2)
            async with asyncio.timeout(30):
                with pytest.raises(RetryLater):
                    await driver.get("a")
        server.resume()
        assert await driver.get("a") is None


async def test_a_server_that_never_greets_is_waited_for_once_by_all_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # F44
    monkeypatch.setattr(multiplexed, "ANSWER_WITHIN_S", 0.2)
    came: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: came.append(writer), "127.0.0.1", 0)
    driver = connect(f"redis://:password@127.0.0.1:{server.sockets[0].getsockname()[1]}").driver
    asked = await asyncio.gather(*(driver.get("a") for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in asked} == {RetryLater}
    assert len(came) == 1
    with pytest.raises(RetryLater):
        await driver.get("a")
    assert len(came) == 2
    await driver.close()
    server.close()
    for writer in came:
        writer.close()


async def test_a_process_that_was_held_up_itself_does_not_blame_the_server(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "ANSWER_WITHIN_S", 0.1)
    async with driver_of(redis_server) as driver:
        await driver.ping()
        loop = asyncio.get_running_loop()
        answer = asyncio.ensure_future(driver.get("nothing"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        start = loop.time()
        while loop.time() < start + 0.3:
            pass
        assert await answer is None


async def test_passwords_users_and_databases_of_the_address_are_kept(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as client:
        client.config_set("requirepass", "s3cret pass")
    url = f"redis://default:s3cret%20pass@127.0.0.1:{server.port}/3"
    driver = connect(url).driver
    await driver.set("here", b"1", lifetime_s=60)
    assert await driver.get("here") == b"1"
    await driver.close()


@pytest.mark.parametrize(
    ("configured", "url", "told"),
    [
        ("s3cret", "redis://:no@127.0.0.1:{}", "does not take the user or password"),
        ("s3cret", "redis://127.0.0.1:{}", "does not take the user or password"),
        ("", "redis://:no@127.0.0.1:{}", "does not take the user or password"),
        ("", "redis://127.0.0.1:{}/99", "has no database of that number"),
        ("", "redis://reader:readers-secret@127.0.0.1:{}", "lacks permission for a command"),
    ],
)
async def test_what_is_wrong_with_the_address_is_told_whoever_asks(
    start_redis: StartRedis, configured: str, url: str, told: str
) -> None:  # F44
    server = start_redis()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">readers-secret", "~*", "+ping", "+select")
        client.config_set("requirepass", configured)
    driver = connect(url.format(server.port)).driver
    # On the one connection, and by redis-py, which forgets to close what was refused so early.
    by_redis_py = (
        () if told.startswith("has no") or (not configured and "password" in told) else (driver.servers,)
    )
    many = {str(number): 1.5 for number in range(10)}  # longer than Redis reads of who has given no password
    for asked in (lambda: driver.get("here"), lambda: driver.zadd("here", many), *by_redis_py):
        with pytest.raises((RetryLater, CallTheOperator), match=told) as refused:
            await asked()
        later = "password" in told
        assert refused.value.code == ("memory_unavailable" if later else "memory_refused")
        assert isinstance(refused.value, RetryLater if later else CallTheOperator)
    await driver.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("AUTH <password> called without any password configured for the default user.", "user or password"),
        ("DB index is out of range", "has no database of that number"),
    ],
)
def test_what_redis_py_says_of_it_without_a_code_is_told_too(text: str, told: str) -> None:  # F44
    with pytest.raises((RetryLater, CallTheOperator), match=told):
        translate(exceptions.ResponseError(text))


@pytest.mark.parametrize("user", ["", ":s3cret-pass@"])
async def test_a_command_that_redis_does_not_know_is_told_without_its_arguments(
    start_redis: StartRedis, user: str
) -> None:  # F46
    renamed = (part for name in ("AUTH", "HGET", "ZRANGE") for part in ("--rename-command", name, ""))
    server = start_redis((*renamed,))
    driver = connect(f"redis://{user}127.0.0.1:{server.port}").driver
    for asked in (driver.hget("anna", "s3cret-pass"), driver.zrange("s3cret-pass", at_most=1)):
        with pytest.raises(CallTheOperator) as refused:
            await asked
        assert refused.value.reason.startswith(("ERR unknown command", "unknown command"))
        assert "s3cret" not in refused.value.reason
    await driver.close()


async def test_a_redis_that_takes_no_more_clients_is_away(start_redis: StartRedis) -> None:  # F44
    server = start_redis()
    with server.client() as client:
        client.config_set("maxclients", 1)
        driver = connect(server.url).driver
        with pytest.raises(RetryLater) as refused:
            await driver.get("here")
        assert "max number of clients" in refused.value.reason
        await driver.close()


async def test_a_refusal_names_no_more_than_its_code(start_redis: StartRedis) -> None:  # F44, F46
    driver = connect(start_redis().url).driver
    for source, told in (
        ("return redis.call('NOTHING')", "Redis refuses a command"),
        ("return redis.error_reply('CUSTOM of hush')", "Redis refuses a command: CUSTOM"),
    ):
        script = Script(source, "0" * 40, ("key",), (), ())
        with pytest.raises(CallTheOperator) as refused:
            await driver.run(script, {"key": "it"}, {})
        assert refused.value.detail == told
    await driver.close()


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("redis://host", True),
        ("redis://user:pass@host:6380/2", True),
        ("rediss://host", False),
        ("unix:///run/redis.sock", False),
        ("redis://host?protocol=3", False),
        ("redis://host/name", False),
    ],
)
def test_what_only_redis_py_understands_is_left_to_it(url: str, own: bool) -> None:
    assert (Address.of(url) is not None) is own


async def heard(subscription: Subscription) -> tuple[str, bytes]:
    async with asyncio.timeout(10):
        while True:
            try:
                if (message := await subscription.next(within_s=0.05)) is not None:
                    return message
            except RetryLater:
                await asyncio.sleep(0.02)


async def test_a_channel_is_heard_from_when_it_is_subscribed_and_in_order(redis_server: RedisServer) -> None:
    async with driver_of(redis_server) as driver:
        subscription = driver.subscription()
        assert isinstance(subscription, MultiplexedSubscription)
        await asyncio.gather(*(subscription.subscribe(name) for name in ("one", "ü two", "three")))
        for number in range(200):
            await driver.publish("ü two" if number % 2 else "one", b"%d" % number)
        messages = [await heard(subscription) for _ in range(200)]
        assert messages == [("ü two" if n % 2 else "one", b"%d" % n) for n in range(200)]
        await subscription.unsubscribe("one")
        await driver.publish("one", b"nobody")
        await driver.publish("three", b"last")
        assert await heard(subscription) == ("three", b"last")
        assert await subscription.next(within_s=0.01) is None
        await subscription.close()


async def test_after_a_restart_every_channel_is_heard_again(start_redis: StartRedis) -> None:
    server = start_redis()
    async with driver_of(server) as driver:
        subscription = driver.subscription()
        await subscription.subscribe("one")
        await subscription.subscribe("gone")
        server.kill()
        with suppress(RetryLater):
            await subscription.next(within_s=5.0)  # until the loss is noticed
        with pytest.raises(RetryLater):
            await subscription.next(within_s=0.01)
        await subscription.unsubscribe("gone")
        with pytest.raises(RetryLater):
            await subscription.subscribe("two")
        server.start()
        server.wait_until_ready()
        await subscription.next(within_s=0.01)
        with server.client() as client:
            assert sorted(client.pubsub_channels()) == [b"one", b"two"]
        await driver.publish("two", b"2")
        assert await heard(subscription) == ("two", b"2")
        await subscription.close()


async def test_the_first_server_that_can_be_reached_is_listened_to(redis_server: RedisServer) -> None:
    here = Address.of(redis_server.url)
    assert here is not None
    reachable: list[Address] = []
    subscription = MultiplexedSubscription(lambda: [replace(here, port=free_port()), *reachable])
    with pytest.raises(RetryLater):
        await subscription.subscribe("one")
    reachable.append(here)
    await subscription.subscribe("two")
    async with driver_of(redis_server) as driver:
        for channel in ("one", "two"):
            await driver.publish(channel, b"x")
            assert await heard(subscription) == (channel, b"x")
    await subscription.close()


async def test_a_server_that_falls_silent_is_noticed_by_who_listens(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    async with driver_of(server) as driver:
        subscription = driver.subscription()
        await subscription.subscribe("one")
        server.pause()
        monkeypatch.setattr(multiplexed, "ANSWER_WITHIN_S", 0.2)
        async with asyncio.timeout(30):
            with pytest.raises(RetryLater):
                await subscription.next(within_s=0.01)
        server.resume()
        await subscription.close()


async def test_replicas_are_waited_for_beside_the_shared_connection(redis_server: RedisServer) -> None:
    address = Address.of(redis_server.url)
    assert address is not None
    client = driver_to(redis_server.url, cluster=False, wait_replicas=1).client
    driver = MultiplexedDriver(address, client, wait_replicas=1)
    with pytest.raises(RetryLater) as refused:
        await driver.confirm("key")
    assert refused.value.code == "memory_not_replicated"
    assert await driver.get("nothing") is None
    await driver.close()
