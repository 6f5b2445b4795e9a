"""`Driver` on redis-py's asyncio clients: one server, or a cluster.

The only module that knows redis-py and its errors. Its clients have no common type that pyright could
check, so `client` is untyped here, and here only.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from flow_engine.errors import CallTheOperator, RetryLater
from memory.driver import Script, ServerState, Subscription

CONNECTIONS = 512  # redis-py's default of 100 fails beyond it instead of waiting
ANSWER_WITHIN_S = 2.0
REPLICATED_WITHIN_MS = 1_000
SCANNED_AT_ONCE = 1_000
CONFIRMATION_LIFETIME_S = 60

_AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    exceptions.ClusterDownError,
    exceptions.RedisClusterException,  # no node of the cluster answers: no kind of ConnectionError
    exceptions.TryAgainError,
)
_REFUSING_WRITES = (exceptions.OutOfMemoryError, exceptions.ReadOnlyError)
# redis-py has no class for these: the disk is full, too few replicas, a script that runs too long.
# A connection that another task has closed: what redis-py's attribute, and uvloop's stream, say then.
_CLOSED = ("'NoneType' object has no attribute", "the handler is closed")
# Of a password where none is needed; of a command that is too long for who has given none.
_UNAUTHENTICATED = ("without any password configured", "Protocol error: unauthenticated")
# Then it closes the connection; redis-py alone has a class for it.
_FULL = "max number of clients"
_NO_CLUSTER = "Cluster mode is not enabled"
# Of a command that was renamed: what follows may be the password, or a person's.
_BEFORE_ARGUMENTS = ", with args beginning with"
# So begins what a script's command is refused with: it has no code.
_BY_SCRIPT = "The user executing the script can't"
_REFUSING_CODES = ("MISCONF", "NOREPLICAS", "BUSY")
TRANSLATED = (exceptions.RedisError, exceptions.RedisClusterException, AttributeError, RuntimeError)
"""What `translate` looks at."""


def translate(error: BaseException) -> None:
    """Raise what `Driver` names for an error of redis-py, or of whoever raises them in its place. Any other
    is let be. No argument of a command stays in its text, which operators are told."""
    told, cut, _ = str(error).partition(_BEFORE_ARGUMENTS)
    if cut:
        error.args = (told,)
    closed = isinstance(error, (AttributeError, RuntimeError)) and any(s in str(error) for s in _CLOSED)
    # A cluster that nobody may ask wraps what its nodes say.
    if any(_is_unauthenticated(each) for each in (error, error.__cause__)):
        raise RetryLater("memory_unavailable", "Redis does not take the user or password") from error
    if isinstance(error, exceptions.BusyLoadingError):
        raise RetryLater("memory_unavailable", "Redis is loading its data") from error
    if isinstance(error, exceptions.RedisClusterException) and _NO_CLUSTER in str(error):
        told = "Redis is no cluster, and is asked as one with FLOW_ENGINE_REDIS_CLUSTER=true"
        raise CallTheOperator("memory_refused", told) from error
    if closed or isinstance(error, _AWAY) or _FULL in str(error):
        raise RetryLater("memory_unavailable", "the conversation memory does not answer") from error
    if not isinstance(error, exceptions.RedisError):
        return
    if isinstance(error, exceptions.NoPermissionError) or _BY_SCRIPT in str(error):
        lacks = "Redis' user lacks permission for a command, a key or a channel"
        raise CallTheOperator("memory_refused", lacks) from error
    if "DB index is out of range" in str(error):
        raise CallTheOperator("memory_refused", "Redis has no database of that number") from error
    code = str(error).split(" ")[0]
    if isinstance(error, _REFUSING_WRITES) or code in _REFUSING_CODES:
        refused = "the conversation memory takes no writes now"
        raise RetryLater("memory_unavailable", refused, after_seconds=5) from error
    if "WRONGTYPE" in str(error):
        foreign = "a key of the conversation memory holds another type: it was overwritten"
        raise CallTheOperator("memory_unreadable", foreign) from error
    named = f": {code}" if code.isupper() and code != "ERR" else ""
    raise CallTheOperator("memory_refused", f"Redis refuses a command{named}") from error


def _is_unauthenticated(error: BaseException | None) -> bool:
    return isinstance(error, exceptions.AuthenticationError) or (
        isinstance(error, exceptions.ResponseError) and any(text in str(error) for text in _UNAUTHENTICATED)
    )


class ErrorsTranslated:
    """A context which errors leave as by `translate`. It keeps nothing, so one serves all."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            translate(error)


ERRORS_TRANSLATED = ErrorsTranslated()


