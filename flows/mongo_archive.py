"""Journals of conversations that are over, in MongoDB: documents as `archive` tells them."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo.errors import DuplicateKeyError

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, ArchivedStart, ArchiveTerm
from flows.archive import digest_of, epoch_ms
from flows.mongo_store import MongoDatabase, document_id, mongo_errors_translated


class MongoArchive:
    """Implements `JournalArchive`. Without transactions: what is put is looked at again after an erasure."""

    def __init__(self, database: MongoDatabase) -> None:
        self._database = database
        self._is_indexed = False

    async def put(
        self, conversation: ConversationRef, parts: Sequence[ArchivedPart], origin: str, term: ArchiveTerm
    ) -> bool:
        ended, until = epoch_ms(term.ended_at), epoch_ms(term.kept_until)
        journals = self._database.collection("journals")
        if await self._is_erased(conversation, ended):
            return False
        with mongo_errors_translated():
            if not self._is_indexed:
                await journals.create_index([("kept_until", 1)])
                await journals.create_index([("tenant_id", 1), ("origin", 1)])
                by_tag = [("tenant_id", 1), ("tag", 1), ("started", -1), ("conversation_id", -1)]
                await journals.create_index(by_tag)  # in the order of `begun_by`: nothing is left to sort
                await journals.create_index([("tenant_id", 1), ("conversation_id", 1), ("first", 1)])
                self._is_indexed = True
            for part in parts:
                own = document_id(conversation.tenant_id, f"{conversation.conversation_id}/{part.first}")
                document = {
                    "_id": own,
                    "tenant_id": conversation.tenant_id,
                    "conversation_id": conversation.conversation_id,
                    "first": part.first,
                    "last": part.last,
                    "began": part.began,
                    "origin": origin,
                    "kept_until": until,
                    "content": b64encode(part.content).decode(),  # not every server replaces binaries
                }
                try:
                    await journals.replace_one(
                        {"_id": own, "last": {"$lte": part.last}}, document, upsert=True
                    )
                except DuplicateKeyError:
                    continue  # a longer one is there
            start = {"flow_id": term.flow_id, "tag": term.tag, "started": epoch_ms(term.started_at)}
            await journals.update_many(_of(conversation), {"$set": {"kept_until": until, **start}})
        if await self._is_erased(conversation, ended):
            await self.remove(conversation, removed_at=None)
            return False
        return True

    async def parts(
        self,
        conversation: ConversationRef,
        *,
        after: int = 0,
        at_most: int | None = None,
        now: datetime | None = None,
    ) -> Sequence[ArchivedPart]:
        wanted = {**_of(conversation), "last": {"$gt": after}, "kept_until": {"$gt": epoch_ms(now)}}
        with mongo_errors_translated():
            cursor = self._database.collection("journals").find(wanted).sort([("first", 1)])
            found = await cursor.limit(at_most or 0).to_list()
        return [ArchivedPart(f["first"], f["last"], f["began"], b64decode(f["content"])) for f in found]

    async def begun_by(
        self,
        tenant_id: str,
        tag: str,
        *,
        flow_id: str | None,
        before: ArchivedStart | None,
        at_most: int,
        now: datetime,
    ) -> Sequence[ArchivedStart]:
        wanted: dict[str, object] = {
            "tenant_id": tenant_id,
            "tag": tag,
            "kept_until": {"$gt": epoch_ms(now)},
        }
        wanted |= {} if flow_id is None else {"flow_id": flow_id}
        wanted |= {} if before is None else {"started": {"$lte": before.started}}
        beyond = None if before is None else (before.started, before.conversation_id)
        found: dict[str, ArchivedStart] = {}
        with mongo_errors_translated():
            cursor = self._database.collection("journals").find(
                wanted, {"_id": 0, "conversation_id": 1, "started": 1}
            )
            async for part in cursor.sort([("started", -1), ("conversation_id", -1)]):
                id, started = part["conversation_id"], part["started"]
                if len(found) == at_most and id not in found:
                    break
                if beyond is None or (started, id) < beyond:
                    found[id] = ArchivedStart(id, started)
        return list(found.values())

    async def forks(self, conversation: ConversationRef) -> Sequence[str]:
        wanted = {"tenant_id": conversation.tenant_id, "origin": conversation.conversation_id}
        with mongo_errors_translated():
            cursor = self._database.collection("journals").find(wanted, {"conversation_id": 1})
            found = await cursor.to_list()
        return sorted({each["conversation_id"] for each in found})

    async def remove(self, conversation: ConversationRef, *, removed_at: datetime | None) -> None:
        with mongo_errors_translated():
            if removed_at is not None:
                own = document_id(conversation.tenant_id, digest_of(conversation))
                document = {
                    "_id": own,
                    "tenant_id": conversation.tenant_id,
                    "erased_at": epoch_ms(removed_at),
                }
                await self._database.collection("erased_journals").replace_one(
                    {"_id": own}, document, upsert=True
                )
            await self._database.collection("journals").delete_many(_of(conversation))

    async def prune(self, now: datetime, *, at_most: int, erased_before: datetime) -> int:
        journals = self._database.collection("journals")
        with mongo_errors_translated():
            over = journals.find({"kept_until": {"$lte": epoch_ms(now)}}, {"_id": 1})
            found = await over.limit(at_most).to_list()
            for each in found:
                await journals.delete_one({"_id": each["_id"]})
            await self._database.collection("erased_journals").delete_many(
                {"erased_at": {"$lt": epoch_ms(erased_before)}}
            )
        return len(found)

    async def _is_erased(self, conversation: ConversationRef, ended: int) -> bool:
        own = document_id(conversation.tenant_id, digest_of(conversation))
        with mongo_errors_translated():
            found = await self._database.collection("erased_journals").find_one({"_id": own})
        return found is not None and found["erased_at"] >= ended


def _of(conversation: ConversationRef) -> dict[str, Any]:
    return {"tenant_id": conversation.tenant_id, "conversation_id": conversation.conversation_id}
