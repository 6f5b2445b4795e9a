"""`python -m benchmarks.scale`: what conversations cost here, and what 10 thousand, 1 million and 100
million of them a day need (docs/scale.md).

It lets conversations live against one process and one Redis, works out the figures, predicts what they
cost with 2 and 4 processes and on clusters of 3 and 6 nodes, and lets them live there too, all in turns
three times, of which the cheapest counts. Ends with 1 where a prediction is off by more than a third, with
2 where measuring failed.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import sqlite3
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from redis.asyncio import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from benchmarks import scenarios
from benchmarks.client import calling
from benchmarks.processes import Cores, cpu_seconds, pinned, resident_mb
from benchmarks.report import table
from benchmarks.results import MeasurementFailed
from benchmarks.scale_model import Assumptions, Figures, read_figures, to_text, write_figures
from benchmarks.scenarios import Target
from benchmarks.servers import HOST, Server, redis_cluster, redis_server, service_process, worker_process
from flow_engine.ports.dialogue import ConversationRef
from flows.sqlite_store import FILE_NAME
from memory.connection import connect
from memory.keys import EVENTS_KEY, JOBS_KEY, due_score
from memory.manager import MemoryManager

TASKS = 12
CONNECTIONS = 64
"""Enough for 4 processes to be busy: one that waits between requests spends more on each."""
WARM_UP = 16
ROUNDS = 3
HELD = 2_000
GZIPPED_FROM = 1_000
INSTALLED = ((1, 1, True), (1, 1, False), (2, 1, True), (4, 1, True), (1, 3, True), (1, 6, True))
"""Processes, nodes of Redis, and whether a process holds conversations."""
RESTS_S = 3.0
OFF_AT_MOST = 1 / 3
SETTLED_WITHIN_S = 60.0
SOON = timedelta(seconds=20)
"""Longer than a job that is being done is kept for its worker."""


@dataclass(frozen=True, slots=True)
class State:
    """What has been spent and stored until now: CPU in seconds, sizes in bytes. By server of Redis where
    there are several."""

    service: float
    worker: float
    redis: Sequence[float]
    stored: Sequence[int]
    archived: int
    network: int
    events: int
    jobs: float


@dataclass(frozen=True, slots=True)
class Spent:
    """By one conversation. CPU in milliseconds, sizes in kilobytes."""

    requests: int
    service_ms: float
    worker_ms: float
    redis_ms: Sequence[float]
    stored_kb: Sequence[float]
    archived_kb: float
    redis_kb: float
    http_kb: float
    events: float
    event_kb: float
    jobs: float
    idle_mb: float

    def cpu_ms(self) -> float:
        return self.service_ms + self.worker_ms + sum(self.redis_ms)


@dataclass(frozen=True, slots=True)
class Installation:
    service: Server
    worker: Server
    redis: Sequence[Server]
    archive: Path

    @property
    def common(self) -> int:
        """Which server has the keys that all conversations share."""
        return key_slot(JOBS_KEY.encode()) * len(self.redis) // REDIS_CLUSTER_HASH_SLOTS

    async def state(self) -> State:
        stored, network = [], 0
        for server in self.redis:
            async with Redis(port=server.port) as client:
                keys = [key async for key in client.scan_iter(count=1_000) if b"}::" in key]
                stored.append(sum([await client.memory_usage(key, samples=0) or 0 for key in keys]))
                stats = await client.info("stats")
                network += int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])
        async with Redis(port=self.redis[self.common].port) as client:
            events = int(await client.xlen(EVENTS_KEY))
        return State(
            cpu_seconds(self.service.pid),
            cpu_seconds(self.worker.pid),
            [cpu_seconds(server.pid) for server in self.redis],
            stored,
            self._archived(),
            network,
            events,
            await asyncio.to_thread(self._jobs_done),
        )

    def _archived(self) -> int:
        with closing(sqlite3.connect(f"file:{self.archive}?mode=ro", uri=True)) as database:
            ((size,),) = database.execute("SELECT coalesce(sum(length(content)), 0) FROM journals")
        return size

    def _jobs_done(self) -> float:
        with urllib.request.urlopen(f"http://{HOST}:{self.worker.port}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith("flow_engine_jobs_done_total{")
        )

    async def event_kb(self) -> float:
        async with Redis(port=self.redis[self.common].port) as client:
            size, events = await client.memory_usage(EVENTS_KEY), await client.xlen(EVENTS_KEY)
        return (size or 0) / max(1, events) / 1000

    async def settled(self) -> None:
        """Wait until no job is due soon: all was read, concluded and archived. Raises MeasurementFailed."""
        async with asyncio.timeout(SETTLED_WITHIN_S), Redis(port=self.redis[self.common].port) as client:
            while await client.zcount(JOBS_KEY, "-inf", due_score(datetime.now(UTC) + SOON)):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def installation(
    cores: Cores, *, processes: int = 1, nodes: int = 1, holds: bool = True
) -> AsyncGenerator[Installation]:
    async with AsyncExitStack() as stack:
        redis: Sequence[Server]
        if nodes == 1:
            redis = [await stack.enter_async_context(redis_server(core=cores.rest, aof=False))]
        else:
            redis = await stack.enter_async_context(redis_cluster(nodes, core=cores.rest))
        folder = stack.enter_context(TemporaryDirectory(prefix="flow-bench-data-"))
        settings = {
            "FLOW_ENGINE_REDIS_CLUSTER": str(nodes > 1).lower(),
            "FLOW_ENGINE_DATA_DIR": folder,
            **({} if holds else {"FLOW_ENGINE_HELD_BYTES": "0"}),
        }
        port, core = redis[0].port, cores.service
        service = await stack.enter_async_context(
            service_process(port, core=core, unsafe=True, log_level="warning", workers=processes, **settings)
        )
        worker = await stack.enter_async_context(
            worker_process(port, core=core, log_level="warning", **settings)
        )
        yield Installation(service, worker, redis, Path(folder) / FILE_NAME)


async def spent(
    cores: Cores, conversations: int, *, processes: int = 1, nodes: int = 1, holds: bool = True
) -> Spent:
    """By each of so many conversations. Raises MeasurementFailed."""
    async with installation(cores, processes=processes, nodes=nodes, holds=holds) as running:
        idle_mb = resident_mb(running.worker.pid)
        with pinned(cores.rest):
            async with calling(running.service.port) as caller:
                target = await scenarios.publish(caller, running.service.port, TASKS)
            await _live(target, "warm", WARM_UP)
            await running.settled()
            resting = await running.state()
            await asyncio.sleep(RESTS_S)
            before, began = await running.state(), time.perf_counter()
            requests, sent = await _live(target, "life", conversations)
            await running.settled()
            after, rests = await running.state(), (time.perf_counter() - began) / RESTS_S
            event_kb = await running.event_kb()

    def each(then: float, now: float, unit: float) -> float:
        return (now - then) / conversations * unit

    def worked_ms(rested: float, then: float, now: float) -> float:
        """Without what is spent at rest in the same time."""
        return each(then + (then - rested) * rests, now, 1e3)

    return Spent(
        requests // conversations,
        worked_ms(resting.service, before.service, after.service),
        worked_ms(resting.worker, before.worker, after.worker),
        [worked_ms(*three) for three in zip(resting.redis, before.redis, after.redis, strict=True)],
        [each(*pair, 1e-3) for pair in zip(before.stored, after.stored, strict=True)],
        each(before.archived, after.archived, 1e-3),
        each(before.network, after.network, 1e-3),
        sent / conversations / 1e3,
        each(before.events, after.events, 1),
        event_kb,
        each(before.jobs, after.jobs, 1),
        idle_mb,
    )


async def held(cores: Cores) -> tuple[float, float]:
    """What a process takes to hold a conversation that has been asked for its prompt, and how much of it
    counts for HELD_BYTES, in kilobytes. Raises MeasurementFailed."""
    sizes: list[float] = []
    async with installation(cores) as running, calling(running.service.port) as caller:
        target = await scenarios.publish(caller, running.service.port, TASKS)
        for kind in ("warm", "held"):
            names = [f"{kind}-{number:05}" for number in range(HELD)]
            await scenarios.fill(caller, target, names)
            for name in names:
                await caller.ask(target.prompt(name))
            sizes.append(resident_mb(running.service.pid))
        memory = connect(f"redis://{HOST}:{running.redis[0].port}/0")
        try:
            loaded = await MemoryManager(memory.driver).load(ConversationRef("default", names[-1]))
        finally:
            await memory.close()
    return (sizes[1] - sizes[0]) / HELD * 1e3, loaded.stored_bytes / 1e3


async def gzipped(cores: Cores) -> float:
    """HTTP of one conversation, both ways, where a proxy compresses replies as deploy/nginx.conf asks for; in
    kilobytes. Raises MeasurementFailed."""
    async with installation(cores) as running, calling(running.service.port) as caller:
        target = await scenarios.publish(caller, running.service.port, TASKS)
        began, saved = caller.bytes, 0
        for request in scenarios.life(target, "gzip-0123456789abcdef012"):
            body = await caller.ask(request)
            if len(body) >= GZIPPED_FROM:
                saved += len(body) - len(gzip.compress(body, compresslevel=1))
    return (caller.bytes - began - saved) / 1e3


async def _live(target: Target, kind: str, conversations: int) -> tuple[int, int]:
    """Requests and their bytes, replies included."""
    spread = (sha256(f"{kind}{number}".encode()).hexdigest()[:19] for number in range(conversations))
    names = (f"{kind}-{each}" for each in spread)  # ids that follow one another meet few slots
    requests = 0

    async def one_after_another() -> int:
        nonlocal requests
        async with calling(target.port) as caller:
            for name in names:
                for request in scenarios.life(target, name):
                    await caller.ask(request)
                    requests += 1
            return caller.bytes

    sent = sum(await asyncio.gather(*(one_after_another() for _ in range(CONNECTIONS))))
    return requests, sent


@dataclass(frozen=True, slots=True)
class Check:
    """`predicted` from one process and one server, and what was measured."""

    what: str
    predicted: float
    measured: float
    unit: str

    @property
    def off(self) -> float:
        return self.measured / self.predicted - 1

    @property
    def holds(self) -> bool:
        return abs(self.off) <= OFF_AT_MOST


async def measure(cores: Cores, conversations: int) -> tuple[Figures, Sequence[Check]]:
    """The figures of one process and one server, and how well they predict others. Raises
    MeasurementFailed."""
    held_kb, state_kb = await held(cores)
    gzip_kb = await gzipped(cores)
    rounds = [
        [
            await spent(cores, conversations, processes=processes, nodes=nodes, holds=holds)
            for processes, nodes, holds in INSTALLED
        ]
        for _ in range(ROUNDS)
    ]
    alone, unheld, two, four, three, six = [min(runs, key=Spent.cpu_ms) for runs in zip(*rounds, strict=True)]
    at = [key_slot(JOBS_KEY.encode()) * nodes // REDIS_CLUSTER_HASH_SLOTS for nodes in (3, 6)]
    common = max(0.0, three.redis_ms[at[0]] - (sum(three.redis_ms) - three.redis_ms[at[0]]) / 2)
    plain = {each.name for each in fields(Figures)} & {each.name for each in fields(Spent)}
    figures = Figures(
        **{
            **{name: getattr(alone, name) for name in plain},
            "redis_ms": sum(alone.redis_ms),
            "stored_kb": sum(alone.stored_kb),
            "common_ms": common,
            "clustered_ms": three.service_ms,
            "unheld_ms": unheld.service_ms,
            "held_kb": held_kb,
            "gzip_kb": gzip_kb,
            "state_kb": state_kb,
        }
    )
    checks: list[Check] = []
    for processes, found in ((2, two), (4, four)):
        checks += [
            Check(f"CPU of {processes} processes", alone.service_ms, found.service_ms, "ms"),
            Check(f"CPU of Redis with {processes} processes", sum(alone.redis_ms), sum(found.redis_ms), "ms"),
        ]
    others = (sum(six.redis_ms) - six.redis_ms[at[1]]) / 5
    checks += [
        Check("CPU of a process on a cluster of 3", alone.service_ms, three.service_ms, "ms"),
        Check("CPU of a process on a cluster of 6", three.service_ms, six.service_ms, "ms"),
        Check(
            "CPU of a node of 6, without the common slot", (sum(three.redis_ms) - common) / 6, others, "ms"
        ),
        Check(
            "CPU of the node of 6 that has it",
            (sum(three.redis_ms) - common) / 6 + common,
            six.redis_ms[at[1]],
            "ms",
        ),
        Check("stored in the cluster of 6", sum(alone.stored_kb), sum(six.stored_kb), "kB"),
    ]
    return figures, checks


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--conversations", type=int, default=600, metavar="N", help="that live in each run")
    parser.add_argument(
        "--save", action="store_true", help="write the figures that docs/scale.md is made from"
    )
    parser.add_argument("--kept", action="store_true", help="measure nothing: the figures that were saved")
    for each in fields(Assumptions):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    options = parser.parse_args(arguments)
    given = Assumptions(**{each.name: getattr(options, each.name) for each in fields(Assumptions)})
    if options.kept:
        print(to_text(read_figures(), given))
        return 0
    cores = Cores.choose()
    print(f"{options.conversations} conversations in each run; {cores}")
    try:
        figures, checks = asyncio.run(measure(cores, options.conversations))
    except (MeasurementFailed, TimeoutError) as failure:
        print(f"measuring failed: {failure}", file=sys.stderr)
        return 2
    print(to_text(figures, given))
    print("\nPredicted from one process and one server")
    rows = [
        [c.what, f"{c.predicted:.2f}", f"{c.measured:.2f}", c.unit, f"{c.off:+.0%}", "" if c.holds else "OFF"]
        for c in checks
    ]
    print("\n".join(table(("what", "predicted", "measured", "unit", "off", ""), rows)))
    if options.save:
        write_figures(figures)
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
