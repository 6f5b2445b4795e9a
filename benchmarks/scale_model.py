"""From what a conversation costs to what so many of them need: machines, shards, money, and which limit comes
first.

Everything here follows from `Figures`, which are measured, and `Assumptions`, which an operator may set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from benchmarks.report import table

FILE = Path(__file__).with_name("scale_figures.json")
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
DAYS: Sequence[int] = (10_000, 1_000_000, 100_000_000)
HOURS_A_MONTH = 730


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one conversation from its first contact to its end, its events published and its jobs done. CPU
    in milliseconds, sizes in kilobytes. `clustered_ms` is what `serve` spends where Redis is a cluster, which
    takes more commands; `common_ms` is what Redis spends on the keys that all
    conversations share, jobs and the stream of events: they are in one slot. `stored_kb` stays in Redis
    until the state expires, `archived_kb` is its journal as the flow database gets it. `unheld_ms` is what
    `serve` spends where each request meets a process that does not hold the conversation, `held_kb` what it
    takes to hold one, of which `state_kb` count for HELD_BYTES. `gzip_kb` is what of `http_kb` leaves a proxy
    that compresses."""

    requests: int
    service_ms: float
    unheld_ms: float
    clustered_ms: float
    worker_ms: float
    redis_ms: float
    common_ms: float
    stored_kb: float
    archived_kb: float
    http_kb: float
    gzip_kb: float
    redis_kb: float
    events: float
    event_kb: float
    jobs: float
    held_kb: float
    state_kb: float
    idle_mb: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    """`peak_share` of a day's conversations begin in its busiest hour. Processes and Redis servers are
    loaded to these shares of a core. A conversation is under way for `lasts_minutes`, as a call is, and a
    process holds those that are as far as `held_mib` of HELD_BYTES reach. State stays `kept_days` after its
    last change: a day, unless a flow's time limit is longer. Journals stay `journal_days` in MongoDB,
    `archive_overhead` times as large there, and a replica set has `mongo_gib` for them. Prices in dollars: a
    core, a GiB of memory and a GiB of disk for an hour, a GB that leaves."""

    peak_share: float = 0.12
    process_load: float = 0.6
    lasts_minutes: float = 5.0
    held_mib: float = 64.0
    redis_load: float = 0.5
    redis_gib: float = 12.0
    kept_days: float = 1.0
    fragmentation: float = 1.3
    journal_days: float = 30.0
    archive_overhead: float = 1.5
    mongo_gib: float = 2_000.0
    events_kept: int = 100_000
    network_gbit: float = 10.0
    cluster_nodes: int = 500
    core_hour: float = 0.04
    gib_hour: float = 0.005
    disk_gib_hour: float = 0.00012
    gb_out: float = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What a number of conversations a day needs. `cells` are installations beside one another, each
    with its share of the tenants. `held` conversations are under way in a process, which takes `held_mib` for
    them. `shards` are primaries of Redis over all cells, each with a replica;
    MongoDB is a replica set of three small servers a cell, and more of them where its disk, which holds the
    journals, is too small. Money in dollars a month."""

    a_day: int
    a_second: float
    processes: int
    held: float
    held_mib: float
    workers: int
    redis_gib: float
    shards: int
    shards_because: str
    mongo_gib: float
    mongo_sets: int
    cells: int
    mbit: float
    cost: float

    @property
    def cost_of_a_thousand(self) -> float:
        return self.cost / (self.a_day * HOURS_A_MONTH / 24) * 1000


def read_figures() -> Figures:
    return Figures(**orjson.loads(FILE.read_bytes()))


def write_figures(figures: Figures) -> None:
    """Where `read_figures` finds them, and into the page, between the marks of the block of that kind."""
    FILE.write_bytes(orjson.dumps(asdict(figures), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    before, opening, rest = PAGE.read_text(encoding="utf-8").partition("```figures\n")
    _, closing, after = rest.partition("\n```\n")
    PAGE.write_text(before + opening + to_text(figures, Assumptions()) + closing + after, encoding="utf-8")


def plan(figures: Figures, a_day: int, given: Assumptions) -> Plan:
    peak = a_day * given.peak_share / 3600
    cells = max(1, math.ceil(peak * figures.common_ms / 1000 / given.redis_load))
    gib = stored_gib(figures, a_day, given)
    by_memory = math.ceil(gib / given.redis_gib)
    by_cpu = math.ceil(peak * figures.redis_ms / 1000 / given.redis_load)
    shards = max(cells, by_memory, by_cpu)
    cells = max(cells, math.ceil(2 * shards / given.cluster_nodes))
    service_ms = figures.service_ms if shards == 1 else figures.clustered_ms
    processes = max(2 * cells, math.ceil(peak * service_ms / 1000 / given.process_load))
    held = peak * 60 * given.lasts_minutes / processes
    held_mib = held * figures.held_kb * 1000 / 1024**2
    workers = max(2 * cells, math.ceil(peak * figures.worker_ms / 1000 / given.process_load))
    archived_gib = archived_kb(figures, given) * a_day / 1024**2
    mongo_sets = max(cells, math.ceil(archived_gib / given.mongo_gib))
    cores = processes + workers + 2 * shards + 3 * mongo_sets
    memory = (
        (processes + workers) * figures.idle_mb / 1024 * 2
        + processes * held_mib / 1024
        + 2 * shards * given.redis_gib * 4 / 3
        + 3 * 4 * mongo_sets
    )
    hour = cores * given.core_hour + memory * given.gib_hour + 3 * archived_gib * given.disk_gib_hour
    out_gb = a_day * figures.gzip_kb / 1e6 * HOURS_A_MONTH / 24
    return Plan(
        a_day,
        peak,
        processes,
        held,
        held_mib,
        workers,
        gib,
        shards,
        "memory" if by_memory >= by_cpu else "CPU",
        archived_gib,
        mongo_sets,
        cells,
        peak * figures.gzip_kb * 8 / 1000,
        HOURS_A_MONTH * hour + out_gb * given.gb_out,
    )


def archived_kb(figures: Figures, given: Assumptions) -> float:
    """In MongoDB, for each conversation a day."""
    return figures.archived_kb * given.archive_overhead * given.journal_days


def stored_gib(figures: Figures, a_day: int, given: Assumptions) -> float:
    stored_kb = a_day * given.kept_days * figures.stored_kb + given.events_kept * figures.event_kb
    return stored_kb * given.fragmentation / 1024**2


@dataclass(frozen=True, slots=True)
class Limit:
    """Met at so many conversations a day; `then` is what is done about it."""

    a_day: float
    what: str
    then: str


def limits(figures: Figures, given: Assumptions) -> Sequence[Limit]:
    """The nearest first."""

    def day(peak: float) -> float:
        return peak * 3600 / given.peak_share

    kept = given.redis_gib * 1024**2 / given.fragmentation / figures.stored_kb / given.kept_days
    return sorted(
        (
            Limit(
                day(given.process_load / figures.service_ms * 1000),
                "a core of `serve`",
                "more workers (`--workers`) and replicas: they share nothing but Redis",
            ),
            Limit(
                day(given.held_mib * 1024**2 / 1000 / figures.state_kb / 60 / given.lasts_minutes),
                f"the conversations that a process of `serve` holds in {given.held_mib:g} MiB",
                f"more `HELD_BYTES`, or processes: what is not held costs {figures.unheld_ms:.1f} ms",
            ),
            Limit(
                day(given.process_load / figures.worker_ms * 1000),
                "a core of `worker`",
                "more workers: each job is done by one of them",
            ),
            Limit(
                kept, "the memory of a Redis server", "a cluster: conversations are spread by their hash tag"
            ),
            Limit(
                day(given.redis_load / figures.redis_ms * 1000),
                "a core of Redis",
                "a cluster; a replica that holds a conversation asks less",
            ),
            Limit(
                kept * given.cluster_nodes / 2,
                f"the memory of a cluster of {given.cluster_nodes} servers",
                "several installations, by region or tenant; shorter time limits in their flows",
            ),
            Limit(
                day(given.redis_load / figures.common_ms * 1000),
                "the slot that all conversations share (jobs and events)",
                "several installations, each with its tenants: by key at the proxy, by region, or both",
            ),
            Limit(
                given.mongo_gib * 1024**2 / archived_kb(figures, given),
                "the disk of a replica set of MongoDB",
                "a cluster of it, sharded by tenant and conversation; fewer `JOURNAL_DAYS`",
            ),
            Limit(
                day(given.network_gbit * 1e6 / 8 / figures.gzip_kb),
                f"a network of {given.network_gbit:g} Gbit/s",
                "several proxies, by DNS",
            ),
        ),
        key=lambda limit: limit.a_day,
    )


def to_text(figures: Figures, given: Assumptions) -> str:
    return "\n".join(_lines(figures, given))


def _lines(figures: Figures, given: Assumptions) -> Iterator[str]:
    yield f"A conversation of {figures.requests} requests"
    yield from table(("what", "value", "unit"), _figure_rows(figures))
    yield "\nWhat so many conversations a day need"
    plans = [plan(figures, a_day, given) for a_day in DAYS]
    yield from table(("", *(f"{each.a_day:,}" for each in plans)), _plan_rows(plans))
    yield "\nLimits, the nearest first"
    rows = [[f"{_rounded(limit.a_day):,}", limit.what, limit.then] for limit in limits(figures, given)]
    yield from table(("a day", "what", "then"), rows)


def _figure_rows(figures: Figures) -> Iterable[list[str]]:
    return (
        ["CPU of `serve`", f"{figures.service_ms:.1f}", "ms"],
        ["where no process holds it between two requests", f"{figures.unheld_ms:.1f}", "ms"],
        ["where Redis is a cluster", f"{figures.clustered_ms:.1f}", "ms"],
        ["CPU of `worker`", f"{figures.worker_ms:.1f}", "ms"],
        ["CPU of Redis", f"{figures.redis_ms:.2f}", "ms"],
        ["of it for jobs and events, in one slot", f"{figures.common_ms:.2f}", "ms"],
        ["held by a process while it is under way", f"{figures.held_kb:.1f}", "kB"],
        ["of it in `HELD_BYTES`", f"{figures.state_kb:.1f}", "kB"],
        ["stored in Redis for a day", f"{figures.stored_kb:.1f}", "kB"],
        ["its journal in the flow database", f"{figures.archived_kb:.1f}", "kB"],
        ["HTTP, both ways", f"{figures.http_kb:.0f}", "kB"],
        ["compressed by the proxy", f"{figures.gzip_kb:.0f}", "kB"],
        ["between `serve` and Redis, both ways", f"{figures.redis_kb:.0f}", "kB"],
        ["events", f"{figures.events:.1f}", f"of {figures.event_kb:.2f} kB"],
        ["jobs done", f"{figures.jobs:.1f}", ""],
    )


def _plan_rows(plans: Sequence[Plan]) -> Iterable[list[str]]:
    return (
        ["begun in a second of the busiest hour", *(f"{each.a_second:,.1f}" for each in plans)],
        ["processes of `serve`", *(f"{each.processes:,}" for each in plans)],
        ["conversations under way in each", *(f"{_rounded(each.held):,}" for each in plans)],
        ["held by it, MiB", *(f"{each.held_mib:,.0f}" for each in plans)],
        ["processes of `worker`", *(f"{each.workers:,}" for each in plans)],
        ["stored in Redis, GiB", *(f"{each.redis_gib:,.1f}" for each in plans)],
        ["shards of Redis, each with a replica", *(f"{each.shards:,}" for each in plans)],
        ["because of", *(each.shards_because for each in plans)],
        ["installations", *(f"{each.cells:,}" for each in plans)],
        ["journals in MongoDB, GiB", *(f"{each.mongo_gib:,.1f}" for each in plans)],
        ["servers of MongoDB", *(f"{3 * each.mongo_sets:,}" for each in plans)],
        ["HTTP at the peak, Mbit/s", *(f"{each.mbit:,.0f}" for each in plans)],
        ["dollars a month", *(f"{_rounded(each.cost):,}" for each in plans)],
        ["dollars for 1,000 conversations", *(f"{each.cost_of_a_thousand:.2f}" for each in plans)],
    )


def _rounded(value: float) -> int:
    """To two digits: it is no more exact."""
    return int(round(value, 1 - math.floor(math.log10(max(value, 1)))))
