"""What every store of records promises, checked on each implementation."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import orjson
import pytest

from flow_engine.errors import CallTheOperator
from flow_engine.ports.records import Record, RecordStore
from flows.mongo_records import MongoRecords
from flows.mongo_store import MongoDatabase
from flows.records import SqliteRecords
from flows.sqlite_store import SqliteDatabase

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(database: SqliteDatabase | MongoDatabase) -> RecordStore:
    if isinstance(database, SqliteDatabase):
        return SqliteRecords(database, "ai_agents")
    return MongoRecords(database, "ai_agents")


async def test_what_is_inserted_is_read_back_as_it_was(store: RecordStore) -> None:  # C1
    body = {"$odd.key": [1, 2.5, None, {"é": 2**64 - 1}], "a": {"b.c": False}}
    record = Record("a/b", body, "p", 7)
    assert await store.insert("t", record)
    assert await store.get("t", "a/b") == record
    assert not await store.insert("t", Record("a/b"))
    assert await store.get("t", "a/b") == record
    assert await store.get("other", "a/b") is None


async def test_a_replacement_is_a_compare_and_set(store: RecordStore) -> None:  # C1
    await store.insert("t", Record("a", {"v": 1}))
    assert await store.replace("t", Record("a", {"v": 2}, serial=2), 1)
    assert not await store.replace("t", Record("a", {"v": 3}, serial=2), 1)
    assert not await store.replace("t", Record("b", {"v": 3}, serial=2), 1)
    found = await store.get("t", "a")
    assert found is not None
    assert (found.body, found.serial) == ({"v": 2}, 2)


async def test_records_of_a_parent_come_by_position(store: RecordStore) -> None:  # M14
    for name, parent, position in (("c", "p", 2), ("a", "p", 2), ("z", "p", 1), ("q", "other", 0)):
        await store.insert("t", Record(name, {}, parent, position))
    assert [record.id for record in await store.list("t", "p")] == ["z", "a", "c"]
    assert await store.list("t", "nobody") == []


async def test_a_long_list_is_read_in_pages(store: RecordStore) -> None:  # M14
    for number in range(7):
        await store.insert("t", Record(f"r{number}", {}, "p", number // 2))
    found: list[str] = []
    after = None
    while page := await store.list("t", "p", after=after, limit=3):
        assert len(page) <= 3
        found += [record.id for record in page]
        after = (page[-1].position, page[-1].id)
    assert found == [f"r{number}" for number in range(7)]


async def test_records_of_every_parent_come_the_newest_first(store: RecordStore) -> None:  # console: chat
    for number in range(7):
        await store.insert("t", Record(f"r{number}", {}, f"p{number % 3}", number // 2))
    await store.insert("other", Record("r9", {}, "p", 9))
    found: list[str] = []
    after = None
    while page := await store.list("t", None, after=after, limit=3):
        found += [record.id for record in page]
        after = (page[-1].position, page[-1].id)
    assert found == [f"r{number}" for number in reversed(range(7))]


async def test_a_record_is_deleted_as_it_was_read_or_not_at_all(store: RecordStore) -> None:  # M14
    await store.insert("t", Record("a"))
    await store.replace("t", Record("a", {"v": 2}, serial=2), 1)
    assert not await store.delete("t", "a", 1), "somebody has changed it since"
    assert not await store.delete("other", "a", 2)
    assert await store.delete("t", "a", 2)
    assert not await store.delete("t", "a", 2)
    assert await store.get("t", "a") is None


async def test_the_audit_can_be_read_with_sql(tmp_path: Path) -> None:  # M14
    database = SqliteDatabase(tmp_path)
    await database.open()
    await database.rows(
        "CREATE TABLE llm_calls (tenant_id TEXT NOT NULL, id TEXT NOT NULL, parent TEXT NOT NULL, position "
        "INTEGER NOT NULL, serial INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (tenant_id, id))",
        (),
    )
    for _ in range(2):  # the second store finds the columns there
        runs, calls = SqliteRecords(database, "agent_runs"), SqliteRecords(database, "llm_calls")
        log = [{"tool": "escalate", "arguments": {"reason": "é"}, "result": None, "iteration": 1}]
        await runs.insert("t", Record("r", {"status": "error", "iterations": 2, "tool_calls_log": log}))
        await calls.insert("t", Record("c", {"call_type": "agent"}, "r"))
    await database.close()
    with sqlite3.connect(tmp_path / "flows.sqlite3") as reader:
        row = reader.execute("SELECT id, status, iterations, tool_calls_log, error FROM agent_runs")
        assert row.fetchone() == ("r", "error", 2, orjson.dumps(log).decode(), None)
        assert reader.execute("SELECT run_id, call_type FROM llm_calls").fetchall() == [("r", "agent")]
    reader.close()


async def test_a_document_that_is_no_object_is_the_operators(tmp_path: Path) -> None:  # C1
    database = SqliteDatabase(tmp_path)
    await database.open()
    store = SqliteRecords(database, "agent_runs")
    await store.insert("t", Record("a"))
    await database.change("UPDATE agent_runs SET record = '[1' WHERE id = ?", ("a",))
    with pytest.raises(CallTheOperator, match="stored_record_unreadable"):
        await store.get("t", "a")
    await database.close()
