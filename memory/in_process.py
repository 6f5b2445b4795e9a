"""Redis inside this process, gone with it: the embedded default, on fakeredis.

Nothing else knows fakeredis, which takes longer to load than all the rest of this package.
"""

from collections.abc import Callable, Sequence

from fakeredis import FakeAsyncRedis, FakeServer

from memory.connection import RedisMemory
from memory.driver import ServerState
from memory.redis_py import ERRORS_TRANSLATED, RedisPyDriver


class DriverInProcess(RedisPyDriver):
    """Implements `Driver` on a server in this process. It names no server: nothing of it can be set wrong."""

    async def servers(self, away: Callable[[str], None] | None = None) -> Sequence[ServerState]:
        with ERRORS_TRANSLATED:
            await self.client.ping()
            return ()


UNBOUNDED = 2**31
"""A connection inside the process is a few objects: none has to wait for another, nor to fail."""


def embedded(server: FakeServer | None = None) -> RedisMemory:
    """The stores on a Redis of their own, or on `server` to share it between connections."""
    client = FakeAsyncRedis(server=server or FakeServer(), max_connections=UNBOUNDED)
    return RedisMemory.on(DriverInProcess(client))
