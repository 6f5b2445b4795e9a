"""What the store of runs promises, on each database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from adapters.models.audit import ModelCallRecord
from channels.mail.metrics import MailMetrics
from channels.mail.ports import MailEvent, RunOutcome, RunProgress, StoredCall, ToolLine
from channels.mail.runs import (
    HeldRun,
    Place,
    RunRow,
    RunStore,
    RunTables,
    RunTakenOver,
    RunWork,
    StoredRun,
    run_id,
)
from channels.mail.working import UNDECIDED, WAITS_AT_MOST, RunWorker, WorkTuning
from flow_engine.errors import CorrectTheInput, LookElsewhere, ReloadAndDecide, RetryLater
from flow_engine.ports.records import RecordStore
from flow_engine.use_cases import agent_runs
from flow_engine.use_cases.agent_runs import AgentRuns
from flows.mongo_records import MongoRecords
from flows.mongo_store import MongoDatabase
from flows.records import SqliteRecords
from flows.sqlite_store import SqliteDatabase

pytestmark = pytest.mark.anyio

Database = SqliteDatabase | MongoDatabase
PLACE = Place(folder="INBOX", uid_validity=7, uid=1)
CALL = StoredCall(id="c1", tool="send_reply", arguments={"to": "a@example.org"})


class Time:
    def __init__(self) -> None:
        self.at = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


@pytest.fixture
def time() -> Time:
    return Time()


def records(database: Database, table: str) -> RecordStore:
    if isinstance(database, SqliteDatabase):
        return SqliteRecords(database, table)  # type: ignore[arg-type]
    return MongoRecords(database, table)  # type: ignore[arg-type]


def stores(database: Database, time: Time, *holders: str) -> list[RunStore]:
    names = ("agent_runs", "llm_calls", "email_events")
    tables = RunTables(*(records(database, name) for name in names))
    return [RunStore(tables, time, tenant_id="t", holder=holder) for holder in holders]


def people(store: RunStore) -> AgentRuns:
    return AgentRuns(store.tables.runs, store.tables.calls, store.tables.events, store.clock)


def new_row(message_id: str = "<m@example.org>") -> RunRow:
    work = RunWork(place=PLACE, digest="d")
    return RunRow(
        mailbox="box",
        message_id=message_id,
        rule="r",
        route="agent",
        profile="p",
        job="agent_process",
        work=work,
    )


async def test_a_mail_has_one_run_whoever_takes_it_in(database: Database, time: Time) -> None:  # M1
    one, two = stores(database, time, "one", "two")
    id_ = run_id("box", "<m@example.org>", "d")
    assert await one.add(id_, new_row())
    assert not await two.add(id_, new_row())
    assert len({id_, run_id("other", "<m@example.org>", "d"), run_id("box", "<m@example.org>", "e")}) == 3
    assert [run.id for run in await two.under_way()] == [id_]


async def test_a_run_is_held_by_one_until_its_lease_ends(database: Database, time: Time) -> None:  # M1
    one, two = stores(database, time, "one", "two")
    await one.add("r", new_row())
    (seen,) = await two.under_way()
    held = await one.claim((await one.under_way())[0], 15.0)
    assert held is not None
    assert await two.claim(seen, 15.0) is None, "what was read before is stale"
    time.at += timedelta(seconds=10)
    await held.renew()
    time.at += timedelta(seconds=14)
    assert not (await two.under_way())[0].is_due(time.at.timestamp())
    time.at += timedelta(seconds=2)
    (left,) = await two.under_way()
    assert left.is_due(time.at.timestamp())
    taken = await two.claim(left, 15.0)
    assert taken is not None
    assert taken.work.attempts == 2
    for write in (held.renew(), held.checkpoint(RunProgress()), held.finish(RunOutcome("completed"))):
        with pytest.raises(RunTakenOver):
            await write
    assert (await two.under_way())[0].row.status == "running"


async def test_a_run_goes_on_from_its_checkpoint(database: Database, time: Time) -> None:  # M1
    one, two = stores(database, time, "one", "two")
    await one.add("r", new_row())
    held = await one.claim((await one.under_way())[0], 15.0)
    assert held is not None
    line = ToolLine(tool="x", arguments={"a": 1}, result={"$b": [None]}, iteration=1)
    progress = RunProgress(tool_calls=(line,), iterations=1, input_tokens=5)
    await held.checkpoint(progress)
    time.at += timedelta(seconds=16)
    taken = await two.claim((await two.under_way())[0], 15.0)
    assert taken is not None
    assert (taken.work.progress, taken.row.iterations) == (progress, 1)
    await taken.finish(RunOutcome("completed", progress, final_message="done"))
    row = await people(two).row("t", "r")
    assert (row["status"], row["final_message"], row["ended_at"]) == (
        "completed",
        "done",
        "2026-05-04T12:00:16Z",
    )
    assert row["tool_calls_log"] == [
        {"tool": "x", "arguments": {"a": 1}, "result": {"$b": [None]}, "iteration": 1}
    ]
    assert await two.under_way() == []


async def test_a_given_back_run_waits_and_only_failures_count(database: Database, time: Time) -> None:  # M1
    (one,) = stores(database, time, "one")
    await one.add("r", new_row())
    for pause, failed in ((0.0, False), (5.0, False), (3.0, True)):
        (run,) = await one.under_way()
        held = await one.claim(run, 15.0)
        assert held is not None
        await held.give_back(pause, delayed=True, failed=failed)
        (run,) = await one.under_way()
        assert run.is_due(time.at.timestamp()) == (pause == 0)
        time.at += timedelta(seconds=pause)
        assert run.is_due(time.at.timestamp())
    assert (run.work.attempts, run.work.delays) == (1, 3)


async def test_each_lost_holder_makes_the_pause_before_the_next_longer(
    database: Database, time: Time
) -> None:  # M1
    """Ten processes that die within seconds of each other do not use up the attempts of what they held."""
    one, two = stores(database, time, "one", "two")
    await one.add("r", new_row())
    pauses: list[float] = []
    for _ in range(9):
        (run,) = await two.under_way()
        assert await two.claim(run, 15.0) is not None
        time.at += timedelta(seconds=15)
        (run,) = await one.under_way()
        lost_at = time.at
        while not run.is_due(time.at.timestamp()):
            time.at += timedelta(seconds=0.5)
        pauses.append((time.at - lost_at).total_seconds())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    held = await one.claim(run, 15.0)
    assert held is not None
    await held.checkpoint(RunProgress())
    time.at += timedelta(seconds=16)
    (run,) = await two.under_way()
    assert run.is_due(time.at.timestamp()), "what went well begins anew"


async def test_a_run_that_waits_is_decided_once(database: Database, time: Time) -> None:  # M11
    (one,) = stores(database, time, "one")
    await one.add("r", new_row())
    held = await one.claim((await one.under_way())[0], 15.0)
    assert held is not None
    await held.finish(RunOutcome("waiting", RunProgress(iterations=1, waiting=(CALL,), waiting_at=1)))
    assert not (await one.under_way())[0].is_due(time.at.timestamp() + 1_000)
    looking = people(one)
    row = await looking.row("t", "r")
    assert row["waiting"] == [{"tool": "send_reply", "arguments": {"to": "a@example.org"}}]
    assert "work" not in row
    assert [each["id"] for each in await looking.rows("t", "waiting")] == ["r"]
    assert (await looking.decide("t", "r", "approved"))["status"] == "queued"
    with pytest.raises(ReloadAndDecide, match="run_not_waiting"):
        await looking.decide("t", "r", "rejected")
    with pytest.raises(LookElsewhere, match="run_unknown"):
        await looking.decide("other", "r", "approved")
    (run,) = await one.under_way()
    assert run.is_due(time.at.timestamp())
    assert run.work.decision == "approved"
    assert [event["event"] for event in (await looking.row("t", "r"))["email_events"]] == ["approved"]  # type: ignore[union-attr,index]


async def test_events_are_written_once_and_calls_are_counted(database: Database, time: Time) -> None:  # M14
    (one,) = stores(database, time, "one")
    await one.add("r", new_row())
    held = await one.claim((await one.under_way())[0], 15.0)
    assert held is not None
    for _ in range(2):
        await held.event(MailEvent("received"))
    for number in ("a", "b"):
        call = ModelCallRecord(number, time.at, None, None, "agent", "m", "ok", None, 3, 4, 5)
        await held.write(call)
    await held.finish(RunOutcome("error", error="timeout: none"))
    row = await people(one).row("t", "r")
    facts = {"mailbox": "box", "message_id": "<m@example.org>", "rule": "r", "at": "2026-05-04T12:00:00Z"}
    assert row["email_events"] == [{"event": "received", **facts}]
    calls = row["llm_calls"]
    assert isinstance(calls, list)
    assert [(call["run_id"], call["call_type"], call["iteration"]) for call in calls] == [  # type: ignore[index,call-overload]
        ("r", "agent", 1),
        ("r", "agent", 2),
    ]


async def test_texts_of_ended_runs_are_forgotten_after_their_time(
    database: Database, time: Time
) -> None:  # M14
    (one,) = stores(database, time, "one")
    await one.add("r", new_row())
    held = await one.claim((await one.under_way())[0], 15.0)
    assert held is not None
    line = ToolLine(
        tool="create_draft", arguments={"body": "secret"}, result={"status": "created"}, iteration=1
    )
    await held.finish(RunOutcome("completed", RunProgress(tool_calls=(line,)), final_message="secret"))
    assert await one.forget_bodies(time.at) == 0
    assert await one.forget_bodies(time.at + timedelta(seconds=1)) == 1
    assert await one.forget_bodies(time.at + timedelta(seconds=1)) == 0
    row = await people(one).row("t", "r")
    assert "secret" not in str(row)
    assert [each["tool"] for each in row["tool_calls_log"]] == ["create_draft"]  # type: ignore[union-attr,index,call-overload]


async def test_two_processes_that_forget_at_once_forget_once(database: Database, time: Time) -> None:  # M14
    one, two = stores(database, time, "one", "two")
    for number in range(3):
        await one.add(f"r{number}", new_row(f"<{number}@example.org>"))
        held = await one.claim((await one.under_way())[0], 15.0)
        assert held is not None
        await held.finish(RunOutcome("completed", final_message="secret"))
    later = time.at + timedelta(seconds=1)
    forgotten = await asyncio.gather(one.forget_bodies(later), two.forget_bodies(later))
    assert sum(forgotten) == 3
    assert "secret" not in str(await people(one).rows("t"))


async def test_runs_are_read_in_pages_in_one_order_wherever_they_stand(  # M14
    database: Database, time: Time
) -> None:
    (one,) = stores(database, time, "one")
    for number in range(9):
        time.at += timedelta(seconds=number % 2)  # some come at the same moment
        await one.add(f"r{number}", new_row(f"<{number}@example.org>"))
    for run in (await one.under_way())[::2]:
        held = await one.claim(run, 15.0)
        assert held is not None
        await held.finish(RunOutcome("completed"))
    time.at += timedelta(seconds=1)
    assert await one.forget_bodies(time.at - timedelta(seconds=1)) == 0, "what ended at that moment stays"
    await one.forget_bodies(time.at)
    looking = people(one)
    every = [str(row["id"]) for row in await looking.rows("t")]
    assert sorted(every) == [f"r{number}" for number in range(9)]
    found: list[str] = []
    while page := await looking.rows("t", after=found[-1] if found else None, limit=2):
        found += [str(row["id"]) for row in page]
    assert found == every
    ended = [str(row["id"]) for row in await looking.rows("t", "completed")]
    assert [str(row["id"]) for row in await looking.rows("t", "completed", after=ended[1])] == ended[2:]
    assert len(ended) == 5
    with pytest.raises(CorrectTheInput, match="after_invalid"):
        await looking.rows("t", after="nothing")
    monkeypatched = agent_runs.CHUNK
    try:
        agent_runs.CHUNK = 2  # type: ignore[misc]
        assert [str(row["id"]) for row in await looking.rows("t")] == every
        assert [str(row["id"]) for row in await looking.rows("t", "completed", limit=4)] == ended[:4]
    finally:
        agent_runs.CHUNK = monkeypatched  # type: ignore[misc]


async def test_a_store_that_is_away_is_logged_once_with_why_and_so_is_its_return(
    database: Database, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:  # F46
    (store,), asked = stores(database, time, "one"), asyncio.Queue[None]()
    under_way, answers = store.under_way, iter([False, False, False, True, True])

    async def sometimes(*_: object) -> Sequence[StoredRun]:
        asked.put_nowait(None)
        if next(answers, True):
            return await under_way()
        raise RetryLater("flow_store_unavailable", "away") from OSError("refused")

    monkeypatch.setattr(store, "under_way", sometimes)

    async def nothing(run: HeldRun) -> RunOutcome:
        raise AssertionError("no run is there")

    metrics = MailMetrics(CollectorRegistry())
    worker, stopping = RunWorker(store, nothing, WorkTuning(poll_s=0.01), metrics, ()), asyncio.Event()
    with capture_logs() as logs:
        working = asyncio.create_task(worker.work(stopping))
        for _ in range(6):
            await asyncio.wait_for(asked.get(), 10)
        stopping.set()
        await working
    assert [(line["event"], line.get("reason")) for line in logs] == [
        ("runs_not_read", "refused"),
        ("runs_read_again", None),
    ]


async def test_a_run_that_nobody_decides_on_ends_in_the_end(database: Database, time: Time) -> None:  # M14
    """Its texts end with it: nothing else would have them forgotten."""
    (store,) = stores(database, time, "one")
    await store.add("r", new_row())
    held = await store.claim((await store.under_way())[0], 15.0)
    assert held is not None
    call = StoredCall(id="c", tool="send_reply", arguments={"body": "secret"})
    await held.finish(RunOutcome("waiting", RunProgress(waiting=(call,))))
    left = list[str]()

    class Agent:
        async def leave(self, held: HeldRun) -> None:
            left.append(held.id)

    worker = RunWorker(store, Agent(), WorkTuning(poll_s=0.01), MailMetrics(CollectorRegistry()), ())  # type: ignore[arg-type]
    stopping = asyncio.Event()
    working = asyncio.create_task(worker.work(stopping))
    time.at += WAITS_AT_MOST - timedelta(seconds=1)
    looked = await people(store).row("t", "r")
    assert (looked["status"], left) == ("waiting", [])
    time.at += timedelta(seconds=1)
    async with asyncio.timeout(30):
        while await store.under_way():
            await asyncio.sleep(0.01)
    stopping.set()
    await working
    row = await people(store).row("t", "r")
    assert (row["status"], row["error"], left) == ("error", UNDECIDED, ["r"])
    assert "secret" not in str(row)


async def test_runs_that_there_is_no_room_for_are_not_read_at_each_look(
    database: Database, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:  # M1
    """With a mailbox's thousands of mails each look took longer than a run."""
    (store,), looks = stores(database, time, "one"), asyncio.Queue[int]()
    for number in range(250):
        await store.add(f"r{number:03}", new_row(f"<{number}@example.org>"))
    under_way = store.under_way

    async def counted(after: StoredRun | None = None, limit: int | None = None) -> Sequence[StoredRun]:
        found = await under_way(after, limit)
        looks.put_nowait(len(found))
        return found

    monkeypatch.setattr(store, "under_way", counted)
    goes_on = asyncio.Event()

    class Slow:
        async def process(self, held: HeldRun) -> RunOutcome:
            await goes_on.wait()
            return RunOutcome("completed")

    registry = CollectorRegistry()
    tuning = WorkTuning(poll_s=60, at_once=1)
    worker = RunWorker(store, Slow(), tuning, MailMetrics(registry), ())  # type: ignore[arg-type]
    stopping = asyncio.Event()
    working = asyncio.create_task(worker.work(stopping))
    assert [await asyncio.wait_for(looks.get(), 10) for _ in range(4)] == [100, 100, 50, 0]
    worker.wake()
    assert await asyncio.wait_for(looks.get(), 10) == 100
    goes_on.set()  # the first one ends, and wakes the worker, which takes the next
    assert await asyncio.wait_for(looks.get(), 10) == 100
    assert registry.get_sample_value("flow_engine_mail_runs_under_way", {"status": "queued"}) == 250
    time.at += timedelta(seconds=5)
    while (found := await asyncio.wait_for(looks.get(), 10)) == 100:
        pass
    assert found < 100, "all are counted again"
    stopping.set()
    await working
