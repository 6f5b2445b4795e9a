"""What every archive of journals promises, checked on each implementation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, JournalArchive
from flows.archive import MongoArchive, SqliteArchive
from flows.mongo_store import MongoDatabase
from flows.sqlite_store import FILE_NAME, SqliteDatabase

pytestmark = pytest.mark.anyio

ENDED = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
LATER = ENDED + timedelta(minutes=1)
TALK, OTHER = ConversationRef("t", "a/b"), ConversationRef("other", "a/b")
FIRST, SECOND = ArchivedPart(1, 64, 1_000, b"\x00one"), ArchivedPart(65, 70, 2_000, b"two")


@pytest.fixture
def archive(database: SqliteDatabase | MongoDatabase) -> JournalArchive:
    return SqliteArchive(database) if isinstance(database, SqliteDatabase) else MongoArchive(database)


async def test_what_is_put_is_read_back_from_behind_an_entry_on(archive: JournalArchive) -> None:
    assert await archive.put(TALK, [FIRST, SECOND], ended_at=ENDED)  # journal: archive
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
        assert await archive.put(TALK, parts, ended_at=ENDED)
    assert await archive.parts(TALK) == [FIRST, longer]


async def test_what_ended_before_is_not_told_and_goes_with_the_next_pruning(archive: JournalArchive) -> None:
    await archive.put(TALK, [FIRST], ended_at=ENDED)
    await archive.put(TALK, [SECOND], ended_at=LATER)  # the whole conversation ended then
    await archive.put(OTHER, [FIRST, SECOND], ended_at=ENDED)
    assert await archive.parts(OTHER, ended_after=LATER) == []
    assert await archive.parts(TALK, ended_after=LATER) == [FIRST, SECOND]
    assert [await archive.prune(LATER, at_most=1) for _ in range(3)] == [1, 1, 0]
    assert (await archive.parts(OTHER), await archive.parts(TALK)) == ([], [FIRST, SECOND])


async def test_what_is_removed_does_not_come_back_by_what_was_read_before(archive: JournalArchive) -> None:
    await archive.put(TALK, [FIRST], ended_at=ENDED)
    await archive.put(OTHER, [FIRST], ended_at=ENDED)
    await archive.remove(TALK, removed_at=LATER)
    assert not await archive.put(TALK, [FIRST, SECOND], ended_at=ENDED)
    assert (await archive.parts(TALK), await archive.parts(OTHER)) == ([], [FIRST])
    again = LATER + timedelta(seconds=1)  # one that begins anew under the id
    assert await archive.put(TALK, [FIRST], ended_at=again)
    assert await archive.parts(TALK) == [FIRST]
    await archive.remove(TALK, removed_at=None)
    assert await archive.put(TALK, [FIRST], ended_at=again)
    await archive.prune(again + timedelta(days=1), at_most=9)
    assert await archive.put(TALK, [FIRST], ended_at=ENDED), "what was removed long ago is forgotten"


async def test_of_what_is_removed_no_file_keeps_a_byte(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    await database.open()
    archive, needle = SqliteArchive(database), b"needle" * 2_000
    await archive.put(TALK, [ArchivedPart(1, 2, 1, needle)], ended_at=ENDED)
    await archive.put(OTHER, [FIRST], ended_at=ENDED)

    def found() -> bool:
        return any(b"needle" in file.read_bytes() for file in tmp_path.glob(f"{FILE_NAME}*"))

    assert found()
    await archive.remove(TALK, removed_at=LATER)
    assert not found()
    assert await archive.parts(OTHER) == [FIRST]
    await database.close()
