"""What the background work costs while little happens: `python -m benchmarks.idle` (F41).

Ten thousand conversations lie in Redis; 200 of them are talked with. The serving process and the worker are
measured apart, at rest and while people talk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson
from redis.asyncio import Redis

from benchmarks.client import calling
from benchmarks.processes import Cores, cpu_seconds, resident_mb
from benchmarks.results import MeasurementFailed
from benchmarks.scenarios import Target, publish
from benchmarks.servers import Server, redis_server, service_process, worker_process
from memory.keys import JOBS_KEY, due_score

TASKS = 12
STARTING_CONNECTIONS = 16
STARTED_WITHIN_S = 60.0
SETTLED_WITHIN_S = 60.0
DEBOUNCED_S = 1.0
"""After this, whatever was said last is due to be read."""


@dataclass(frozen=True, slots=True)
class Size:
    """`every_s`: how often each active conversation gets a user turn and asks for its prompt."""

    idle: int = 10_000
    active: int = 200
    every_s: float = 10.0
    measured_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU in percent of one core, resident memory in MB, by process."""

    cpu: Mapping[str, float]
    memory: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    started: int
    start_s: float
    settle_s: float
    empty: Usage
    idle: Usage
    active: Usage
    turns: int
    unread: int


async def measure(size: Size, cores: Cores) -> Measured:
    async with _installation(cores) as (processes, service, redis):
        async with calling(service.port) as caller:
            target = await publish(caller, service.port, TASKS)
        empty = await _usage(processes, min(5.0, size.measured_s))
        began = time.perf_counter()
        names = [f"idle-{number:05}" for number in range(size.idle + size.active)]
        await _start(target, names)
        start_s = time.perf_counter() - began
        settle_s = await _settled(redis)
        idle = await _usage(processes, size.measured_s)
        talking = asyncio.create_task(_talk(target, names[-size.active :], size))
        await asyncio.sleep(size.every_s / 2)
        active = await _usage(processes, size.measured_s)
        turns = await talking
        await _settled(redis)
        unread = await _unread(target, names[-size.active :])
    return Measured(len(names), start_s, settle_s, empty, idle, active, turns, unread)


@asynccontextmanager
async def _installation(cores: Cores) -> AsyncGenerator[tuple[Mapping[str, int], Server, Server]]:
    """Process ids by name, the service and Redis."""
    async with (
        redis_server(core=cores.rest, aof=True) as redis,
        service_process(redis.port, core=cores.service, unsafe=True, log_level="warning") as service,
        worker_process(redis.port, core=cores.service, log_level="warning") as worker,
    ):
        yield {"serve": service.pid, "worker": worker.pid, "redis": redis.pid}, service, redis


async def _settled(redis: Server) -> float:
    """Wait until no job is due, such as the events that starting wrote down. Returns the seconds it took."""
    began = time.perf_counter()
    async with Redis(port=redis.port) as client:
        await asyncio.sleep(DEBOUNCED_S)
        while await client.zcount(JOBS_KEY, "-inf", due_score(datetime.now(UTC))):
            if time.perf_counter() - began > SETTLED_WITHIN_S:
                raise MeasurementFailed(f"there were still jobs to do after {SETTLED_WITHIN_S} s")
            await asyncio.sleep(0.2)
    return time.perf_counter() - began


async def _usage(processes: Mapping[str, int], seconds: float) -> Usage:
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    passed = time.perf_counter() - began
    return Usage(
        {name: (cpu_seconds(pid) - before[name]) / passed * 100 for name, pid in processes.items()},
        {name: resident_mb(pid) for name, pid in processes.items()},
    )


async def _start(target: Target, names: Sequence[str]) -> None:
    waiting = iter(names)
    deadline = time.perf_counter() + STARTED_WITHIN_S

    async def start() -> None:
        async with calling(target.port) as caller:
            for name in waiting:
                if time.perf_counter() > deadline:
                    raise MeasurementFailed(f"{len(names)} conversations took over {STARTED_WITHIN_S} s")
                await caller.ask(target.new_contact(name))

    await asyncio.gather(*(start() for _ in range(STARTING_CONNECTIONS)))


async def _talk(target: Target, names: Sequence[str], size: Size) -> int:
    """Everybody speaks once in `every_s`, evenly spread, and is read a prompt. Returns the user turns."""
    began, between_s = time.perf_counter(), size.every_s / len(names)
    turns = int((size.every_s / 2 + size.measured_s) / between_s)
    async with calling(target.port) as caller:
        for number, name in zip(range(turns), itertools.cycle(names), strict=False):
            await asyncio.sleep(max(0.0, began + number * between_s - time.perf_counter()))
            for said in (2 * number, 2 * number + 1):
                await caller.ask(target.utterance(name, said))
            await caller.ask(target.prompt(name))
    return turns


async def _unread(target: Target, names: Sequence[str]) -> int:
    """Conversations whose last turn nobody has read: a worker that does nothing costs nothing either."""
    async with calling(target.port) as caller:
        prompts = [orjson.loads(await caller.ask(target.prompt(name))) for name in names]
    return sum(not prompt["memoryFresh"] for prompt in prompts)


def report(measured: Measured, size: Size) -> str:
    lines = [
        f"{measured.started:,} conversations started in {measured.start_s:.1f} s,"
        f" what they left to do was done {measured.settle_s:.1f} s later",
        f"{'':34}{'serve':>16}{'worker':>16}{'redis':>16}",
    ]
    for title, usage in (
        ("no conversations", measured.empty),
        (f"{measured.started:,} idle", measured.idle),
        (f"{size.active} of them speak every {size.every_s:g} s", measured.active),
    ):
        cells = (f"{usage.cpu[name]:.1f} % {usage.memory[name]:.0f} MB" for name in usage.cpu)
        lines.append(f"{title:34}" + "".join(f"{cell:>16}" for cell in cells))
    lines.append(f"{measured.turns} turns were said, {measured.unread} conversations left unread")
    return "\n".join(lines)


def main() -> None:
    usual = Size()
    parser = argparse.ArgumentParser(description="What the background work costs while little happens.")
    parser.add_argument("--idle", type=int, default=usual.idle, help="conversations that nobody talks with")
    parser.add_argument("--active", type=int, default=usual.active, help="conversations that are talked with")
    parser.add_argument("--seconds", type=float, default=usual.measured_s, help="of each measurement")
    given = parser.parse_args()
    size = Size(idle=given.idle, active=given.active, measured_s=given.seconds)
    cores = Cores.choose()
    print(f"CPU in percent of one core, resident memory; {cores}")
    try:
        measured = asyncio.run(measure(size, cores))
    except MeasurementFailed as failure:
        sys.exit(f"benchmark failed: {failure}")
    print(report(measured, size))
    if measured.unread:
        sys.exit(2)


if __name__ == "__main__":
    main()
