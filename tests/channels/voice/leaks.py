"""What a process holds: tasks of its loop, and open files, sockets among them."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    tasks: int
    files: int

    @classmethod
    def now(cls) -> Held:
        return cls(len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))


@asynccontextmanager
async def nothing_left(within_s: float = 3.0) -> AsyncGenerator[None]:
    """What was opened inside is closed soon after. Raises AssertionError for what is not."""
    gc.collect()
    before = Held.now()
    yield
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while (held := Held.now()) != before and loop.time() < until:
        gc.collect()
        await asyncio.sleep(0.05)
    assert held.tasks <= before.tasks, (held, before, asyncio.all_tasks())
    assert held.files <= before.files, (held, before)


def resident_kb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
