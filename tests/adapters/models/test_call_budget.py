"""The budget of calls a minute: in a process, and over all processes on one Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakeredis import FakeServer

from adapters.models.wrappers import CallBudget, ProcessCallBudget
from flow_engine.errors import RetryLater
from memory.call_budget import RedisCallBudget
from memory.connection import connect
from memory.in_process import embedded

pytestmark = pytest.mark.anyio

Clock = Callable[[], float]


def in_process(calls: int, clock: Clock) -> CallBudget:
    return ProcessCallBudget(calls, clock=clock)


def on_redis(calls: int, clock: Clock) -> CallBudget:
    return RedisCallBudget(embedded().driver, calls, clock=clock)


@pytest.mark.parametrize("budget_of", [in_process, on_redis])
async def test_calls_are_granted_up_to_the_number_of_a_minute(
    budget_of: Callable[[int, Clock], CallBudget],
) -> None:
    now = [600.0 + 45]
    budget = budget_of(2, lambda: now[0])
    assert [await budget.take() for _ in range(4)] == [0, 0, 15, 15]
    now[0] = 660.0
    assert [await budget.take() for _ in range(3)] == [0, 0, 60]


@pytest.mark.parametrize("budget_of", [in_process, on_redis])
async def test_no_tenant_takes_the_share_of_another(
    budget_of: Callable[[int, Clock], CallBudget],
) -> None:  # C
    budget = budget_of(12, lambda: 0.0)
    granted = {"busy": 0, "quiet": 0}
    for tenant in ("quiet", *["busy"] * 20, *["quiet"] * 20):
        granted[tenant] += await budget.take(tenant) == 0
    assert granted == {"busy": 6, "quiet": 6}


@pytest.mark.parametrize("budget_of", [in_process, on_redis])
async def test_a_tenant_alone_has_the_whole_minute(
    budget_of: Callable[[int, Clock], CallBudget],
) -> None:  # C
    budget = budget_of(12, lambda: 0.0)
    assert sum([await budget.take("busy") == 0 for _ in range(20)]) == 12


async def test_processes_on_one_redis_share_a_budget() -> None:
    server = FakeServer()
    budgets = [RedisCallBudget(embedded(server).driver, 3, clock=lambda: 0.0) for _ in range(2)]
    granted = [await budgets[n % 2].take() == 0 for n in range(5)]
    assert granted == [True, True, True, False, False]


async def test_counters_of_past_minutes_expire() -> None:
    memory = embedded()
    client = memory.driver.client
    await RedisCallBudget(memory.driver, 3, clock=lambda: 120.0).take()
    [key] = await client.keys("*")
    assert 0 < await client.ttl(key) <= 120


async def test_a_redis_that_is_away_is_told_as_such() -> None:
    memory = connect("redis://127.0.0.1:9")
    with pytest.raises(RetryLater):
        await RedisCallBudget(memory.driver, 3).take()
    await memory.close()


@pytest.mark.parametrize("server", ["redis_server", "redis_cluster"])
async def test_real_servers_count_as_well(server: str, request: pytest.FixtureRequest) -> None:
    memory = connect(request.getfixturevalue(server).url, cluster=server == "redis_cluster")
    budget = RedisCallBudget(memory.driver, 2, clock=lambda: 90.0)
    assert [await budget.take() for _ in range(3)] == [0, 0, 30]
    await memory.close()
