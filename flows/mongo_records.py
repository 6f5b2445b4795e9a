"""Tables of JSON documents in MongoDB, as JSON text like those in `records`."""

from collections.abc import Sequence
from typing import Any

from flow_engine.ports.records import Record, RecordTable
from flows.mongo_store import MongoDatabase, document_id, insert_document, mongo_errors_translated
from flows.records import COLUMNS, LATEST, record_of, text_of


class MongoRecords:
    """Implements `RecordStore`. A collection of `{_id, tenant_id, id, parent, position, serial, record}`."""

    def __init__(self, database: MongoDatabase, table: RecordTable) -> None:
        self._database = database
        self._table = table
        self._is_indexed = False

    async def insert(self, tenant_id: str, record: Record) -> bool:
        if not self._is_indexed:
            with mongo_errors_translated():
                collection = self._database.collection(self._table)
                await collection.create_index([("tenant_id", 1), ("parent", 1), ("position", 1)])
                if self._table in LATEST:
                    await collection.create_index([("tenant_id", 1), ("position", 1), ("id", 1)])
            self._is_indexed = True
        return await insert_document(self._database.collection(self._table), _document(tenant_id, record))

    async def replace(self, tenant_id: str, record: Record, expected_serial: int) -> bool:
        with mongo_errors_translated():
            result = await self._database.collection(self._table).replace_one(
                {"_id": document_id(tenant_id, record.id), "serial": expected_serial},
                _document(tenant_id, record),
            )
        return result.matched_count == 1

    async def get(self, tenant_id: str, record_id: str) -> Record | None:
        with mongo_errors_translated():
            found = await self._database.collection(self._table).find_one(
                {"_id": document_id(tenant_id, record_id)}
            )
        return None if found is None else _of_document(found)

    async def list(
        self,
        tenant_id: str,
        parent: str | None = "",
        *,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[Record]:
        wanted: dict[str, Any] = {"tenant_id": tenant_id}
        way, behind = (-1, "$lt") if parent is None else (1, "$gt")
        if parent is not None:
            wanted["parent"] = parent
        if after is not None:
            position, record_id = after
            beside = {"position": position, "id": {behind: record_id}}
            wanted["$or"] = [{"position": {behind: position}}, beside]
        with mongo_errors_translated():
            cursor = self._database.collection(self._table).find(wanted)
            found = await cursor.sort([("position", way), ("id", way)]).limit(limit or 0).to_list()
        return [_of_document(each) for each in found]

    async def delete(self, tenant_id: str, record_id: str, expected_serial: int) -> bool:
        with mongo_errors_translated():
            result = await self._database.collection(self._table).delete_one(
                {"_id": document_id(tenant_id, record_id), "serial": expected_serial}
            )
        return result.deleted_count == 1


def _document(tenant_id: str, record: Record) -> dict[str, Any]:
    return {
        "_id": document_id(tenant_id, record.id),
        "tenant_id": tenant_id,
        "id": record.id,
        "parent": record.parent,
        "position": record.position,
        "serial": record.serial,
        "record": text_of(record),
    }


def _of_document(found: dict[str, Any]) -> Record:
    return record_of(tuple(found[column] for column in COLUMNS.split(", ")))
