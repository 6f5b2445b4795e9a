"""How the table reaches those who talk: read when it has changed, and made into agents beside the talk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from adapters.models.scripted import ScriptedModel
from adapters.outbound.fake import ScriptedOutbound
from channels.chat.agents import AgentLoader
from channels.chat.table import FRESH_S, LISTED_S, AgentTable
from channels.chat.tools import ToolSources
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.records import Record
from flows.records import SqliteRecords
from flows.sqlite_store import SqliteDatabase

pytestmark = pytest.mark.anyio


class CountedRecords(SqliteRecords):
    listed = 0

    async def list(
        self,
        tenant_id: str,
        parent: str | None = "",
        *,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[Record]:
        self.listed += 1
        return await super().list(tenant_id, parent, after=after, limit=limit)


class Replica:
    def __init__(self, database: SqliteDatabase) -> None:
        self.now = 0.0
        self.records = CountedRecords(database, "ai_agents")
        sources = ToolSources({}, ScriptedOutbound({}))
        self.table = AgentTable(self.records, SystemClock(), sources, monotonic=lambda: self.now)

    async def names(self, after_s: float) -> tuple[list[str], int]:
        """The agents that answer after so many seconds, and how often the table was read whole for them."""
        self.now += after_s
        before = self.records.listed
        rows = await self.table.rows("t")
        return [name for name in rows if name.startswith("agent-")], self.records.listed - before


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    database = SqliteDatabase(tmp_path)
    await database.open()
    yield Replica(database), Replica(database)
    await database.close()


async def test_a_table_is_read_whole_when_it_has_changed(replicas: tuple[Replica, Replica]) -> None:  # C1
    one, other = replicas
    await one.table.create("t", {"name": "agent-a"}, "ada")
    await other.table.rows("t")
    assert await other.names(FRESH_S) == (["agent-a"], 0)
    await one.table.create("t", {"name": "agent-b"}, "ada")
    assert await other.names(FRESH_S / 2) == (["agent-a"], 0)
    assert await other.names(FRESH_S / 2) == (["agent-a", "agent-b"], 1)
    assert await one.names(FRESH_S / 2) == (["agent-a", "agent-b"], 1)
    assert await other.names(LISTED_S - FRESH_S) == (["agent-a", "agent-b"], 0)
    assert await other.names(FRESH_S) == (["agent-a", "agent-b"], 1)


async def test_a_changed_table_is_made_into_agents_once_while_others_are_talked_to(  # C1
    replicas: tuple[Replica, Replica],
) -> None:
    table = replicas[0].table
    await table.rows("t")
    loader = AgentLoader(table, ScriptedModel([]))
    first = asyncio.create_task(loader.agents("t"))
    second = asyncio.create_task(loader.agents("t"))
    await asyncio.sleep(0)
    assert not first.done()
    first.cancel()
    agents = await second
    assert agents is await loader.agents("t")
    assert list(agents.talking) == ["smalltalk_agent"]
    await table.create("t", {"name": "agent-a", "description": "Weather"}, "ada")
    assert [each.agent for each in (await loader.agents("t")).router.candidates("weather", 1)] == ["agent-a"]
