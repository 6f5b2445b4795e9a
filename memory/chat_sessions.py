"""Sessions of the chat on Redis, for any number of replicas.

    {tenant:chat:session}::state     string: what the chat knows, JSON
    {tenant:chat:session}::hold      hash: holder, until (ms since 1970), seq
    {tenant:chat:session}::frames    stream: the newest frames, entry `<seq>-0`, field `frame`
    {tenant:chat:session}::queue     list: messages that wait, the oldest is being answered
    {tenant:chat:session}::seen      set: ids of messages
    {flow-engine}:chat::held         sorted set: sessions with a holder, by when its lease ends (ms)
    {flow-engine}:chat::active       sorted set: sessions by their last message (ms)
    {flow-engine}:chat::secret       string
    {tenant:chat-user:user}          counter of connections

Whatever touches one session is one script. The two sorted sets are in another slot: they are written before
the lease is taken and after it is given back, so that a session that is held is always in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import structlog
from redis.exceptions import RedisError

from flow_engine.ports.chat import (
    FRAMES_KEPT,
    KEPT_S,
    LEASE_S,
    MOST_WAITING,
    LeaseLost,
    Listener,
    LoggedFrame,
    Put,
    SessionRef,
    frames_topic,
)
from memory.script import Script
from memory.translate import store_errors_translated

HELD_KEY: Final = "{flow-engine}:chat::held"
ACTIVE_KEY: Final = "{flow-engine}:chat::active"
SECRET_KEY: Final = "{flow-engine}:chat::secret"  # noqa: S105
MOST_AT_ONCE: Final = 100
RECONNECT_S: Final = 0.5

_SCRIPT: Final = Script.read("chat_sessions")
_LOST: Final = -1

log: Any = structlog.get_logger("flow_engine.chat")


class RedisChat:
    """Implements the ports of `flow_engine/ports/chat.py` but the bus. `client` is an asyncio client of
    redis-py; `clock` gives seconds since 1970."""

    def __init__(self, client: Any, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock

    # ChatSessions

    async def create(self, ref: SessionRef, state: bytes) -> None:
        with store_errors_translated():
            await self._client.set(_keys(ref)[0], state, ex=KEPT_S)

    async def load(self, ref: SessionRef) -> bytes | None:
        with store_errors_translated():
            return await self._client.get(_keys(ref)[0])

    async def save(self, ref: SessionRef, state: bytes, holder: str) -> None:
        _held(await self._run(ref, "save", holder, state))

    async def arrive(self, tenant_id: str, user: str) -> int:
        key = f"{{{_encode(tenant_id)}:chat-user:{_encode(user)}}}"
        with store_errors_translated():
            number = await self._client.incr(key)
            await self._client.expire(key, KEPT_S)
        return int(number)

    async def secret(self) -> bytes:
        with store_errors_translated():
            await self._client.set(SECRET_KEY, secrets.token_bytes(32), nx=True)
            return await self._client.get(SECRET_KEY)

    # ChatQueue

    async def put(self, ref: SessionRef, message_id: str, message: bytes) -> Put:
        outcome = await self._run(ref, "put", message_id, message, MOST_WAITING)
        if outcome == b"queued":
            # Due at once: should nobody take it, the next look for abandoned sessions finds it.
            with store_errors_translated():
                await self._client.zadd(HELD_KEY, {_member(ref): self._ms() + 2_000}, nx=True)
                await self._client.zadd(ACTIVE_KEY, {_member(ref): self._ms()})
        return cast("Put", outcome.decode())

    async def hold(self, ref: SessionRef, holder: str) -> bool:
        if await self._run(ref, "hold", holder, round(LEASE_S * 1000)) != 1:
            return False
        with store_errors_translated():
            await self._client.zadd(HELD_KEY, {_member(ref): self._ms() + LEASE_S * 1000})
        return True

    async def head(self, ref: SessionRef, holder: str) -> bytes | None:
        message = await self._run(ref, "head", holder)
        if message is None:
            with store_errors_translated():
                await self._client.zrem(HELD_KEY, _member(ref))
                # A message that was put meanwhile has found no place in the set.
                if await self._client.llen(_keys(ref)[3]):
                    await self._client.zadd(HELD_KEY, {_member(ref): self._ms() + 500}, nx=True)
            return None
        _held(message)
        return message

    async def done(self, ref: SessionRef, holder: str) -> None:
        _held(await self._run(ref, "done", holder))
        with store_errors_translated():
            await self._client.zadd(ACTIVE_KEY, {_member(ref): self._ms()})

    async def abandoned(self) -> Sequence[SessionRef]:
        with store_errors_translated():
            found = await self._client.zrangebyscore(HELD_KEY, 0, self._ms(), start=0, num=MOST_AT_ONCE)
        return [_ref(member) for member in found]

    # ChatFrames

    async def append(self, ref: SessionRef, frame: bytes, holder: str | None) -> int:
        seq = await self._run(ref, "append", holder or "", frame, FRAMES_KEPT, frames_topic(ref))
        _held(seq)
        return int(seq)

    async def after(self, ref: SessionRef, seq: int) -> Sequence[LoggedFrame]:
        with store_errors_translated():
            found = await self._client.xrange(_keys(ref)[2], min=f"{seq + 1}-0")
        return [LoggedFrame(int(entry.partition(b"-")[0]), fields[b"frame"]) for entry, fields in found]

    async def last(self, ref: SessionRef) -> int:
        with store_errors_translated():
            return int(await self._client.hget(_keys(ref)[1], "seq") or 0)

    # IdleSessions

    async def idle(self, for_s: float) -> Sequence[SessionRef]:
        before = self._ms() - for_s * 1000
        with store_errors_translated():
            found = await self._client.zrangebyscore(ACTIVE_KEY, 0, before, start=0, num=MOST_AT_ONCE)
            return [_ref(member) for member in found if await self._client.zrem(ACTIVE_KEY, member)]

    async def _run(self, ref: SessionRef, operation: str, *arguments: bytes | str | int) -> Any:
        with store_errors_translated():
            return await _SCRIPT.run(self._client, _keys(ref), [operation, KEPT_S, *arguments])

    def _ms(self) -> int:
        return round(self._clock() * 1000)


class RedisBus:
    """Implements `ChatBus` by publish and subscribe, with one connection for all topics of a process.

    While that connection is away messages are lost; it is made again, with every topic.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pubsub: Any = client.pubsub(ignore_subscribe_messages=True)
        self._listeners: dict[str, list[Listener]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def publish(self, topic: str, message: bytes) -> None:
        with store_errors_translated():
            await self._client.publish(topic, message)

    async def listen(self, topic: str, listener: Listener) -> None:
        listeners = self._listeners.setdefault(topic, [])
        listeners.append(listener)
        if len(listeners) == 1:
            with store_errors_translated():
                await self._pubsub.subscribe(topic)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    async def unlisten(self, topic: str, listener: Listener) -> None:
        listeners = self._listeners.get(topic, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners and self._listeners.pop(topic, None) is not None:
            with store_errors_translated():
                await self._pubsub.unsubscribe(topic)

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._pubsub.aclose()

    async def _read(self) -> None:
        while True:
            try:
                message = await self._pubsub.get_message(timeout=1.0)
            except (RedisError, OSError) as error:
                log.warning("bus_away", reason=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.connect()
                continue
            if message is None:
                continue
            topic, data = message["channel"].decode(), message["data"]
            for listener in tuple(self._listeners.get(topic, ())):
                listener(data)


def _keys(ref: SessionRef) -> tuple[str, ...]:
    tag = f"{{{_encode(ref.tenant_id)}:chat:{_encode(ref.session_id)}}}"
    return tuple(f"{tag}::{name}" for name in ("state", "hold", "frames", "queue", "seen"))


def _member(ref: SessionRef) -> str:
    return f"{_encode(ref.tenant_id)} {_encode(ref.session_id)}"


def _ref(member: bytes) -> SessionRef:
    tenant_id, session_id = member.decode().split(" ")
    return SessionRef(unquote(tenant_id), unquote(session_id))


def _encode(part: str) -> str:
    return quote(part, safe="")


def _held(outcome: object) -> None:
    if outcome == _LOST:
        raise LeaseLost
