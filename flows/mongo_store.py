"""Flows and versions in MongoDB: the store of production (F42).

A write counts once a majority of the replica set has it, and reads see only such writes: a reply that
was read under an idempotency key is never rolled back afterwards.

The driver's retry of writes stays on. It repeats a write at most with the same session and transaction
number, by which the server knows that it has done it already and answers as it did the first time: the
number is the operation id that a repeated write needs (F44). A standalone server has no such numbers, and
the driver does not retry there. So an insert that reports a duplicate, or a replacement that matches
nothing, always means that somebody else was faster.

Only commands that every server of the wire protocol has are used: insert, replace over the revision,
find, and one index. No transactions, since one document is the unit of every change.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import quote

import structlog
from pymongo import AsyncMongoClient, errors
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from flow_engine.errors import CallTheOperator, CorrectTheInput, RetryLater
from flow_engine.ports.flow_store import FlowRecord, StoredVersion
from flows.codec import flow_from_plain, flow_to_plain

log: Any = structlog.get_logger("flow_engine.flows")

DATABASE_NAME = "flow_engine"
"""Where a URL names none."""
ANSWER_MS = 5_000

_OF_USERS = "admin"
"""A URL that names it says where its user is looked for; it is MongoDB's own, and no place for flows."""

Document = dict[str, Any]

# https://www.mongodb.com/docs/manual/reference/error-codes/: Unauthorized, AuthenticationFailed
_REFUSED = (13, 18)

_QUOTED = re.compile('".*"', re.DOTALL)
"""What pymongo repeats of a URL; with a sign that is not escaped, part of a password may be in it."""

_PARTICULARS = re.compile(r" \(configured timeouts: .*|, Timeout: .*", re.DOTALL)
"""What pymongo tells behind the reason: pages of it, of every server."""


@contextmanager
def mongo_errors_translated() -> Generator[None, None, None]:
    """The one place where the driver's errors become the core's. Raises RetryLater `flow_store_unavailable`;
    waits are bounded by the connection's milliseconds."""
    try:
        yield
    except errors.ConfigurationError as error:
        said = errors.ConfigurationError(_QUOTED.sub("***", str(error)))
        raise CallTheOperator("flow_store_misconfigured", "the MongoDB URL cannot be used") from said
    except errors.DocumentTooLarge as error:
        raise CorrectTheInput(
            "flow_record_too_large", "the flow store takes records of up to 16 MB: save a smaller one"
        ) from error
    except errors.PyMongoError as error:
        if isinstance(error, errors.OperationFailure) and error.code in _REFUSED:
            raise CallTheOperator("flow_store_misconfigured", "MongoDB refuses these credentials") from error
        said = errors.PyMongoError(_PARTICULARS.sub("", str(error)))
        told = "the flow store did not answer"
        if isinstance(error, errors.OperationFailure):  # its own words may quote what was to be stored
            why = f"error {error.code} {(error.details or {}).get('codeName', '')}".rstrip()
            log.warning("flow_store_refuses", reason=why)
            told = f"the flow store refuses: {why} of MongoDB"
        raise RetryLater("flow_store_unavailable", told) from said


def check_url(url: str) -> None:
    """Raises ValueError for a URL that pymongo does not take, without what stands in it. Nothing is asked."""
    try:
        AsyncMongoClient[Document](url, connect=False)
    except OSError as error:
        raise ValueError(f"a file that it names cannot be read: {error.strerror}") from None
    except (errors.PyMongoError, ValueError) as error:
        raise ValueError(_QUOTED.sub("***", str(error))) from None


