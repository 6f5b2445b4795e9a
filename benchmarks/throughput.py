"""Requests a second, latency and CPU time of the service under load, by scene."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, quantiles

from benchmarks import scenarios
from benchmarks.budgets import loop_us
from benchmarks.client import LoadClient, Request, calling
from benchmarks.processes import Cores, cpu_seconds, pinned, resident_mb
from benchmarks.results import Figure, Rate
from benchmarks.scenarios import Target
from benchmarks.servers import ROOT, Server, redis_server, service_process

IDLE_RSS_MB = 130.0
MEASURED_AGAIN = 2
"""A row over its budget is measured so often again: the least counts, for other programs only add to it."""
TURNS = 4
_MIX_NAME = "whole conversation"


@dataclass(frozen=True, slots=True)
class Scene:
    """What the service runs on. `pool`: conversations of each connection. Unless `held`, a process keeps
    nothing of a conversation between two requests."""

    name: str
    tasks: int
    variables: int | None = None
    workers: int = 1
    held: bool = True
    pool: int = 8


SCENES = (
    Scene("hot", 12),
    Scene("hot", 100),
    Scene("hot", 300),
    Scene("1,000 variables", 12, variables=1_000, pool=2),
    Scene("cold", 12, held=False),
    Scene("4 processes", 12, workers=4),
)
HEALTH_IN = SCENES[:1]
CONTROL = (replace(SCENES[0], held=False),)
"""Judged by the budgets of a hot process, and as it is not one, over them."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`seconds` of measurement a request and scene, after a fifth of that to warm up."""

    connections: int
    seconds: float
    aof: bool
    log_level: str
    scenes: Sequence[Scene] = SCENES
    budgets: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class _Running:
    scene: Scene
    cores: Cores
    service: Server
    redis: Server
    target: Target
    idle_mb: float

    def sources(self, connections: int) -> Mapping[str, list[Iterator[Request]]]:
        pool, numbers = scenarios.shares(connections, self.scene.pool), range(connections)
        return {
            "prompt": [scenarios.prompts(self.target, share) for share in pool],
            "change task": [scenarios.changes(self.target, share) for share in pool],
            "memory put": [scenarios.memory_writes(self.target, share) for share in pool],
            "new contact": [scenarios.new_contacts(self.target, number) for number in numbers],
            _MIX_NAME: [scenarios.whole_conversations(self.target, number) for number in numbers],
            **(
                {"health (HTTP alone)": [itertools.repeat(self.target.health()) for _ in numbers]}
                if self.scene in HEALTH_IN
                else {}
            ),
        }


async def measure_rates(cores: Cores, plan: LoadPlan) -> tuple[tuple[Rate, ...], tuple[Figure, ...]]:
    """Every request of every scene, each with its budget where there is one."""
    rates: list[Rate] = []
    idle: list[float] = []
    for scene in plan.scenes:
        async with _running(scene, cores, plan) as running:
            idle.append(running.idle_mb if scene.workers == 1 else 0.0)
            with pinned(cores.rest):
                for name, sources in running.sources(plan.connections).items():
                    rate = await _measure(name, running, sources, plan)
                    for _ in range(MEASURED_AGAIN):
                        if not rate.met:
                            again = await _measure(name, running, sources, plan)
                            rate = min(rate, again, key=lambda each: each.loops)
                    rates.append(rate)
    return tuple(rates), (Figure("idle resident memory", max(idle), "MB", IDLE_RSS_MB),)


async def compare_rates(cores: Cores, plan: LoadPlan, other: Path) -> Sequence[tuple[Rate, Rate]]:
    """The same of this code and of another checkout's, by turns: each pair is that of `other` and of this."""
    pairs: list[tuple[Rate, Rate]] = []
    for scene in plan.scenes:
        if scene.workers > 1 or not scene.held:
            continue  # an older checkout may know neither
        async with AsyncExitStack() as stack:
            both = [
                await stack.enter_async_context(_running(scene, cores, plan, checkout))
                for checkout in (other, ROOT)
            ]
            every = [running.sources(plan.connections) for running in both]
            short = replace(plan, seconds=plan.seconds / TURNS, budgets={})
            with pinned(cores.rest):
                for name in every[0]:
                    rates: tuple[list[Rate], list[Rate]] = ([], [])
                    for _ in range(TURNS):
                        for number in (0, 1):
                            rates[number].append(
                                await _measure(name, both[number], every[number][name], short)
                            )
                    before, after = (sorted(each, key=lambda rate: rate.service_cpu_us) for each in rates)
                    pairs.append((before[TURNS // 2], after[TURNS // 2]))
    return pairs


@asynccontextmanager
async def _running(
    scene: Scene, cores: Cores, plan: LoadPlan, checkout: Path = ROOT
) -> AsyncGenerator[_Running]:
    settings = {} if scene.held else {"FLOW_ENGINE_HELD_BYTES": "0"}
    async with (
        redis_server(core=cores.rest, aof=plan.aof) as redis,
        service_process(
            redis.port,
            core=cores.service,
            unsafe=not plan.aof,
            log_level=plan.log_level,
            workers=scene.workers,
            checkout=checkout,
            **settings,
        ) as service,
    ):
        idle_mb = resident_mb(service.pid)
        async with calling(service.port) as caller:
            target = await scenarios.publish(caller, service.port, scene.tasks, variables=scene.variables)
            for share in scenarios.shares(plan.connections, scene.pool):
                await scenarios.fill(caller, target, share)
        yield _Running(scene, cores, service, redis, target, idle_mb)


async def _measure(name: str, running: _Running, sources: list[Iterator[Request]], plan: LoadPlan) -> Rate:
    with pinned(running.cores.service):
        loop_before_us = loop_us()
    client = LoadClient(running.service.port, sources)
    await client.open()
    try:
        await client.run(plan.seconds / 5)
        service_cpu, redis_cpu = cpu_seconds(running.service.pid), cpu_seconds(running.redis.pid)
        load = await client.run(plan.seconds)
        service_cpu = cpu_seconds(running.service.pid) - service_cpu
        redis_cpu = cpu_seconds(running.redis.pid) - redis_cpu
    finally:
        client.close()
    with pinned(running.cores.service):
        loop = fmean((loop_before_us, loop_us()))
    count = len(load.latencies)
    percentiles = quantiles(load.latencies, n=100)
    rate = Rate(
        scene=running.scene.name,
        scenario=name,
        tasks=running.scene.tasks,
        requests=count,
        per_second=count / load.seconds,
        per_core=count / service_cpu,
        p50_ms=percentiles[49] * 1e3,
        p99_ms=percentiles[98] * 1e3,
        service_cpu_us=service_cpu / count * 1e6,
        redis_cpu_us=redis_cpu / count * 1e6,
        client_share=load.cpu / load.seconds,
        service_share=service_cpu / load.seconds,
        rss_mb=resident_mb(running.service.pid),
        loops=service_cpu / count * 1e6 / loop,
    )
    return replace(rate, budget=plan.budgets.get(rate.label))
