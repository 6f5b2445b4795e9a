"""Whether a Redis may hold conversations (F44): it must not evict, and must be as durable as asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flow_engine.errors import CallTheOperator

DURABILITY_LEVELS: Mapping[str, str] = {
    "none": "nothing is asked: conversations may be lost with the server",
    "aof": "append only file, synced at least every second",
    "always": "append only file, synced before every reply",
}


async def check_safety(client: Any, durability: str) -> None:
    """Raises CallTheOperator `redis_unsafe`, naming every setting to change."""
    problems: list[str] = []
    policy = str((await client.info("memory"))["maxmemory_policy"])
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}, it must be noeviction")
    if durability != "none":
        if not int((await client.info("persistence"))["aof_enabled"]):
            problems.append("appendonly is no, it must be yes")
        elif (sync := await _setting(client, "appendfsync")) in ("no", *_weaker_than(durability)):
            problems.append(f"appendfsync is {sync}, durability {durability!r} needs more")
    if problems:
        raise CallTheOperator(
            "redis_unsafe",
            "Redis would lose conversations: "
            + "; ".join(problems)
            + ". Set FLOW_ENGINE_REDIS_UNSAFE=true to start all the same",
        )


def _weaker_than(durability: str) -> tuple[str, ...]:
    return ("everysec",) if durability == "always" else ()


async def _setting(client: Any, name: str) -> str | None:
    answer = await client.config_get(name)
    value = answer.get(name)
    return value.decode() if isinstance(value, bytes) else value
