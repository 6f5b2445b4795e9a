"""Requests a second, latency and CPU time of the service under load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks import scenarios
from benchmarks.client import Caller, LoadClient, Request
from benchmarks.processes import Cores, cpu_seconds, pinned, resident_mb
from benchmarks.results import Figure, Rate
from benchmarks.scenarios import Target
from benchmarks.servers import Server, redis_server, service_process

SIZES = (12, 100)
IDLE_RSS_MB = 150.0
_POOL = 8
_MIX_NAME = "whole conversation"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`seconds` of measurement a scenario, after a fifth of that to warm up."""

    connections: int
    seconds: float
    aof: bool
    log_level: str


@dataclass(frozen=True, slots=True)
class _Scene:
    service: Server
    redis: Server
    target: Target


async def measure_rates(cores: Cores, plan: LoadPlan) -> tuple[tuple[Rate, ...], tuple[Figure, ...]]:
    rates: list[Rate] = []
    idle: list[float] = []
    for tasks in SIZES:
        async with _scene(cores, plan, tasks, idle) as scene:
            with pinned(cores.rest):
                for name, sources in _sources(scene.target, plan.connections):
                    rates.append(await _measure(name, scene, sources, plan.seconds))
    return tuple(rates), (Figure("idle resident memory", max(idle), "MB", IDLE_RSS_MB),)


@asynccontextmanager
async def _scene(cores: Cores, plan: LoadPlan, tasks: int, idle: list[float]) -> AsyncGenerator[_Scene]:
    async with (
        redis_server(core=cores.rest, aof=plan.aof) as redis,
        service_process(
            redis.port, core=cores.service, unsafe=not plan.aof, log_level=plan.log_level
        ) as service,
    ):
        idle.append(resident_mb(service.pid))
        caller = Caller()
        await caller.open(service.port)
        try:
            target = await scenarios.publish(caller, service.port, tasks)
            for share in scenarios.shares(plan.connections, _POOL):
                await scenarios.fill(caller, target, share)
            yield _Scene(service, redis, target)
        finally:
            caller.close()


def _sources(target: Target, connections: int) -> Iterator[tuple[str, list[Iterator[Request]]]]:
    pool = scenarios.shares(connections, _POOL)
    numbers = range(connections)
    yield "prompt", [scenarios.prompts(target, share) for share in pool]
    yield "change task", [scenarios.changes(target, share) for share in pool]
    yield "memory put", [scenarios.memory_writes(target, share) for share in pool]
    yield "new contact", [scenarios.new_contacts(target, number) for number in numbers]
    yield _MIX_NAME, [scenarios.whole_conversations(target, number) for number in numbers]
    yield "health (HTTP alone)", [_endless(target.health()) for _ in numbers]


def _endless(request: Request) -> Iterator[Request]:
    while True:
        yield request


async def _measure(name: str, scene: _Scene, sources: list[Iterator[Request]], seconds: float) -> Rate:
    client = LoadClient(scene.service.port, sources)
    await client.open()
    try:
        await client.run(seconds / 5)
        service_cpu, redis_cpu = cpu_seconds(scene.service.pid), cpu_seconds(scene.redis.pid)
        load = await client.run(seconds)
        service_cpu = cpu_seconds(scene.service.pid) - service_cpu
        redis_cpu = cpu_seconds(scene.redis.pid) - redis_cpu
    finally:
        client.close()
    count = len(load.latencies)
    percentiles = quantiles(load.latencies, n=100)
    return Rate(
        scenario=name,
        tasks=scene.target.tasks,
        requests=count,
        per_second=count / load.seconds,
        per_core=count / service_cpu,
        p50_ms=percentiles[49] * 1e3,
        p99_ms=percentiles[98] * 1e3,
        service_cpu_us=service_cpu / count * 1e6,
        redis_cpu_us=redis_cpu / count * 1e6,
        client_share=load.cpu / load.seconds,
        service_share=service_cpu / load.seconds,
        rss_mb=resident_mb(scene.service.pid),
    )
