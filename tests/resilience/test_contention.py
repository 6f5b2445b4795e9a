"""Many clients on the same conversations through several processes lose and double nothing (F15)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memory.connection import RedisMemory
from tests.redis_fixture import RedisServer
from tests.resilience.fleet import HttpEngine
from tests.resilience.flow import publish
from tests.resilience.in_process import in_process
from tests.resilience.naive_memory import NaiveMemory
from tests.resilience.verifier import Breach, breaches_of
from tests.resilience.workload import CLIENTS, Workload

pytestmark = pytest.mark.anyio

OPERATIONS = 200


async def test_two_processes_lose_and_double_no_acknowledged_write(
    engine: HttpEngine, store: RedisMemory, capsys: pytest.CaptureFixture[str]
) -> None:  # F15, F19
    workload = Workload(engine, "hot")
    started = time.monotonic()
    ledger = await workload.run(OPERATIONS)
    seconds = time.monotonic() - started

    with capsys.disabled():
        print(f"\n{len(ledger.exchanges)} replies in {seconds:.1f} s: {ledger.summary()}")
    assert await breaches_of(workload, store) == []
    assert len(ledger.exchanges) >= CLIENTS * OPERATIONS
    assert ledger.unanswered == len(ledger.unavailable) == 0


async def test_the_verifier_finds_nothing_on_the_atomic_store_in_process(
    redis_server: RedisServer, store: RedisMemory, tmp_path: Path
) -> None:  # F15
    await publish(tmp_path)
    async with in_process(redis_server.url, tmp_path, lambda redis: redis.conversations) as engine:
        workload = Workload(engine, "atomic")
        await workload.run(25)
    assert await breaches_of(workload, store) == []


async def test_the_verifier_finds_lost_and_doubled_writes_on_a_store_that_gets_modifies_and_sets(
    redis_server: RedisServer, store: RedisMemory, tmp_path: Path
) -> None:  # F15
    await publish(tmp_path)
    found: list[Breach] = []
    for attempt in range(5):  # which races happen is chance, and one attempt nearly always shows all
        async with in_process(redis_server.url, tmp_path, NaiveMemory) as engine:
            workload = Workload(engine, f"naive{attempt}")
            await workload.run(25)
        found += await breaches_of(workload, store)
        shown = {"lost", "doubled", "chain"} <= {breach.kind for breach in found}
        if shown and any("acknowledged was" in breach.detail for breach in found):
            return
    raise AssertionError(f"not every kind of breach was found: {found}")
