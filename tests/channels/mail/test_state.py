"""What is remembered of a mailbox, and for how long: counts of a day, replies that are about to go out."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from channels.mail.composing import new_message_id
from channels.mail.config import Limits
from channels.mail.ports import RunOutcome
from channels.mail.runs import RunStore
from channels.mail.state import MailboxState
from flow_engine.ports.records import RecordStore
from tests.channels.mail.mails import config
from tests.channels.mail.test_runs import Database, Time, new_row, records, stores, time

__all__ = ["time"]

pytestmark = pytest.mark.anyio
BOX = config().every_mailbox[0]


@pytest.fixture
def runs(database: Database, time: Time) -> RunStore:
    return stores(database, time, "here")[0]


@pytest.fixture
def table(database: Database) -> RecordStore:
    return records(database, "mail_state")


def state(table: RecordStore, runs: RunStore, mailbox: str = "box", **limits: Any) -> MailboxState:
    return MailboxState(table, runs, Limits(**limits), mailbox)


async def test_replies_and_runs_are_counted_over_24_hours(  # M15
    table: RecordStore, runs: RunStore, time: Time
) -> None:
    limits = {"replies_per_correspondent": 2, "replies_per_thread": 3, "runs_per_sender": 1}
    allowed = state(table, runs, **limits)
    assert await allowed.reply("<1>", "thread", ["A@example.org"]) is None
    assert await allowed.reply("<1>", "thread", ["a@example.org"]) is None, "the same once"
    assert await allowed.reply("<2>", "thread", ["a@example.org"]) is None
    refused = await allowed.reply("<3>", "other", ["a@example.org"])
    assert refused == "a recipient has had 2 replies in 24 hours"
    assert await allowed.reply("<4>", "thread", ["b@example.org"]) is None
    thread = await allowed.reply("<5>", "thread", ["c@example.org"])
    assert thread == "the thread has had 3 replies in 24 hours"
    assert await allowed.run("r1", "a@example.org") is None
    assert await allowed.run("r2", "A@example.org") == "the sender has had 1 runs in 24 hours"
    assert await state(table, runs, "other", **limits).run("r2", "a@example.org") is None
    time.at += timedelta(hours=24)
    assert await allowed.reply("<3>", "thread", ["a@example.org"]) is None
    assert await allowed.run("r2", "a@example.org") is None


async def test_what_was_not_sent_uses_up_no_limit(table: RecordStore, runs: RunStore) -> None:  # M15
    allowed = state(table, runs, replies_per_correspondent=1, replies_per_thread=2)
    assert await allowed.reply("<1>", "thread", ["b@example.org"]) is None
    assert await allowed.reply("<2>", "other", ["a@example.org", "b@example.org"]) is not None
    assert await allowed.reply("<3>", "thread", ["a@example.org"]) is None, "a@ has had none"
    assert (
        await allowed.reply("<4>", "thread", ["c@example.org"]) == "the thread has had 2 replies in 24 hours"
    )
    assert await allowed.reply("<5>", "new", ["c@example.org"]) is None, "c@ has had none"
    for _ in range(2):
        await allowed.unsent("<3>", "thread", ["A@example.org"])
    assert await allowed.reply("<6>", "thread", ["a@example.org"]) is None
    assert await allowed.reply("<3>", "thread", ["d@example.org"]) is not None, "it is counted anew"


async def test_a_senders_tokens_are_those_of_all_its_runs_of_a_day(  # M15
    table: RecordStore, runs: RunStore, time: Time
) -> None:
    allowed = state(table, runs, tokens_per_sender=100)
    assert await allowed.tokens("r1", "a@example.org", 40) is None
    assert await allowed.tokens("r1", "a@example.org", 60) is None, "in place of 40"
    assert await allowed.tokens("r2", "a@example.org", 40) is None
    spent = "the sender has used 100 tokens in 24 hours"
    assert await allowed.tokens("r2", "A@example.org", 41) == spent
    assert await allowed.tokens("r3", "a@example.org", 0) == spent
    assert await allowed.tokens("r3", "b@example.org", 0) is None
    time.at += timedelta(hours=12)
    assert await allowed.tokens("r3", "a@example.org", 0) == spent
    time.at += timedelta(hours=12)
    assert await allowed.tokens("r3", "a@example.org", 0) is None


async def test_of_many_at_once_none_passes_the_bound(table: RecordStore, runs: RunStore) -> None:  # M15
    allowed = state(table, runs, replies_per_thread=3)
    answers = await asyncio.gather(
        *(allowed.reply(f"<{number}>", "thread", [f"a{number}@example.org"]) for number in range(8))
    )
    assert answers.count(None) == 3


async def test_of_many_who_intend_the_same_reply_one_sends_it(
    table: RecordStore, runs: RunStore
) -> None:  # M1
    boxes = [state(table, runs) for _ in range(5)]
    found = await asyncio.gather(*(box.intend("<a@example.org>") for box in boxes))
    assert found.count(None) == 1
    assert {each["state"] for each in found if each is not None} == {"intent"}
    await boxes[0].became("<a@example.org>", "drafted", "busy")
    again = await boxes[1].intend("<a@example.org>")
    assert again is not None
    assert (again["state"], again["reason"]) == ("drafted", "busy")


async def test_what_counts_no_more_is_deleted(  # M14
    table: RecordStore, runs: RunStore, time: Time
) -> None:
    box = state(table, runs)
    await box.reply("<1>", "thread", ["a@example.org"])
    await box.run("r1", "a@example.org")
    assert await box.prune() == 0
    time.at += timedelta(hours=23)
    await box.run("r2", "a@example.org")
    time.at += timedelta(hours=2)
    assert await box.prune() == 2, "those of the reply; the sender has a run of this day"
    assert await box.run("r3", "a@example.org") is None
    left = await table.list("t", "counts:box")
    assert [sorted(record.body["counted"]) for record in left] == [["r2", "r3"]]  # type: ignore[arg-type]
    assert await state(table, runs, "other").prune() == 0


async def test_a_reply_is_remembered_while_its_run_may_send_it_again(  # M1
    table: RecordStore, runs: RunStore, time: Time
) -> None:
    box = state(table, runs)
    for name in ("done", "open"):
        await runs.add(name, new_row(f"<{name}@example.org>"))
        message_id = new_message_id(name, 0, BOX)
        assert await box.intend(message_id) is None
        await box.became(message_id, "sent", None)
    held = await runs.claim((await runs.under_way())[0], 15.0)
    assert held is not None
    assert held.id == "done"
    await held.finish(RunOutcome("completed"))
    time.at += timedelta(days=6)
    assert await box.prune() == 0
    time.at += timedelta(days=2)
    assert await box.prune() == 1
    assert await box.intend(new_message_id("open", 0, BOX)) is not None, (
        "a run that goes on sends nothing twice"
    )
    assert await box.intend(new_message_id("done", 0, BOX)) is None