class RedisPyDriver:
    """Implements `Driver`. `wait_replicas` is how many replicas confirm a write that asks for it. Every error
    of the client becomes the core's."""

    def __init__(self, client: Any, *, wait_replicas: int = 0) -> None:
        self.client = client
        self.single_node = not isinstance(client, RedisCluster)
        self._wait_replicas = wait_replicas

    async def run(
        self, script: Script, keys: Mapping[str, str], args: Mapping[str, Any], *, confirmed: bool = False
    ) -> Any:
        number, packed = script.packed(keys, args)
        with ERRORS_TRANSLATED:
            if confirmed and self._wait_replicas:
                try:
                    return await self._replicated("EVALSHA", script.sha, number, *packed)
                except exceptions.NoScriptError:
                    return await self._replicated("EVAL", script.source, number, *packed)
            try:
                return await self.client.evalsha(script.sha, number, *packed)
            except exceptions.NoScriptError:
                return await self.client.eval(script.source, number, *packed)

    async def confirm(self, key: str) -> None:
        if self._wait_replicas:
            with ERRORS_TRANSLATED:
                await self._replicated("SET", key, b"", "EX", CONFIRMATION_LIFETIME_S)

    async def _replicated(self, *command: Any) -> Any:
        """WAIT counts for the writes of its own connection only, so both go through one."""
        wait = ("WAIT", self._wait_replicas, REPLICATED_WITHIN_MS)
        pipe = self.client.pipeline(transaction=False) if self.single_node else self.client.pipeline()
        async with pipe:
            pipe.execute_command(*command)
            if self.single_node:
                pipe.execute_command(*wait)
            else:
                key = command[3] if command[0].startswith("EVAL") else command[1]
                if not self.client.get_primaries():
                    await self.client.initialize()
                pipe.execute_command(*wait, target_nodes=self.client.get_node_from_key(key))
            answer, replicas = await pipe.execute(raise_on_error=False)
        for reply in (answer, replicas):
            if isinstance(reply, Exception):
                raise reply
        if replicas < self._wait_replicas:
            raise RetryLater(
                "memory_not_replicated",
                f"only {replicas} of {self._wait_replicas} replicas have the write",
            )
        return answer

    async def get(self, key: str) -> bytes | None:
        with ERRORS_TRANSLATED:
            return await self.client.get(key)

    async def set(self, key: str, value: bytes, *, lifetime_s: int) -> None:
        with ERRORS_TRANSLATED:
            await self.client.set(key, value, ex=lifetime_s)

    async def expire(self, key: str, lifetime_s: int) -> bool:
        with ERRORS_TRANSLATED:
            return bool(await self.client.expire(key, lifetime_s))

    async def delete(self, keys: Sequence[str]) -> None:
        with ERRORS_TRANSLATED:
            await self.client.delete(*keys)

    async def hget(self, key: str, field: str) -> bytes | None:
        with ERRORS_TRANSLATED:
            return await self.client.hget(key, field)

    async def hmget(self, key: str, fields: Sequence[str]) -> Sequence[bytes | None]:
        with ERRORS_TRANSLATED:
            return await self.client.hmget(key, fields)

    async def zadd(self, key: str, scores: Mapping[str, float], *, confirmed: bool = False) -> None:
        with ERRORS_TRANSLATED:
            if confirmed and self._wait_replicas:
                flat = [part for member, score in scores.items() for part in (score, member)]
                await self._replicated("ZADD", key, *flat)
            else:
                await self.client.zadd(key, scores)

    async def zrange(
        self, key: str, *, at_most: int, highest_first: bool = False
    ) -> Sequence[tuple[bytes, float]]:
        with ERRORS_TRANSLATED:
            found: list[Any] = await self.client.zrange(
                key, 0, at_most - 1, desc=highest_first, withscores=True
            )
        return [(member, score) for member, score in found]

    async def zcount(self, key: str, *, up_to: float = float("inf")) -> int:
        with ERRORS_TRANSLATED:
            return int(await self.client.zcount(key, "-inf", up_to))

    async def xrange(self, key: str, *, at_most: int) -> Sequence[tuple[str, Mapping[bytes, bytes]]]:
        with ERRORS_TRANSLATED:
            found: list[Any] = await self.client.xrange(key, count=at_most)
        return [(entry_id.decode(), fields) for entry_id, fields in found]

    async def xread(
        self, key: str, after: str, *, at_most: int, within_s: float
    ) -> Sequence[tuple[str, Mapping[bytes, bytes]]]:
        with ERRORS_TRANSLATED:
            found: Any = await self.client.xread({key: after}, count=at_most, block=round(within_s * 1000))
        return [(entry_id.decode(), fields) for _, entries in found for entry_id, fields in entries]

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        with ERRORS_TRANSLATED:
            async for key in self.client.scan_iter(match=pattern, count=SCANNED_AT_ONCE):
                yield key.decode()

    async def publish(self, channel: str, message: bytes) -> None:
        with ERRORS_TRANSLATED:
            await self.client.publish(channel, message)

    def subscription(self) -> Subscription:
        return RedisPySubscription(self.client.pubsub(ignore_subscribe_messages=True))

    async def ping(self) -> None:
        with ERRORS_TRANSLATED:
            await self.client.ping()

    async def servers(self, away: Callable[[str], None] | None = None) -> Sequence[ServerState]:
        with ERRORS_TRANSLATED:
            if self.single_node:
                return await self._seen([await self._state("", {})])
            await self.client.initialize()
        states: list[ServerState] = []
        silent: RetryLater | None = None
        for node in self.client.get_primaries():
            try:
                with ERRORS_TRANSLATED:
                    states.append(await self._state(node.name, {"target_nodes": node}))
            except RetryLater as error:
                if away is None:
                    raise RetryLater(error.code, f"{error.detail} ({node.name})") from error.__cause__
                silent = error
                away(node.name)
        if silent is not None and not states:
            raise silent
        return await self._seen(states)

    async def _seen(self, states: Sequence[ServerState]) -> Sequence[ServerState]:
        """After a failover the one before may live on, as a replica: what is asked next asks for its like."""
        if any(state.is_replica for state in states):
            with ERRORS_TRANSLATED:
                await self.reconnect()
        return states

    async def reconnect(self) -> None:
        """To whom the address, or the cluster, names now."""
        if self.single_node:
            await self.client.connection_pool.disconnect(inuse_connections=False)
        else:
            await self.client.nodes_manager.initialize()

    async def _state(self, name: str, target: Mapping[str, Any]) -> ServerState:
        info: dict[str, Any] = {}
        for section in ("memory", "persistence", "replication", "cluster"):
            info |= await self.client.info(section, **target)
        if self.single_node and info.get("cluster_enabled"):
            told = "Redis is a node of a cluster, and is asked as one with FLOW_ENGINE_REDIS_CLUSTER=true"
            raise CallTheOperator("memory_refused", told)
        if "role" not in info:
            told = "a Sentinel was asked, which keeps nothing; name Redis itself, or a proxy to its primary"
            raise CallTheOperator("memory_refused", told)
        if info.get("loading"):  # it says that it keeps no append only file, until it has read that
            raise exceptions.BusyLoadingError
        covers = True
        if not self.single_node:
            covers = (await self.client.cluster_info(**target))["cluster_state"] == "ok"
        rewriting = await self._setting("no-appendfsync-on-rewrite", target)
        return ServerState(
            name=name,
            is_replica=info["role"] != "master",
            eviction_policy=str(info["maxmemory_policy"]),
            memory_used=int(info["used_memory"]),
            memory_limit=int(info["maxmemory"]),
            appends=bool(int(info["aof_enabled"])),
            sync=await self._setting("appendfsync", target),
            syncs_while_rewriting=None if rewriting is None else rewriting == "no",
            covers=covers,
        )

    async def _setting(self, name: str, target: Mapping[str, Any]) -> str | None:
        try:
            answer = await self.client.config_get(name, **target)
        except exceptions.ResponseError:  # hosted servers do not let everybody read their settings
            return None
        value = answer[name]
        return value.decode() if isinstance(value, bytes) else value

    async def close(self) -> None:
        await self.client.aclose()


