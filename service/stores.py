"""The stores that the settings name: MongoDB or SQLite, Redis or this process, and what stands on them."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from os import W_OK, access, geteuid

from flow_engine.errors import CallTheOperator
from flow_engine.ports.clock import Clock
from flow_engine.ports.flow_store import FlowStore, VersionStore
from flow_engine.ports.records import RecordStore, RecordTable
from flow_engine.use_cases.agent_runs import AgentRuns
from flow_engine.use_cases.archiving import KeptJournal
from flow_engine.use_cases.versions_in_use import Versions
from flows.archive import SqliteArchive
from flows.records import SqliteRecords
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from memory.connection import RedisMemory, connect
from memory.schedule import RedisJobSchedule
from service import late
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class FlowDatabase:
    """A flow database with the two stores on it."""

    connection: SqliteDatabase | late.mongo_store.MongoDatabase
    flows: FlowStore
    versions: VersionStore


def new_id() -> str:
    return uuid.uuid4().hex


def open_flow_database(settings: Settings) -> FlowDatabase:
    """MongoDB where its URL is set, else SQLite. Raises CallTheOperator `data_dir_unusable`."""
    if settings.mongo_url is not None:
        stores = late.mongo_store
        mongo = stores.MongoDatabase(settings.mongo_url)
        return FlowDatabase(mongo, stores.MongoFlowStore(mongo), stores.MongoVersionStore(mongo))
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"FLOW_ENGINE_DATA_DIR: {settings.data_dir} cannot be made or used: {error.strerror}"
        raise CallTheOperator("data_dir_unusable", message) from error
    if not access(settings.data_dir, W_OK):  # SQLite would say that it cannot open a file, and not which
        user = f"the user of this process, {geteuid()}, may not write"
        raise CallTheOperator("data_dir_unusable", f"FLOW_ENGINE_DATA_DIR: {user} in {settings.data_dir}")
    sqlite = SqliteDatabase(settings.data_dir)
    return FlowDatabase(sqlite, SqliteFlowStore(sqlite), SqliteVersionStore(sqlite))


def records_of(database: FlowDatabase, table: RecordTable) -> RecordStore:
    connection = database.connection
    if isinstance(connection, SqliteDatabase):
        return SqliteRecords(connection, table)
    return late.mongo_records.MongoRecords(connection, table)


def kept_journal(
    settings: Settings, memory: RedisMemory, database: FlowDatabase, versions: Versions, clock: Clock
) -> KeptJournal:
    """The journals in Redis and in the archive."""
    connection = database.connection
    sqlite = isinstance(connection, SqliteDatabase)
    archive = SqliteArchive(connection) if sqlite else late.mongo_archive.MongoArchive(connection)
    return KeptJournal(
        *(memory.journal, memory.listing, archive, database.flows, versions, clock),
        kept=timedelta(days=settings.journal_days),
        schedule=RedisJobSchedule(memory.driver).schedule,
    )


def agent_runs(database: FlowDatabase, clock: Clock) -> AgentRuns:
    return AgentRuns(
        records_of(database, "agent_runs"),
        records_of(database, "llm_calls"),
        records_of(database, "email_events"),
        clock,
    )


def open_memory(settings: Settings) -> RedisMemory:
    if settings.redis_url is None:
        return late.in_process_memory.embedded()
    return connect(
        settings.redis_url,
        cluster=settings.redis_cluster,
        wait_replicas=settings.redis_wait_replicas,
        durability=None if settings.redis_unsafe else settings.redis_durability,
        held_bytes=settings.held_bytes,
    )
