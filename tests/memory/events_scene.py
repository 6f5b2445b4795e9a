"""Events as the reporting tests write them down and read them back, and a server that may break off."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal

import orjson
from fakeredis import FakeAsyncRedis, FakeServer
from redis.exceptions import NoScriptError

from flow_engine.ports.dialogue import ConversationRef
from memory.keys import EVENTS_KEY, ConversationKeys
from memory.redis_py import RedisPyDriver
from memory.streams import RedisEvents, Routing

Moment = Literal["before", "after"]


class Killed(BaseException):
    """The process ends here: no handler of it runs on."""


class Breaking:
    """A client that ends its process at one command: before it, or after it took effect."""

    def __init__(self, client: Any, at: int, moment: Moment) -> None:
        self._client = client
        self._left = at
        self._moment: Moment = moment

    async def evalsha(self, *args: Any) -> Any:
        raise NoScriptError  # so that a script is one command

    async def eval(self, *args: Any) -> Any:
        return await self._run(self._client.eval(*args))

    async def xrange(self, *args: Any, **options: Any) -> Any:
        return await self._run(self._client.xrange(*args, **options))

    async def _run(self, command: Any) -> Any:
        last = self._left == 0
        self._left -= 1
        if last and self._moment == "before":
            command.close()
            raise Killed
        answer = await command
        if last:
            raise Killed
        return answer


def some_events(count: int, first: int = 0) -> list[bytes]:
    """Every third is a checkpoint."""
    return [
        orjson.dumps({"eventId": f"e{n}", **({"serviceId": "s"} if n % 3 == 2 else {"body": f"é{n}"})})
        for n in range(first, first + count)
    ]


def fresh_ref() -> ConversationRef:
    return ConversationRef(f"tenant {uuid.uuid4().hex}", "c:é")


def outbox_key(conversation: ConversationRef) -> str:
    return ConversationKeys.of(conversation).named["outbox"]


def new_redis() -> FakeAsyncRedis:
    return FakeAsyncRedis(server=FakeServer())


def events_on(
    client: Any, *, single_node: bool = True, webhook: bool = False, stream_length: int = 100_000
) -> RedisEvents:
    driver = RedisPyDriver(client)
    driver.single_node = single_node
    return RedisEvents(driver, Routing(stream_length, webhook))


async def write_down(client: Any, conversation: ConversationRef, events: Sequence[bytes]) -> None:
    for event in events:
        await client.xadd(outbox_key(conversation), {"event": event})


async def left_in_outbox(client: Any, conversation: ConversationRef) -> list[bytes]:
    return [fields[b"event"] for _, fields in await client.xrange(outbox_key(conversation))]


async def left_for_webhook(client: Any, conversation: ConversationRef) -> list[bytes]:
    return [fields[b"event"] for _, fields in await client.xrange(f"{outbox_key(conversation)}::webhook")]


async def in_stream(client: Any, conversation: ConversationRef) -> list[dict[str, str]]:
    """What consumers see of a conversation, oldest first."""
    entries = [
        {name.decode(): value.decode() for name, value in fields.items()}
        for _, fields in await client.xrange(EVENTS_KEY)
    ]
    return [e for e in entries if e["tenant"] == conversation.tenant_id]


async def ids_in_stream(client: Any, conversation: ConversationRef) -> list[str]:
    return [orjson.loads(e["event"])["eventId"] for e in await in_stream(client, conversation)]


def firsts(ids: Sequence[str]) -> list[str]:
    """What is left for a consumer that drops what it knows."""
    return list(dict.fromkeys(ids))
