"""What every archive of journals promises, checked on each implementation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, ArchiveTerm, JournalArchive
from flows.archive import MongoArchive, SqliteArchive
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
