"""Lua scripts, which stand beside this module in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, Protocol

from redis.exceptions import NoScriptError


class ScriptRunner(Protocol):
    """The part of a redis-py asyncio client, standalone or cluster, that runs scripts."""

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...


class Script:
    """Sent by its hash; sent whole when the server does not know it, as after a restart."""

    def __init__(self, sha: str, source: str) -> None:
        self._sha = sha
        self._source = source

    @classmethod
    def read(cls, name: str) -> Script:
        source = (Path(__file__).parent / f"{name}.lua").read_text(encoding="utf-8")
        return cls(sha1(source.encode(), usedforsecurity=False).hexdigest(), source)

    async def run(self, redis: ScriptRunner, keys: Sequence[str], args: Sequence[bytes | str | int]) -> Any:
        try:
            return await redis.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            return await redis.eval(self._source, len(keys), *keys, *args)