class MongoDatabase:
    """A client of one MongoDB deployment, and the database that holds the flows: the one of the URL, unless
    another is named.

    `server_selection_ms` bounds the waits for a primary, for a connect and for a free connection, ANSWER_MS
    the wait for an answer, and for the majority. The driver's one limit for all of it (`timeoutMS`) would
    stretch the wait for a primary to its own length.
    """

    def __init__(
        self,
        url: str,
        *,
        database_name: str | None = None,
        server_selection_ms: int = 2000,
    ) -> None:
        self._url = url
        self._database_name = database_name
        self._server_selection_ms = server_selection_ms
        self._client: AsyncMongoClient[Document] | None = None

    async def open(self) -> None:
        """Connect, and create the index that is missing. Raises RetryLater when MongoDB is away. Waits at
        most `server_selection_ms` milliseconds."""
        with mongo_errors_translated():
            self._client = AsyncMongoClient(
                self._url,
                serverSelectionTimeoutMS=self._server_selection_ms,
                connectTimeoutMS=self._server_selection_ms,
                waitQueueTimeoutMS=self._server_selection_ms,
                socketTimeoutMS=ANSWER_MS,
                retryWrites=True,
            )
            named = self._client.get_default_database(DATABASE_NAME).name
        self._database_name = self._database_name or (DATABASE_NAME if named == _OF_USERS else named)
        async with AsyncExitStack() as unless_opened:
            unless_opened.push_async_callback(self.close)
            with mongo_errors_translated():
                await self.collection("flows").create_index([("tenant_id", 1), ("campaign_id", 1)])
            unless_opened.pop_all()

    async def close(self) -> None:
        """Close every connection; a second call does nothing."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def ready(self) -> None:
        """Return when the server that takes the writes answers, else raise RetryLater. Within
        `server_selection_ms` milliseconds."""
        with mongo_errors_translated():
            await self.collection("flows").database.command("ping")

    def collection(self, name: str) -> AsyncCollection[Document]:
        if self._client is None:
            raise RetryLater("flow_store_unavailable", "the flow store is not open")
        return self._client[self._database_name or DATABASE_NAME].get_collection(
            name,
            write_concern=WriteConcern("majority", wtimeout=ANSWER_MS),
            read_concern=ReadConcern("majority"),
        )


class MongoFlowStore:
    """The FlowStore port on MongoDB: a document per flow, `_id` made of tenant and flow id."""

    def __init__(self, database: MongoDatabase) -> None:
        self._database = database

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool:
        return await insert_document(self._database.collection("flows"), _flow_document(tenant_id, flow))

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        with mongo_errors_translated():
            result = await self._database.collection("flows").replace_one(
                {"_id": document_id(tenant_id, flow.flow_id), "revision": expected_revision},
                _flow_document(tenant_id, flow),
            )
        return result.matched_count == 1

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None:
        with mongo_errors_translated():
            document = await self._database.collection("flows").find_one(
                {"_id": document_id(tenant_id, flow_id)}
            )
        return None if document is None else flow_from_plain(document)

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]:
        query = {"tenant_id": tenant_id} | ({} if campaign_id is None else {"campaign_id": campaign_id})
        with mongo_errors_translated():
            documents = await self._database.collection("flows").find(query).to_list()
        return [flow_from_plain(document) for document in documents]


class MongoVersionStore:
    """The VersionStore port on MongoDB: a document per version, `_id` made of tenant and version id."""

    def __init__(self, database: MongoDatabase) -> None:
        self._database = database

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool:
        document = {
            "_id": document_id(tenant_id, version.version_id),
            "tenant_id": tenant_id,
            "version_id": version.version_id,
            "flow_id": version.flow_id,
            "document": version.document,
        }
        return await insert_document(self._database.collection("versions"), document)

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None:
        with mongo_errors_translated():
            found = await self._database.collection("versions").find_one(
                {"_id": document_id(tenant_id, version_id)}
            )
        return (
            None if found is None else StoredVersion(found["version_id"], found["flow_id"], found["document"])
        )

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool:
        # A document never changes under its id, and only the save that has stored it takes it back.
        if await self.get(tenant_id, version.version_id) != version:
            return False
        with mongo_errors_translated():
            result = await self._database.collection("versions").delete_one(
                {"_id": document_id(tenant_id, version.version_id)}
            )
        return result.deleted_count == 1


async def insert_document(collection: AsyncCollection[Document], document: Mapping[str, Any]) -> bool:
    with mongo_errors_translated():
        try:
            await collection.insert_one(dict(document))
        except errors.DuplicateKeyError:
            return False
    return True


def document_id(tenant_id: str, own_id: str) -> str:
    """Percent-encoded parts joined by `/`, which neither can hold: no two pairs share an `_id`."""
    return f"{quote(tenant_id, safe='')}/{quote(own_id, safe='')}"


def _flow_document(tenant_id: str, flow: FlowRecord) -> Document:
    return {"_id": document_id(tenant_id, flow.flow_id), "tenant_id": tenant_id, **flow_to_plain(flow)}
