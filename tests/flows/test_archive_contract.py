"""What every archive of journals promises, checked on each implementation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, ArchivedStart, ArchiveTerm, JournalArchive
from flows.archive import SqliteArchive
from flows.mongo_archive import MongoArchive
from flows.mongo_store import MongoDatabase
from flows.sqlite_store import FILE_NAME, SqliteDatabase

pytestmark = pytest.mark.anyio

ENDED = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
LATER = ENDED + timedelta(minutes=1)
TALK, OTHER = ConversationRef("t", "a/b"), ConversationRef("other", "a/b")
FIRST, SECOND = ArchivedPart(1, 64, 1_000, b"\x00one"), ArchivedPart(65, 70, 2_000, b"two")
KEPT = timedelta(days=2)


def term(ended_at: datetime) -> ArchiveTerm:
    return ArchiveTerm(ended_at, ended_at + KEPT)


@pytest.fixture
def archive(database: SqliteDatabase | MongoDatabase) -> JournalArchive:
    return SqliteArchive(database) if isinstance(database, SqliteDatabase) else MongoArchive(database)


async def test_what_is_put_is_read_back_from_behind_an_entry_on(archive: JournalArchive) -> None:
    assert await archive.put(TALK, [FIRST, SECOND], "", term(ENDED))  # journal: archive
    assert await archive.parts(TALK) == [FIRST, SECOND]
    assert await archive.parts(TALK, after=63, at_most=1) == [FIRST]
    assert await archive.parts(TALK, after=64) == [SECOND]
    assert await archive.parts(TALK, after=70) == []
    assert await archive.parts(OTHER) == []


async def test_the_same_again_changes_nothing_and_a_longer_part_takes_the_place(
    archive: JournalArchive,
) -> None:
    longer = ArchivedPart(65, 72, 2_000, b"two and more")
    for parts in ([FIRST, SECOND], [FIRST, SECOND], [longer], [SECOND]):
        assert await archive.put(TALK, parts, "", term(ENDED))
    assert await archive.parts(TALK) == [FIRST, longer]


async def test_what_ended_before_is_not_told_and_goes_with_the_next_pruning(archive: JournalArchive) -> None:
    await archive.put(TALK, [FIRST], "", term(ENDED))
    await archive.put(TALK, [SECOND], "", term(LATER))  # the whole conversation ended then
    await archive.put(OTHER, [FIRST, SECOND], "", term(ENDED))
    assert await archive.parts(OTHER, now=LATER + KEPT - timedelta(seconds=1)) == []
    assert await archive.parts(TALK, now=LATER + KEPT - timedelta(seconds=1)) == [FIRST, SECOND]
    assert [await archive.prune(ENDED + KEPT, at_most=1, erased_before=ENDED) for _ in range(3)] == [1, 1, 0]
    assert (await archive.parts(OTHER), await archive.parts(TALK)) == ([], [FIRST, SECOND])


async def test_what_is_removed_does_not_come_back_by_what_was_read_before(archive: JournalArchive) -> None:
    await archive.put(TALK, [FIRST], "", term(ENDED))
    await archive.put(OTHER, [FIRST], "", term(ENDED))
    await archive.remove(TALK, removed_at=LATER)
    assert not await archive.put(TALK, [FIRST, SECOND], "", term(ENDED))
    assert (await archive.parts(TALK), await archive.parts(OTHER)) == ([], [FIRST])
    again = LATER + timedelta(seconds=1)  # one that begins anew under the id
    assert await archive.put(TALK, [FIRST], "", term(again))
    assert await archive.parts(TALK) == [FIRST]
    await archive.remove(TALK, removed_at=None)
    assert await archive.put(TALK, [FIRST], "", term(again))
    await archive.prune(ENDED, at_most=9, erased_before=again)
    assert await archive.put(TALK, [FIRST], "", term(ENDED)), "what was removed long ago is forgotten"


async def test_forks_are_found_by_what_they_began_with(archive: JournalArchive) -> None:
    for id in ("f1", "f2"):
        await archive.put(ConversationRef("t", id), [FIRST, SECOND], "a/b", term(ENDED))
    await archive.put(ConversationRef("other", "f3"), [FIRST], "a/b", term(ENDED))
    await archive.put(TALK, [FIRST], "", term(ENDED))
    assert sorted(await archive.forks(TALK)) == ["f1", "f2"]
    assert await archive.forks(ConversationRef("t", "f1")) == []


async def test_those_of_a_tag_are_found_by_their_start_the_newest_first(archive: JournalArchive) -> None:
    starts = {"a": (ENDED, "prod"), "b": (LATER, "prod"), "c": (LATER, "prod"), "d": (LATER, "beta")}
    for id, (start, tag) in starts.items():
        flow_id = "f2" if id == "c" else "f1"
        begun = ArchiveTerm(LATER, LATER + KEPT, start, flow_id, tag)
        await archive.put(ConversationRef("t", id), [FIRST, SECOND], "", begun)
    await archive.put(OTHER, [FIRST], "", ArchiveTerm(LATER, LATER + KEPT, LATER, "f1", "prod"))
    await archive.put(TALK, [FIRST], "", term(LATER))  # as an earlier release put it: nothing is known

    async def found(flow_id: str | None = None, at_most: int = 9, after: ArchivedStart | None = None) -> str:
        rows = await archive.begun_by("t", "prod", flow_id=flow_id, before=after, at_most=at_most, now=LATER)
        return "".join(row.conversation_id for row in rows)

    assert (await found(), await found("f1"), await found("f3"), await found(at_most=2)) == (
        "cba",
        "ba",
        "",
        "cb",
    )
    [first] = await archive.begun_by("t", "prod", flow_id=None, before=None, at_most=1, now=LATER)
    assert first == ArchivedStart("c", int(LATER.timestamp() * 1000))
    assert await found(after=first, at_most=1) == "b"
    assert await found(after=first) == "ba"
    await archive.remove(ConversationRef("t", "b"), removed_at=LATER)
    assert await found() == "ca"
    over = await archive.begun_by("t", "prod", flow_id=None, before=None, at_most=9, now=LATER + KEPT)
    assert over == []


async def test_a_table_of_an_earlier_release_is_read_and_written(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    await database.open()
    await database.rows(
        "CREATE TABLE journals (tenant_id TEXT NOT NULL, conversation_id TEXT NOT NULL, "
        "first INTEGER NOT NULL, last INTEGER NOT NULL, began INTEGER NOT NULL, "
        "origin TEXT NOT NULL, kept_until INTEGER NOT NULL, content BLOB NOT NULL, "
        "PRIMARY KEY (tenant_id, conversation_id, first))",
        (),
    )
    until = int((ENDED + KEPT).timestamp() * 1000)
    old = (*TALK, FIRST.first, FIRST.last, FIRST.began, "", until, FIRST.content)
    await database.rows("INSERT INTO journals VALUES (?, ?, ?, ?, ?, ?, ?, ?)", old)
    archive, again = SqliteArchive(database), SqliteArchive(database)
    assert await archive.parts(TALK) == [FIRST]
    assert await archive.begun_by("t", "prod", flow_id=None, before=None, at_most=9, now=ENDED) == []
    await archive.put(TALK, [SECOND], "", ArchiveTerm(ENDED, ENDED + KEPT, ENDED, "f1", "prod"))
    rows = await again.begun_by("t", "prod", flow_id="f1", before=None, at_most=9, now=ENDED)
    assert [row.conversation_id for row in rows] == [TALK.conversation_id]
    await database.close()


async def test_of_what_is_removed_no_file_keeps_a_byte(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    await database.open()
    archive, needle = SqliteArchive(database), b"needle" * 2_000
    await archive.put(TALK, [ArchivedPart(1, 2, 1, needle)], "", term(ENDED))
    await archive.put(OTHER, [FIRST], "", term(ENDED))

    def found() -> bool:
        return any(b"needle" in file.read_bytes() for file in tmp_path.glob(f"{FILE_NAME}*"))

    assert found()
    await archive.remove(TALK, removed_at=LATER)
    assert not found()
    assert await archive.parts(OTHER) == [FIRST]
    await database.close()
