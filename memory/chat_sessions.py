"""Sessions of the chat on Redis, for any number of replicas.

    {tenant:chat:session}::state     string: what the chat knows, JSON
    {tenant:chat:session}::hold      hash: holder, until (ms since 1970), seq
    {tenant:chat:session}::frames    stream: the newest frames, entry `<seq>-0`, field `frame`
    {tenant:chat:session}::queue     list: messages that wait, the oldest is being answered
    {tenant:chat:session}::seen      set: ids of messages
    {flow-engine}:chat::held         sorted set: sessions with a message, by when their lease ends (ms)
    {flow-engine}:chat::active       sorted set: sessions by their last message (ms)
    {flow-engine}:chat::secret       string
    {tenant:chat-user:user}          counter of connections

Whatever touches one session is one script. The two sorted sets are in another slot: a session stands in the
first from before its message is taken until after its queue was found empty.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import structlog

from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports import chat
from memory.chat_in_process import Listeners
from memory.driver import Driver, Script, Subscription

INDEX_KEYS: Final = {"held": "{flow-engine}:chat::held", "active": "{flow-engine}:chat::active"}
SECRET_KEY: Final = "{flow-engine}:chat::secret"  # noqa: S105
MOST_AT_ONCE: Final = 100
TAKEN_WITHIN_MS: Final = 2_000
"""After a message was put nobody else looks for its session so long: the putter takes it."""

RECONNECT_S: Final = 0.5
_LOST: Final = -1
_UNBOUNDED: Final = 2**31

log: Any = structlog.get_logger("flow_engine.chat")


class RedisChat:
    """Implements the ports of `flow_engine/ports/chat.py` but the bus. `clock` gives seconds since 1970."""

    def __init__(self, driver: Driver, *, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._clock = clock
        self._session = Script.read("chat_session")
        self._index = Script.read("chat_index")
        self._value = Script.read("chat_value")

    # ChatSessions

    async def create(self, ref: chat.SessionRef, state: bytes) -> None:
        await self._driver.set(_keys(ref)["state"], state, lifetime_s=chat.KEPT_S)

    async def load(self, ref: chat.SessionRef) -> bytes | None:
        return await self._driver.get(_keys(ref)["state"])

    async def save(self, ref: chat.SessionRef, state: bytes, holder: str) -> None:
        _held(await self._run(ref, "save", holder=holder, payload=state))

    async def arrive(self, tenant_id: str, user: str) -> int:
        key = f"{{{_encode(tenant_id)}:chat-user:{_encode(user)}}}"
        arguments = {"operation": "count", "payload": "", "kept_s": chat.KEPT_S}
        return int(await self._driver.run(self._value, {"value": key}, arguments))

    async def secret(self) -> bytes:
        arguments = {"operation": "keep", "payload": secrets.token_bytes(32), "kept_s": 0}
        return await self._driver.run(self._value, {"value": SECRET_KEY}, arguments)

    # ChatQueue

    async def put(
        self, ref: chat.SessionRef, message_id: str, message: bytes, *, bounded: bool = True
    ) -> chat.Put:
        limit = chat.MOST_WAITING if bounded else _UNBOUNDED
        await self._indexed("put", ref, until_ms=self._ms() + TAKEN_WITHIN_MS)
        outcome: bytes = await self._run(ref, "put", id=message_id, payload=message, limit=limit)
        return cast("chat.Put", outcome.decode())

    async def hold(self, ref: chat.SessionRef, holder: str) -> bool:
        lease_ms = round(chat.LEASE_S * 1000)
        if await self._run(ref, "hold", holder=holder, limit=lease_ms) != 1:
            return False
        await self._indexed("hold", ref, until_ms=self._ms() + lease_ms)
        return True

    async def head(self, ref: chat.SessionRef, holder: str) -> bytes | None:
        message = await self._run(ref, "head", holder=holder)
        _held(message)
        if message is None:
            await self._indexed("release", ref)
            if await self._run(ref, "waits") == 1:  # a message came between the two steps, and is to be found
                await self._indexed("hold", ref, until_ms=self._ms() + TAKEN_WITHIN_MS)
        return message

    async def done(self, ref: chat.SessionRef, holder: str, state: bytes) -> None:
        _held(await self._run(ref, "done", holder=holder, payload=state))

    async def abandoned(self) -> Sequence[chat.SessionRef]:
        return [_ref(member) for member in await self._indexed("abandoned")]

    # ChatLine

    async def waiting(self, ref: chat.SessionRef) -> Sequence[bytes]:
        return await self._run(ref, "line")

    # ChatFrames

    async def append(self, ref: chat.SessionRef, frame: bytes, holder: str | None) -> int:
        topic = chat.frames_topic(ref)
        seq = await self._run(
            ref, "append", holder=holder or "", payload=frame, limit=chat.FRAMES_KEPT, topic=topic
        )
        _held(seq)
        return int(seq)

    async def after(self, ref: chat.SessionRef, seq: int) -> Sequence[chat.LoggedFrame]:
        found = await self._run(ref, "after", id=str(seq + 1))
        return [chat.LoggedFrame(int(entry.partition(b"-")[0]), fields[1]) for entry, fields in found]

    async def last(self, ref: chat.SessionRef) -> int:
        return int(await self._driver.hget(_keys(ref)["hold"], "seq") or 0)

    # IdleSessions

    async def idle(self, for_s: float) -> Sequence[chat.SessionRef]:
        found = await self._indexed("idle", until_ms=self._ms() - round(for_s * 1000))
        return [_ref(member) for member in found]

    async def forget(self, ref: chat.SessionRef) -> None:
        await self._indexed("forget", ref)

    async def _run(self, ref: chat.SessionRef, operation: str, **arguments: str | bytes | int) -> Any:
        unset = {"holder": "", "id": "", "payload": b"", "limit": 0, "topic": ""}
        every = {"operation": operation, "kept_s": chat.KEPT_S, **unset, **arguments}
        return await self._driver.run(self._session, _keys(ref), every)

    async def _indexed(self, operation: str, ref: chat.SessionRef | None = None, *, until_ms: int = 0) -> Any:
        arguments = {
            "operation": operation,
            "member": "" if ref is None else f"{_encode(ref.tenant_id)} {_encode(ref.session_id)}",
            "now_ms": self._ms(),
            "until_ms": until_ms,
            "at_most": MOST_AT_ONCE,
            "again_ms": round(chat.LEASE_S * 1000),
        }
        return await self._driver.run(self._index, INDEX_KEYS, arguments)

    def _ms(self) -> int:
        return round(self._clock() * 1000)


class RedisBus:
    """Implements `ChatBus` by publish and subscribe, with one connection for all topics of a process.

    While that connection is away messages are lost; it is made again, with every topic. Messages are bytes.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._subscription: Subscription = driver.subscription()
        self._listeners = Listeners()
        self._reading: asyncio.Task[None] | None = None

    async def publish(self, topic: str, message: bytes) -> None:
        await self._driver.publish(topic, message)

    async def listen(self, topic: str, listener: chat.Listener) -> None:
        self._listeners.add(topic, listener)
        # Also where others listen already: they may still wait for the server to know of it.
        await self._subscription.subscribe(topic)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    async def unlisten(self, topic: str, listener: chat.Listener) -> None:
        if self._listeners.remove(topic, listener):
            with contextlib.suppress(RetryLater):  # a server that is away tells nobody
                await self._subscription.unsubscribe(topic)

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._subscription.close()

    async def _read(self) -> None:
        outage = Outage(log, "bus_away", "bus_back")
        while True:
            try:
                message = await self._subscription.next(within_s=1.0)
            except (RetryLater, CallTheOperator) as away:
                outage.met(away)
                await asyncio.sleep(RECONNECT_S)
                continue
            outage.ended()
            if message is not None:
                self._listeners.tell(*message)


@lru_cache(maxsize=4096)
def _keys(ref: chat.SessionRef) -> Mapping[str, str]:
    tag = f"{{{_encode(ref.tenant_id)}:chat:{_encode(ref.session_id)}}}"
    return {name: f"{tag}::{name}" for name in ("state", "hold", "frames", "queue", "seen")}


def _ref(member: bytes) -> chat.SessionRef:
    tenant_id, session_id = member.decode().split(" ")
    return chat.SessionRef(unquote(tenant_id), unquote(session_id))


def _encode(part: str) -> str:
    return quote(part, safe="")


def _held(outcome: object) -> None:
    if outcome == _LOST:
        raise chat.LeaseLost
