"""The proofs: what is promised, what is done to the processes meanwhile, and what was found."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from flow_engine.ports.clock import SystemClock
from flow_engine.ports.delivery import QueuedEvent
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.ports.telemetry import Unobserved
from flow_engine.use_cases.delivery import Relay
from memory.connection import RedisMemory
from memory.keys import ConversationKeys
from memory.streams import RedisEvents, Routing
from tests.ports import free_port
from tests.proof.finding import Finding, examined
from tests.proof.fleet import EVERYSEC, Fleet, JobsWorker, drained, fleet_on, opened, redis_server
from tests.proof.link import Link
from tests.redis_fixture import CLUSTER, DURABLE, LAST_SLOT, RedisServer
from tests.resilience.fleet import Worker
from tests.resilience.flow import TENANT, publish
from tests.resilience.in_process import in_process
from tests.resilience.naive_memory import NaiveMemory
from tests.resilience.workload import Workload

REST_S = 0.02
LOST = frozenset({"lost"})


async def of_one_server(seconds: float) -> list[Finding]:
    """On one durable Redis behind a network that can be cut: kills, stalls, wrong clocks, a torn file."""
    findings: list[Finding] = []
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server())
        link = await stack.enter_async_context(Link(free_port(), redis.port))
        url = f"redis://127.0.0.1:{link.port}/0"
        fleet = await stack.enter_async_context(fleet_on(url, redis))
        memory = await stack.enter_async_context(opened(redis.url))

        async def proof(promise: str, blows: Callable[[], Awaitable[str]]) -> None:
            fleet.recoveries_s.clear()
            notes: list[str] = []

            async def during() -> None:
                await asyncio.sleep(seconds / 4)
                notes.append(await blows())
                await asyncio.sleep(seconds / 4)

            workload = Workload(fleet.engine, f"p{len(findings)}", keep_trying=True, rest_s=REST_S)
            await workload.run_during(during())
            await drained(memory)
            acknowledged, found = await examined(workload, memory)
            findings.append(Finding(promise, acknowledged, found, [*fleet.recoveries_s], notes[0]))

        await proof("API and workers killed", lambda: _kills(fleet))
        await proof(
            "Redis stopped, killed, its scripts forgotten", lambda: _redis_away(redis, fleet, seconds)
        )
        await proof("connections cut between commit and reply", lambda: _cuts(link, fleet, seconds))
        await proof(
            "clocks of the workers 30 s wrong",
            lambda: _wrong_clocks(fleet.workers, fleet, seconds, limits="a lease is 1 s"),
        )
        await proof(
            "clocks of the API 30 s wrong",
            lambda: _wrong_clocks(fleet.apis, fleet, seconds, limits="events may come 30 s late"),
        )
        findings.append(await _torn_file(redis, fleet, memory, seconds))
    return findings


async def _kills(fleet: Fleet) -> str:
    for api, worker in zip(fleet.apis, fleet.workers, strict=True):
        await asyncio.to_thread(api.kill)
        await asyncio.to_thread(worker.kill)
        await asyncio.sleep(0.2)
        api.start()
        worker.start()
        await fleet.recovered()
    return "each of the four killed once, with requests and jobs in hand"


async def _redis_away(redis: RedisServer, fleet: Fleet, seconds: float) -> str:
    redis.pause()
    await asyncio.sleep(2.5)  # longer than the service waits for an answer
    redis.resume()
    await fleet.recovered()
    await asyncio.sleep(seconds / 4)
    await asyncio.to_thread(redis.kill)
    redis.start()
    await asyncio.to_thread(redis.wait_until_ready)
    await fleet.recovered()
    with redis.client() as client:
        client.execute_command("SCRIPT", "FLUSH")
    return "appendfsync always; 2.5 s of SIGSTOP, SIGKILL, SCRIPT FLUSH"


async def _cuts(link: Link, fleet: Fleet, seconds: float) -> str:
    before = link.cuts
    link.cut_chance = 0.05
    await asyncio.sleep(seconds / 2)
    link.cut_chance = 0.0
    await fleet.recovered()
    return f"{link.cuts - before} replies thrown away with their connections"


async def _wrong_clocks(
    processes: Sequence[JobsWorker | Worker], fleet: Fleet, seconds: float, *, limits: str
) -> str:
    async def set_back(skews_s: tuple[float, ...]) -> None:
        for process, skew_s in zip(processes, skews_s, strict=True):
            await asyncio.to_thread(process.stop)
            process.skew_s = skew_s
            process.start()
            await fleet.recovered()

    await set_back((30.0, -30.0))
    await asyncio.sleep(max(seconds / 2, 5.0))
    await set_back((0.0, 0.0))
    return f"one 30 s ahead, one 30 s behind; {limits}"


def aof_of(redis: RedisServer) -> Path:
    """The part of the append only file that is written to."""
    return max((redis.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)


async def _lived_then_lost(
    promise: str,
    redis: RedisServer,
    fleet: Fleet,
    memory: RedisMemory,
    seconds: float,
    keep: Callable[[], int],
) -> Finding:
    """Run clients, kill Redis, keep so many bytes of its file, start it, and compare."""
    fleet.recoveries_s.clear()
    workload = Workload(fleet.engine, promise[:3].strip(), keep_trying=True, rest_s=REST_S)
    await workload.run_during(asyncio.sleep(seconds))
    kept = keep()
    await asyncio.to_thread(redis.kill)
    file = aof_of(redis)
    lost = file.stat().st_size - kept
    with file.open("rb+") as opened_file:
        opened_file.truncate(kept)
    redis.start()
    await asyncio.to_thread(redis.wait_until_ready)
    await fleet.recovered()
    await drained(memory)
    acknowledged, found = await examined(workload, memory)
    after = Workload(fleet.engine, f"{promise[:3].strip()}-after", keep_trying=True, rest_s=REST_S)
    await after.run(3)
    await drained(memory)
    found += (await examined(after, memory))[1]
    note = f"{lost} bytes of the file gone; the service went on without a restart"
    return Finding(promise, acknowledged, found, [*fleet.recoveries_s], note)


async def _torn_file(redis: RedisServer, fleet: Fleet, memory: RedisMemory, seconds: float) -> Finding:
    finding = await _lived_then_lost(
        "end of the append only file damaged: only that is lost",
        redis, fleet, memory, seconds / 2, lambda: aof_of(redis).stat().st_size - 2_000,
    )  # fmt: skip
    finding.may_find = LOST
    return finding


async def of_a_power_cut(seconds: float) -> list[Finding]:
    """What `appendfsync everysec` had not synced goes with the power; who calls that durable is caught."""
    for _ in range(3):  # whether somebody writes in the last second is chance on a slow machine
        finding = await _power_cut(seconds)
        if finding.holds:
            break
    return [finding]


async def _power_cut(seconds: float) -> Finding:
    async with redis_server(EVERYSEC) as redis, fleet_on(redis.url, redis) as fleet:
        sizes: list[tuple[float, int]] = []

        async def watch() -> None:
            while True:
                sizes.append((time.monotonic(), aof_of(redis).stat().st_size))
                await asyncio.sleep(0.05)

        def a_second_ago() -> int:
            now = time.monotonic()
            return next(size for at, size in reversed(sizes) if at < now - 1.0)

        watching = asyncio.create_task(watch())
        async with opened(redis.url) as memory:
            finding = await _lived_then_lost(
                "everysec called durable (control)", redis, fleet, memory, seconds, a_second_ago
            )
        watching.cancel()
    finding.must_find = LOST
    finding.note = f"the last second gone: {finding.note}; REDIS_DURABILITY=always prevents it"
    return finding


@asynccontextmanager
async def _replicated() -> AsyncGenerator[tuple[RedisServer, Sequence[RedisServer], Sequence[Link], Link]]:
    """A primary, two replicas that follow it through links, and the link that the service uses."""
    async with AsyncExitStack() as stack:
        primary = await stack.enter_async_context(redis_server())
        links = [await stack.enter_async_context(Link(free_port(), primary.port)) for _ in range(2)]
        replicas: list[RedisServer] = []
        for link in links:
            options = (
                *DURABLE,
                "--replicaof",
                "127.0.0.1",
                str(link.port),
                "--repl-diskless-sync-delay",
                "0",
            )
            # Its start waits for the server, and the server for its link: neither may stop the other.
            starting = redis_server(options)
            replicas.append(await stack.enter_async_context(starting))
        for replica in replicas:
            with replica.client() as client:
                while client.info("replication")["master_link_status"] != "up":
                    await asyncio.sleep(0.1)
        yield primary, replicas, links, await stack.enter_async_context(Link(free_port(), primary.port))


async def _promoted(replicas: Sequence[RedisServer], service: Link) -> RedisServer:
    """The replica that has most becomes the primary of the other one, and the service is led there."""
    offsets: list[int] = []
    for replica in replicas:
        with replica.client() as client:
            offsets.append(client.info("replication")["slave_repl_offset"])
    first = replicas[offsets.index(max(offsets))]
    with first.client() as client:
        client.execute_command("REPLICAOF", "NO", "ONE")
    for other in replicas:
        if other is not first:
            with other.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", first.port)
    service.target = first.port
    service.cut_all()
    return first


async def of_a_failover(seconds: float) -> list[Finding]:
    """The primary dies while its replicas lag: without WAIT acknowledged writes go with it."""
    return [await _failover_without_wait(seconds), await _failover_with_wait(seconds)]


async def _failover_without_wait(seconds: float) -> Finding:
    async with AsyncExitStack() as stack:
        primary, replicas, links, service = await stack.enter_async_context(_replicated())
        url = f"redis://127.0.0.1:{service.port}/0"
        fleet = await stack.enter_async_context(fleet_on(url, primary))
        workload = Workload(fleet.engine, "nowait", keep_trying=True, rest_s=REST_S)

        async def until_the_replicas_lag() -> None:
            await asyncio.sleep(seconds / 2)
            for link in links:
                link.hold()
            await asyncio.sleep(1.0)

        await workload.run_during(until_the_replicas_lag())
        await asyncio.to_thread(primary.kill)
        for link in links:
            link.cut_all()
        promoted = await _promoted(replicas, service)
        await fleet.recovered()
        async with opened(promoted.url) as memory:
            await drained(memory)
            acknowledged, found = await examined(workload, memory)
        note = "replicas one second behind; REDIS_WAIT_REPLICAS=1 prevents it"
        promise = "failover without WAIT: what replicas lack is lost"
        return Finding(promise, acknowledged, found, [*fleet.recoveries_s], note, may_find=LOST)


async def _failover_with_wait(seconds: float) -> Finding:
    async with AsyncExitStack() as stack:
        primary, replicas, links, service = await stack.enter_async_context(_replicated())
        url = f"redis://127.0.0.1:{service.port}/0"
        fleet = await stack.enter_async_context(fleet_on(url, primary, REDIS_WAIT_REPLICAS="1"))
        promoted: list[RedisServer] = []

        async def failover() -> None:
            await asyncio.sleep(seconds / 2)
            for link in links:
                link.hold()
            await asyncio.sleep(1.5)
            await asyncio.to_thread(primary.kill)
            for link in links:
                link.cut_all()
            promoted.append(await _promoted(replicas, service))
            await fleet.recovered()
            await asyncio.sleep(seconds / 2)

        workload = Workload(fleet.engine, "wait", keep_trying=True, rest_s=REST_S)
        await workload.run_during(failover())
        async with opened(promoted[0].url) as memory:
            await drained(memory)
            acknowledged, found = await examined(workload, memory)
        refused = len(workload.ledger.unavailable)
        note = f"{refused} requests answered 503 meanwhile, and repeated with their keys"
        return Finding("failover with WAIT", acknowledged, found, [*fleet.recoveries_s], note)


async def of_a_cluster(seconds: float) -> list[Finding]:
    """A node of three is killed and comes back."""
    thirds = [(0, 5_460), (5_461, 10_922), (10_923, LAST_SLOT)]
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(redis_server(CLUSTER)) for _ in thirds]
        for node, slots in zip(nodes, thirds, strict=True):
            node.own(*slots)
        with nodes[0].client() as client:
            for node in nodes[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        for node in nodes:
            await asyncio.to_thread(node.wait_until_ready)
        fleet = await stack.enter_async_context(fleet_on(nodes[0].url, nodes[0], REDIS_CLUSTER="true"))

        async def blow() -> None:
            await asyncio.sleep(seconds / 2)
            await asyncio.to_thread(nodes[1].kill)
            await asyncio.sleep(1.0)
            nodes[1].start()
            await asyncio.to_thread(nodes[1].wait_until_ready)
            await fleet.recovered()
            await asyncio.sleep(seconds / 2)

        workload = Workload(fleet.engine, "cluster", keep_trying=True, rest_s=REST_S)
        await workload.run_during(blow())
        memory = await stack.enter_async_context(opened(nodes[0].url, cluster=True))
        await drained(memory)
        acknowledged, found = await examined(workload, memory, repeats_allowed=True)
        note = "three nodes; events may be repeated under their ids"
        return [Finding("a node of a cluster killed", acknowledged, found, [*fleet.recoveries_s], note)]


async def of_a_store_without_compare_and_set(_: float) -> list[Finding]:
    finding = Finding("a store without compare-and-set (control)", must_find=frozenset({"lost", "doubled"}))
    with tempfile.TemporaryDirectory() as name:
        await publish(Path(name))
        async with redis_server() as redis, opened(redis.url) as memory:
            for attempt in range(5):  # which races happen is chance
                async with in_process(redis.url, Path(name), NaiveMemory) as engine:
                    workload = Workload(engine, f"naive{attempt}")
                    await workload.run(15)
                acknowledged, found = await examined(workload, memory)
                finding.acknowledged += acknowledged
                finding.breaches += found
                if finding.holds:
                    break
    return [finding]


class ForgetfulEvents(RedisEvents):
    """Takes the last event of each batch out of the outbox before it has arrived, and then dies."""

    async def publish(self, conversation: ConversationRef, events: Sequence[QueuedEvent]) -> int:
        *sent, forgotten = events
        outbox = ConversationKeys.of(conversation).named["outbox"]
        await self._driver.client.xdel(outbox, forgotten.id)  # type: ignore[attr-defined]
        return await super().publish(conversation, sent) if sent else 0


async def of_a_relay_that_forgets(_: float) -> list[Finding]:
    async def never(due: DueJob) -> None:
        raise AssertionError(due)

    with tempfile.TemporaryDirectory() as name:
        await publish(Path(name))
        async with redis_server() as redis, opened(redis.url) as memory:
            async with in_process(redis.url, Path(name), lambda opened_: opened_.conversations) as engine:
                workload = Workload(engine, "forgetful")
                await workload.run(15)
            events = ForgetfulEvents(memory.driver, Routing(100_000, webhook=False))
            relay = Relay(events, SystemClock(), Unobserved(), never, has_webhook=False)
            for conversation in workload.conversations:
                await relay.relay(Job("relay", ConversationRef(TENANT, conversation)))
            acknowledged, found = await examined(workload, memory)
    return [Finding("a relay that forgets (control)", acknowledged, found, must_find=LOST)]


PROOFS: Sequence[Callable[[float], Awaitable[list[Finding]]]] = (
    of_one_server,
    of_a_failover,
    of_a_cluster,
    of_a_power_cut,
    of_a_store_without_compare_and_set,
    of_a_relay_that_forgets,
)