class RedisPySubscription:
    """Implements `Subscription`. `pubsub` connects again by itself when it is read the next time."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    async def subscribe(self, channel: str) -> None:
        with ERRORS_TRANSLATED:
            await self._pubsub.subscribe(channel)

    async def unsubscribe(self, channel: str) -> None:
        with ERRORS_TRANSLATED:
            await self._pubsub.unsubscribe(channel)

    async def next(self, *, within_s: float) -> tuple[str, bytes] | None:
        with ERRORS_TRANSLATED:
            message = await self._pubsub.get_message(timeout=within_s)
        return None if message is None else (message["channel"].decode(), message["data"])

    async def close(self) -> None:
        await self._pubsub.aclose()


def check_url(url: str) -> None:
    """Raises ValueError for a URL that redis-py does not take, without what stands in it but the name of an
    option. Nothing is connected."""
    try:
        Redis.from_url(url).connection_pool.make_connection()
    except TypeError as error:  # as any call with an argument too many
        _, quote, rest = str(error).partition("'")
        raise ValueError(f"there is no option {quote}{rest}") from None
    except exceptions.RedisError:
        raise ValueError("an option has a value that redis-py does not take") from None


def driver_to(url: str, *, cluster: bool, wait_replicas: int) -> RedisPyDriver:
    """Connects when it is first used. `url` is redis:// or rediss://."""
    options: dict[str, Any] = {
        "max_connections": CONNECTIONS,
        "socket_timeout": ANSWER_WITHIN_S,
        "socket_connect_timeout": ANSWER_WITHIN_S,
        "retry": Retry(NoBackoff(), 0),
        # While these are enabled redis-py does not see that a pooled connection was closed, and every
        # one of them fails a request after Redis has restarted.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    client: Any = RedisCluster.from_url(url, **options) if cluster else Redis.from_url(url, **options)
    return RedisPyDriver(client, wait_replicas=wait_replicas)
