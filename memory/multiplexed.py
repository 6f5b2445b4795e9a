"""`Driver` on one connection for all requests of a process: what a turn of the loop asks leaves in one write.

Scripts and the other commands of the agents' requests go through it; what is rare, blocks or waits for
replicas has connections of redis-py. A subscription has a connection of its own. The protocol's parser is
hiredis, what is sent is written by `script_calls`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis
from redis import exceptions
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from memory.driver import KeyNames, Script, Subscription
from memory.redis_py import ANSWER_WITHIN_S, ERRORS_TRANSLATED, TRANSLATED, RedisPyDriver, translate
from memory.script_calls import evaluation, pack

LOOKED_AGAIN_AFTER_S = 0.1

Command = tuple[Any, ...] | bytes
"""In its parts, or as it is sent."""

_ERRORS: Mapping[str, type[exceptions.RedisError]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.BusyLoadingError,
    "MOVED": exceptions.MovedError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "WRONGPASS": exceptions.AuthenticationError,
}


def _error(text: str) -> exceptions.RedisError:
    code, _, rest = text.partition(" ")
    known = _ERRORS.get(code)
    return exceptions.ResponseError(text) if known is None else known(rest)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and who asks. `database` is its number."""

    host: str
    port: int
    user: str | None
    password: str | None
    database: int

    @classmethod
    def of(cls, url: str) -> Address | None:
        """None for a URL that only redis-py understands: TLS, a socket's path, options."""
        parts = urlsplit(url)
        path = parts.path.strip("/")
        if parts.scheme != "redis" or parse_qs(parts.query) or not (path.isdigit() or not path):
            return None
        user, password = (
            None if part is None else unquote(part) for part in (parts.username, parts.password)
        )
        return cls(parts.hostname or "localhost", parts.port or 6379, user or None, password, int(path or 0))

    def greeting(self) -> Sequence[tuple[str, ...]]:
        """The commands that open a connection."""
        commands: list[tuple[str, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", *([] if self.user is None else [self.user]), self.password))
        if self.database:
            commands.append(("SELECT", str(self.database)))
        return commands


class Connection(asyncio.Protocol):
    """Commands in order, answers in order. Once it is lost it stays so, and every command that has no answer
    yet raises redis-py's ConnectionError: nobody knows whether it took effect."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_error, protocolError=RedisConnectionError)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, command: Command) -> asyncio.Future[Any]:
        """The answer, or redis-py's exceptions. A caller that waits no longer cancels its future alone."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost:
            future.set_exception(RedisConnectionError("the connection is closed"))
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(command if isinstance(command, bytes) else pack(command))
        self._waiting.append((future, self._loop.time() + ANSWER_WITHIN_S))
        if self._watch is None:
            self._watch = self._loop.call_later(ANSWER_WITHIN_S, self._overdue)
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.lost:
            self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                self._take(answer)
        except (RedisConnectionError, IndexError):  # no protocol, or an answer that nobody asked for
            self._lose(RedisConnectionError("Redis does not keep to its protocol"))

    def _take(self, answer: Any) -> None:
        future, _ = self._waiting.popleft()
        if future.done():
            return
        if isinstance(answer, exceptions.RedisError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _overdue(self, looked_again_for: asyncio.Future[Any] | None = None) -> None:
        """One timer for all: the oldest answer decides. A server that is late holds up all that follow.

        It is looked at twice: after the process itself was held up, the answer may be there unread.
        """
        self._watch = None
        if not self._waiting:
            return
        oldest, deadline = self._waiting[0]
        left = deadline - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._overdue)
        elif oldest is looked_again_for:
            self._lose(RedisTimeoutError("no answer in time"))
        else:
            self._watch = self._loop.call_later(LOOKED_AGAIN_AFTER_S, self._overdue, oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(RedisConnectionError("the connection was cut"))

    def _lose(self, error: exceptions.RedisError) -> None:
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        self._lose(RedisConnectionError("the connection was closed"))


class Node:
    """One server, connected when it is first asked, and again after a loss."""

    def __init__(self, address: Address, protocol: Callable[[], Connection] = Connection) -> None:
        self.address = address
        self._protocol = protocol
        self._connection: Connection | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._failures = 0

    def open_connection(self) -> Connection | None:
        connection = self._connection
        return None if connection is None or connection.lost else connection

    async def connection(self) -> Connection:
        """Raises redis-py's ConnectionError or TimeoutError: then nothing was sent."""
        return self.open_connection() or await self._connected()

    async def _connected(self) -> Connection:
        """Who waits while another connects fails with it: else each would wait out the time of all before."""
        failures = self._failures
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                if self._failures != failures:
                    raise RedisConnectionError("no connection: another has just waited for one in vain")
                try:
                    async with asyncio.timeout(ANSWER_WITHIN_S):
                        loop = asyncio.get_running_loop()
                        _, connection = await loop.create_connection(
                            self._protocol, self.address.host, self.address.port
                        )
                        with ExitStack() as unfinished:
                            unfinished.callback(connection.close)
                            await asyncio.gather(
                                *(connection.send(command) for command in self.address.greeting())
                            )
                            unfinished.pop_all()
                        self._connection = connection
                except TimeoutError as error:
                    self._failures += 1
                    raise RedisTimeoutError("no connection in time") from error
                except OSError as error:
                    self._failures += 1
                    raise RedisConnectionError(f"no connection: {error}") from error
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class ListeningConnection(Connection):
    """A connection that subscribes: `heard` gets what is published, oldest first, and `news` is set when it
    has grown, or the connection is lost."""

    def __init__(self, heard: deque[tuple[str, bytes]], news: asyncio.Event) -> None:
        super().__init__()
        self._heard = heard
        self._news = news

    def _take(self, answer: Any) -> None:
        match answer:
            case [b"message", bytes() as channel, bytes() as message]:
                self._heard.append((channel.decode(), message))
                self._news.set()
            case _:
                super()._take(answer)

    def _lose(self, error: exceptions.RedisError) -> None:
        super()._lose(error)
        self._news.set()


class MultiplexedSubscription:
    """Implements `Subscription`: a channel is heard from when `subscribe` returns. A server that is silent is
    asked whether it is there each time that nothing came. `addresses` are those of servers of which each
    hears everything; the first that can be reached is listened to."""

    def __init__(self, addresses: Callable[[], Iterable[Address]]) -> None:
        self._addresses = addresses
        self._channels: set[str] = set()
        self._heard: deque[tuple[str, bytes]] = deque()
        self._news = asyncio.Event()
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def subscribe(self, channel: str) -> None:
        self._channels.add(channel)
        with ERRORS_TRANSLATED:
            await (await self._connected()).send(("SUBSCRIBE", channel))

    async def unsubscribe(self, channel: str) -> None:
        self._channels.discard(channel)
        if self._connection is not None and not self._connection.lost:
            with ERRORS_TRANSLATED:
                await self._connection.send(("UNSUBSCRIBE", channel))

    async def next(self, *, within_s: float) -> tuple[str, bytes] | None:
        if not self._heard:
            with ERRORS_TRANSLATED:
                self._news.clear()
                connection = await self._connected()
                try:
                    async with asyncio.timeout(within_s):
                        await self._news.wait()
                except TimeoutError:
                    await connection.send(("PING",))
        return self._heard.popleft() if self._heard else None

    async def _connected(self) -> Connection:
        """With every channel, also where it is another one than before."""
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                failure: Exception = RedisConnectionError("no server is known")
                for address in tuple(self._addresses()):
                    node = Node(address, lambda: ListeningConnection(self._heard, self._news))
                    try:
                        connection = await node.connection()
                        break
                    except (RedisConnectionError, RedisTimeoutError) as error:
                        failure = error
                else:
                    raise failure
                with ExitStack() as unfinished:
                    unfinished.callback(connection.close)
                    await asyncio.gather(*(connection.send(("SUBSCRIBE", name)) for name in self._channels))
                    unfinished.pop_all()
                self._connection = connection
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class MultiplexedDriver(RedisPyDriver):
    """Implements `Driver` for one server. Raises as `Driver` does. A lost connection is opened again by the
    next command."""

    def __init__(self, address: Address, client: Any, *, wait_replicas: int = 0) -> None:
        super().__init__(client, wait_replicas=wait_replicas)
        self._node = Node(address)

    async def run(
        self, script: Script, keys: Mapping[str, str], args: Mapping[str, Any], *, confirmed: bool = False
    ) -> Any:
        if confirmed and self._wait_replicas:
            return await super().run(script, keys, args, confirmed=True)
        key = keys.tag if isinstance(keys, KeyNames) else keys[script.keys[0]]
        try:  # costs nothing where nothing is raised, as a context does
            return await self._send(key, evaluation("EVALSHA", script.sha, script, keys, args))
        except exceptions.NoScriptError:
            with ERRORS_TRANSLATED:
                return await self._send(key, evaluation("EVAL", script.source, script, keys, args))
        except TRANSLATED as error:
            translate(error)
            raise

    async def get(self, key: str) -> bytes | None:
        with ERRORS_TRANSLATED:
            return await self._send(key, ("GET", key))

    async def expire(self, key: str, lifetime_s: int) -> bool:
        with ERRORS_TRANSLATED:
            return bool(await self._send(key, ("EXPIRE", key, lifetime_s)))

    async def hget(self, key: str, field: str) -> bytes | None:
        with ERRORS_TRANSLATED:
            return await self._send(key, ("HGET", key, field))

    async def hmget(self, key: str, fields: Sequence[str]) -> Sequence[bytes | None]:
        with ERRORS_TRANSLATED:
            return await self._send(key, ("HMGET", key, *fields))

    async def zadd(self, key: str, scores: Mapping[str, float], *, confirmed: bool = False) -> None:
        if confirmed and self._wait_replicas:
            await super().zadd(key, scores, confirmed=True)
            return
        flat = [part for member, score in scores.items() for part in (score, member)]
        with ERRORS_TRANSLATED:
            await self._send(key, ("ZADD", key, *flat))

    async def xrange(self, key: str, *, at_most: int) -> Sequence[tuple[str, Mapping[bytes, bytes]]]:
        with ERRORS_TRANSLATED:
            found = await self._send(key, ("XRANGE", key, "-", "+", "COUNT", at_most))
        return [(id.decode(), dict(zip(flat[::2], flat[1::2], strict=True))) for id, flat in found]

    async def ping(self) -> None:
        with ERRORS_TRANSLATED:
            await self._send("", ("PING",))

    def subscription(self) -> Subscription:
        return MultiplexedSubscription(lambda: [self._node.address])

    async def reconnect(self) -> None:
        if self.single_node:  # the nodes of a cluster tell by MOVED who serves now
            self._node.close()
        await super().reconnect()

    def _send(self, key: str, command: Command) -> Awaitable[Any]:
        """The answer. `key` says which server of several it is for."""
        connection = self._node.open_connection()
        return self._connect_and_send(command) if connection is None else connection.send(command)

    async def _connect_and_send(self, command: Command) -> Any:
        return await (await self._node.connection()).send(command)

    async def close(self) -> None:
        self._node.close()
        await super().close()
