"""Whether a Redis may hold conversations (F44): it must not evict, and must be as durable as asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ResponseError

from flow_engine.errors import CallTheOperator

DURABILITY_LEVELS: Mapping[str, str] = {
    "none": "nothing is asked: conversations may be lost with the server",
    "aof": "append only file, synced at least every second",
    "always": "append only file, synced before every reply",
}
_STRONG_ENOUGH: Mapping[str, tuple[str, ...]] = {"aof": ("everysec", "always"), "always": ("always",)}


async def check_safety(client: Any, durability: str) -> None:
    """Raises CallTheOperator `redis_unsafe`, naming every setting to change."""
    if isinstance(client, RedisCluster):
        await client.initialize()
        nodes = client.get_primaries()
        problems = [
            f"{problem} ({node.name})"
            for node in nodes
            for problem in await _problems(client, durability, target_nodes=node)
        ]
    else:
        problems = await _problems(client, durability)
    if problems:
        raise CallTheOperator(
            "redis_unsafe",
            "Redis would lose conversations: "
            + "; ".join(problems)
            + ". Set FLOW_ENGINE_REDIS_UNSAFE=true to start all the same",
        )


async def _problems(client: Any, durability: str, **target: Any) -> list[str]:
    """Of one server: `target` names it on a cluster, where each has settings of its own."""
    problems: list[str] = []
    policy = str((await client.info("memory", **target))["maxmemory_policy"])
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}, it must be noeviction")
    if durability == "none":
        return problems
    if not int((await client.info("persistence", **target))["aof_enabled"]):
        problems.append("appendonly is no, it must be yes")
        return problems
    sync = await _appendfsync(client, **target)
    if sync is None:
        problems.append("appendfsync cannot be read, CONFIG is refused")
    elif sync not in _STRONG_ENOUGH[durability]:
        problems.append(f"appendfsync is {sync}, durability {durability!r} needs more")
    return problems


async def _appendfsync(client: Any, **target: Any) -> str | None:
    try:
        answer = await client.config_get("appendfsync", **target)
    except ResponseError:  # hosted servers do not let everybody read their settings
        return None
    value = answer["appendfsync"]
    return value.decode() if isinstance(value, bytes) else value
