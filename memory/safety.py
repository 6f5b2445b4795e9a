"""Whether a Redis may hold conversations (F44): it must not evict, and must be as durable as asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from flow_engine.errors import CallTheOperator, RetryLater
from memory.driver import Driver, ServerState

Durability = Literal["none", "aof", "always"]

_STRONG_ENOUGH: Mapping[Durability, tuple[str, ...]] = {"aof": ("everysec", "always"), "always": ("always",)}


async def check_safety(driver: Driver, durability: Durability) -> None:
    """Raises CallTheOperator `redis_unsafe`, naming every setting to change.

    `none` asks for nothing: conversations may be lost with the server. `aof` asks for an append only file
    that is synced at least every second, `always` for one that is synced before every reply.
    """
    problems = [
        f"{problem} ({server.name})" if server.name else problem
        for server in await driver.servers()
        for problem in _losses(server, durability)
    ]
    if problems:
        raise CallTheOperator(
            "redis_unsafe",
            "Redis would lose conversations: "
            + "; ".join(problems)
            + ". Set FLOW_ENGINE_REDIS_UNSAFE=true to start all the same",
        )


async def check_readiness(driver: Driver, durability: Durability | None) -> None:
    """Raises RetryLater `memory_unavailable` while a server would refuse or lose a write.

    Without `durability`, as with FLOW_ENGINE_REDIS_UNSAFE, only refusals count.
    """
    problems: list[str] = []
    for server in await driver.servers():
        found = [*_refusals(server), *(() if durability is None else _losses(server, durability))]
        problems += [f"{problem} ({server.name})" if server.name else problem for problem in found]
    if problems:
        raise RetryLater(
            "memory_unavailable", "the conversation memory is not safe now: " + "; ".join(problems)
        )


def _refusals(server: ServerState) -> Iterator[str]:
    if server.is_replica:
        yield "it is a replica and takes no writes"
    if server.memory_limit and server.memory_used >= server.memory_limit:
        yield "it is out of memory"
    if not server.covers:
        yield "some slots of the cluster are served by nobody"


def _losses(server: ServerState, durability: Durability) -> Iterator[str]:
    if server.eviction_policy != "noeviction":
        yield f"maxmemory-policy is {server.eviction_policy}, it must be noeviction"
    if durability == "none":
        return
    if not server.appends:
        yield "appendonly is no, it must be yes"
        return
    if server.sync is None:
        yield "appendfsync cannot be read, CONFIG is refused"
    elif server.sync not in _STRONG_ENOUGH[durability]:
        yield f"appendfsync is {server.sync}, durability {durability!r} needs more"
    if durability == "always" and server.syncs_while_rewriting is False:
        yield "no-appendfsync-on-rewrite is yes, durability 'always' needs no"
