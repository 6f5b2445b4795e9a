"""`Driver` on a Redis Cluster: one connection to each node for all requests of a process.

Which node serves a key is known from its slot. A node that serves it no more says who does (MOVED), or who
does for this one command (ASK): nothing was done then, so the command goes there. After a lost connection or
a move the slots are read anew beside the next command, at most every half second.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from memory.driver import Subscription
from memory.multiplexed import Address, Command, MultiplexedDriver, MultiplexedSubscription, Node

FOLLOWED = 5
"""Redirections of one command; then the cluster counts as away."""
SLOTS_READ_EVERY_S = 0.5

_Place = tuple[str, int]


class ClusterDriver(MultiplexedDriver):
    """Implements `Driver` for a Redis Cluster. `address` is that of any node. Raises as `Driver` does:
    RetryLater of slots that nobody serves, while others are served."""

    def __init__(self, address: Address, client: Any, *, wait_replicas: int = 0) -> None:
        super().__init__(address, client, wait_replicas=wait_replicas)
        self._address = address
        self._nodes: dict[_Place, Node] = {(address.host, address.port): self._node}
        self._serving: list[_Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._outdated = True
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def _send(self, key: str, command: Command) -> Any:
        slot = key_slot(key.encode())
        if self._outdated:
            loop = asyncio.get_running_loop()
            if (self._reading is None or self._reading.done()) and loop.time() >= self._read_at:
                self._read_at = loop.time() + SLOTS_READ_EVERY_S
                self._reading = loop.create_task(self._read_slots())
            reading = None if self._reading is None or self._reading.done() else self._reading
            if reading is not None and self._serving[slot] is None:
                await asyncio.shield(reading)
        place, asking = self._serving[slot], False
        for _ in range(FOLLOWED):
            if place is None:
                self._outdated = True
                raise exceptions.ClusterDownError("nobody serves the slot")
            try:
                if place not in self._nodes:
                    self._nodes[place] = Node(replace(self._address, host=place[0], port=place[1]))
                node = self._nodes[place]
                connection = node.open_connection() or await node.connection()
                if not asking:
                    return await connection.send(command)
                _, answer = await asyncio.gather(connection.send(("ASKING",)), connection.send(command))
                return answer
            except exceptions.MovedError as moved:
                place, asking = _named_by(moved, place), False
                self._serving[slot], self._outdated = place, True
            except exceptions.AskError as elsewhere:
                place, asking = _named_by(elsewhere, place), True
            except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError):
                self._outdated = True
                raise
        raise exceptions.ClusterDownError("redirected too often")

    def subscription(self) -> Subscription:
        """At any node: what is published at one of them comes to all."""
        return MultiplexedSubscription(
            lambda: [replace(self._address, host=host, port=port) for host, port in self._nodes]
        )

    async def _read_slots(self) -> None:
        """From the first node that answers. While none does, the slots stay: each command fails by itself."""
        for (host, _), node in tuple(self._nodes.items()):
            with suppress(exceptions.RedisError):
                ranges = await (await node.connection()).send(("CLUSTER", "SLOTS"))
                serving: list[_Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
                for first, last, (name, port, *_), *_ in ranges:  # its replicas follow
                    told = (name or b"").decode()
                    place = (host if told in ("", "?") else told), int(port)
                    serving[first : last + 1] = [place] * (last + 1 - first)
                self._serving, self._outdated = serving, False
                for place in self._nodes.keys() - {*serving, (self._address.host, self._address.port)}:
                    self._nodes.pop(place).close()
                return

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        for node in self._nodes.values():
            node.close()
        await super().close()


def _named_by(redirection: exceptions.AskError, by: _Place) -> _Place:
    host, port = cast("_Place", redirection.node_addr)
    return host or by[0], port
