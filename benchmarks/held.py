"""`python -m benchmarks.held`: what a process takes for the conversations that it holds (F15).

A service makes real conversations; then this process reads so many of them, each decoded by itself, as a
replica would that meets them in turn. What is held is bounded in stored bytes (`HELD_BYTES`). Shows how
many are held, how many times their stored bytes they take decoded, and how far the process grew at the
end and on the way. Ends with 1 where it went on growing after its bound was reached."""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

from benchmarks import scenarios
from benchmarks.client import calling
from benchmarks.processes import Cores, resident_mb
from benchmarks.servers import redis_server, service_process
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.storage import LoadedConversation
from memory.connection import connect
from memory.held import HELD_BYTES, HeldConversations
from memory.manager import MemoryManager

TASKS = 12
DIFFERENT = 50
GROWS_AT_MOST_MB = 10.0
"""After the bound was reached: what the allocator and the measuring take."""


class _EachNew(HeldConversations):
    """Knows none of what is asked for, and holds each reading as another conversation."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._numbers = itertools.count()

    def get(self, conversation: ConversationRef) -> LoadedConversation | None:
        return None

    def read(self, conversation: ConversationRef, loaded: LoadedConversation, *sizes: Any) -> None:
        name = f"{conversation.conversation_id}-{next(self._numbers)}"
        super().read(ConversationRef(conversation.tenant_id, name), loaded, *sizes)

    @property
    def weight(self) -> int:
        return self._bytes


async def measure(conversations: int, cores: Cores) -> bool:
    async with (
        redis_server(core=cores.rest, aof=False) as redis,
        service_process(redis.port, core=cores.service, unsafe=True, log_level="warning") as service,
    ):
        names = [f"held-{number:019}" for number in range(DIFFERENT)]
        async with calling(service.port) as caller:
            target = await scenarios.publish(caller, service.port, TASKS)
            await scenarios.fill(caller, target, names)
        memory = connect(f"redis://127.0.0.1:{redis.port}/0")
        try:
            refs = itertools.cycle([ConversationRef("default", name) for name in names])
            await _decoded(
                MemoryManager(memory.driver, held=(small := _EachNew(HELD_BYTES // 16))), refs, small
            )
            return await _growth(
                MemoryManager(memory.driver, held=(held := _EachNew(HELD_BYTES))), refs, held, conversations
            )
        finally:
            await memory.close()


async def _decoded(manager: MemoryManager, refs: Any, held: _EachNew) -> None:
    await manager.load(next(refs))  # what is loaded once for all is no part of it
    gc.collect()
    tracemalloc.start()
    try:
        before, weight = tracemalloc.get_traced_memory()[0], held.weight
        for _ in range(200):
            await manager.load(next(refs))
        gc.collect()
        taken, stored = tracemalloc.get_traced_memory()[0] - before, held.weight - weight
    finally:
        tracemalloc.stop()
    print(
        f"a conversation of {stored / 200:,.0f} stored bytes takes {taken / stored:.1f} times as many decoded"
    )


async def _growth(manager: MemoryManager, refs: Any, held: _EachNew, conversations: int) -> bool:
    gc.collect()
    start = full = resident_mb(os.getpid())
    reached = 0
    for number in range(conversations):
        await manager.load(next(refs))
        if not reached and len(held) <= number:  # the first has given way
            reached, full = number, resident_mb(os.getpid())
    gc.collect()
    end = resident_mb(os.getpid())
    print(f"{conversations:,} live conversations were read, {len(held):,} of them are held:", end=" ")
    print(f"{held.weight / 2**20:.1f} of {HELD_BYTES / 2**20:.0f} MiB of stored bytes")
    print(f"resident memory grew by {full - start:.0f} MB to the bound, {end - full:.1f} MB after it")
    return bool(reached) and end - full <= GROWS_AT_MOST_MB


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.held", description=__doc__)
    parser.add_argument("--conversations", type=int, default=100_000)
    return 0 if asyncio.run(measure(parser.parse_args(arguments).conversations, Cores.choose())) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
