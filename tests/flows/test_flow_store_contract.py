"""What every flow store promises, checked on each implementation (F7, F42, F43, F44)."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pkgutil
import resource
import socket
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Protocol

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

import flows
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.flow_store import (
    FlowRecord,
    FlowStore,
    Guard,
    RolledBack,
    Split,
    SplitSide,
    StoredReply,
    StoredVersion,
    TagEntry,
    VersionEntry,
    VersionStore,
)
from flows.mongo_store import MongoDatabase, MongoFlowStore, MongoVersionStore, mongo_errors_translated
from flows.sqlite_store import FILE_NAME, MEMORY, SqliteDatabase, SqliteFlowStore, SqliteVersionStore

pytestmark = pytest.mark.anyio

SERVER_VARIABLE = "FLOW_ENGINE_TEST_MONGO_URL"
PLACES = ["sqlite file", "sqlite memory", "mongodb wire"]
if SERVER_VARIABLE in os.environ:
    PLACES.append("mongodb server")

CHECKED_HERE = {SqliteFlowStore, SqliteVersionStore, MongoFlowStore, MongoVersionStore}

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


@dataclass(frozen=True)
class Stores:
    database: SqliteDatabase | MongoDatabase
    flows: FlowStore
    versions: VersionStore


class Server(Protocol):
    """A server that the test may stop."""

    @property
    def url(self) -> str: ...

    def stop(self) -> None: ...


async def _drop(url: str, name: str) -> None:
    async with AsyncMongoClient[dict[str, object]](url) as client:
        await client.drop_database(name)


@pytest.fixture(params=PLACES)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param.startswith("sqlite"):
        local = SqliteDatabase(tmp_path if request.param == "sqlite file" else MEMORY)
        await local.open()
        yield Stores(local, SqliteFlowStore(local), SqliteVersionStore(local))
        await local.close()
        return
    on_wire = request.param == "mongodb wire"
    url = request.getfixturevalue("mongo_url") if on_wire else os.environ[SERVER_VARIABLE]
    name = f"contract_{uuid.uuid4().hex}"
    remote = MongoDatabase(url, database_name=name)
    await remote.open()
    yield Stores(remote, MongoFlowStore(remote), MongoVersionStore(remote))
    await remote.close()
    await _drop(url, name)


def _flow(flow_id: str = "f1", *, campaign_id: str = "c1", name: str = "Bookings") -> FlowRecord:
    return FlowRecord(flow_id, name, campaign_id, "1.0.0", "anna", T0)


def _full_flow() -> FlowRecord:
    entry = VersionEntry("v1", False, ("phone", "chat"), "sha256:ab", "anna", T0)
    draft = VersionEntry("v2", True, (), "sha256:cd", "bruno", T0 + timedelta(microseconds=1), "v1")
    split = Split(
        "s1",
        (SplitSide("v1", 90.0, ((0, 9_000),)), SplitSide("v3", 10.0, ((9_000, 10_000),))),
        Guard("refused", 0.2, 40),
        RolledBack("v3", "refused", T0, "digest"),
    )
    tag = TagEntry("latest", "v1", "anna", T0, split)
    reply = StoredReply("k", "print", 201, b'{"versionId": "v1"}\xff\x00', T0)
    return replace(
        _flow(), revision=7, versions=(entry, draft), tags=(tag,), tag_moves=(tag, tag), replies=(reply,)
    )


def test_the_suite_checks_every_store_of_the_package() -> None:  # F42
    found: set[type] = set()
    for module in pkgutil.iter_modules(flows.__path__, "flows."):
        for name, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if name.endswith(("FlowStore", "VersionStore")) and member.__module__ == module.name:
                found.add(member)
    assert found == CHECKED_HERE


class TestFlows:
    async def test_a_flow_comes_back_as_it_was_stored(self, stores: Stores) -> None:  # F1
        assert await stores.flows.insert("t", _full_flow())
        assert await stores.flows.get("t", "f1") == _full_flow()

    async def test_a_time_with_another_offset_is_still_the_same_time(self, stores: Stores) -> None:  # F1
        flow = replace(_flow(), updated_at=datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2))))
        await stores.flows.insert("t", flow)
        stored = await stores.flows.get("t", "f1")
        assert stored is not None
        assert stored.updated_at == datetime(2026, 3, 1, 12, tzinfo=UTC)

    async def test_an_unknown_flow_is_none(self, stores: Stores) -> None:
        assert await stores.flows.get("t", "f1") is None

    async def test_a_taken_id_is_not_inserted_again(self, stores: Stores) -> None:  # F7
        await stores.flows.insert("t", _flow())
        assert not await stores.flows.insert("t", _flow(name="Other"))
        assert await stores.flows.get("t", "f1") == _flow()

    async def test_of_many_inserts_of_one_id_exactly_one_is_done(self, stores: Stores) -> None:  # F7
        names = [f"n{number}" for number in range(12)]
        done = await asyncio.gather(*(stores.flows.insert("t", _flow(name=name)) for name in names))
        stored = await stores.flows.get("t", "f1")
        assert done.count(True) == 1
        assert stored is not None
        assert stored.name == names[done.index(True)]

    async def test_a_flow_is_replaced_over_the_expected_revision(self, stores: Stores) -> None:  # F7
        await stores.flows.insert("t", _flow())
        newer = replace(_full_flow(), revision=2, name="Renamed", campaign_id="c2")
        assert await stores.flows.replace("t", newer, 1)
        assert await stores.flows.get("t", "f1") == newer
        assert await stores.flows.list("t", "c1") == []
        assert await stores.flows.list("t", "c2") == [newer]

    @pytest.mark.parametrize("expected", [1, 3])
    async def test_another_revision_is_not_replaced(self, stores: Stores, expected: int) -> None:  # F7
        stored = replace(_flow(), revision=2)
        await stores.flows.insert("t", stored)
        assert not await stores.flows.replace("t", replace(stored, revision=9, name="Lost"), expected)
        assert await stores.flows.get("t", "f1") == stored

    async def test_replacing_an_unknown_flow_creates_nothing(self, stores: Stores) -> None:  # F7
        assert not await stores.flows.replace("t", replace(_flow(), revision=2), 1)
        assert await stores.flows.get("t", "f1") is None

    async def test_of_many_replacements_of_one_revision_exactly_one_is_done(
        self, stores: Stores
    ) -> None:  # F7
        await stores.flows.insert("t", _flow())
        for revision in range(1, 6):
            newer = [replace(_flow(name=f"n{number}"), revision=revision + 1) for number in range(12)]
            done = await asyncio.gather(*(stores.flows.replace("t", flow, revision) for flow in newer))
            assert done.count(True) == 1
            assert await stores.flows.get("t", "f1") == newer[done.index(True)]

    async def test_flows_are_listed_by_campaign_or_all(self, stores: Stores) -> None:  # F27
        first, second, third = _flow("f1"), _flow("f2", campaign_id="c2"), _flow("f3")
        for flow in (first, second, third):
            await stores.flows.insert("t", flow)

        async def ids(campaign_id: str | None) -> set[str]:
            return {flow.flow_id for flow in await stores.flows.list("t", campaign_id)}

        assert await ids(None) == {"f1", "f2", "f3"}
        assert await ids("c1") == {"f1", "f3"}
        assert await ids("c3") == set()

    async def test_tenants_do_not_see_one_another(self, stores: Stores) -> None:  # F43
        await stores.flows.insert("a", _flow(name="of a"))
        assert await stores.flows.get("b", "f1") is None
        assert await stores.flows.list("b", None) == []
        assert not await stores.flows.replace("b", replace(_flow(), revision=2), 1)
        assert await stores.flows.insert("b", _flow(name="of b"))
        assert await stores.flows.list("a", "c1") == [_flow(name="of a")]
        assert await stores.flows.list("b", None) == [_flow(name="of b")]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (("a/b", "c"), ("a", "b/c")),
            (("a%2Fb", "c"), ("a/b", "c")),
            (("a", "è"), ("a", "e")),
            (("a", "$where"), ("a", "$ne")),
            (("a", "x' OR '1'='1"), ("a", "x")),
            (("a", "F1"), ("a", "f1")),
            (("a", "f1 "), ("a", "f1")),
            (("a", "f.1"), ("a", "f_1")),
        ],
    )
    async def test_no_two_names_of_tenant_and_flow_meet(
        self, stores: Stores, one: tuple[str, str], other: tuple[str, str]
    ) -> None:  # F43
        assert await stores.flows.insert(one[0], _flow(one[1], name="one"))
        assert await stores.flows.get(*other) is None
        assert await stores.flows.insert(other[0], _flow(other[1], name="other"))
        assert await stores.flows.get(*one) == _flow(one[1], name="one")
        assert await stores.flows.get(*other) == _flow(other[1], name="other")


class TestVersions:
    @pytest.mark.parametrize(
        "document",
        [b"", b'{ "a" :1.0,\n"a": 1e2}\r\n', bytes(range(256)), b"x" * 1_048_576],
        ids=["empty", "spaces and doubled keys", "every byte", "a megabyte"],
    )
    async def test_a_document_comes_back_byte_for_byte(
        self, stores: Stores, document: bytes
    ) -> None:  # F7, F27
        version = StoredVersion("v1", "f1", document)
        assert await stores.versions.insert("t", version)
        assert await stores.versions.get("t", "v1") == version

    async def test_an_unknown_version_is_none(self, stores: Stores) -> None:
        assert await stores.versions.get("t", "v1") is None

    async def test_a_version_never_changes(self, stores: Stores) -> None:  # F7
        version = StoredVersion("v1", "f1", b"{}")
        await stores.versions.insert("t", version)
        assert not await stores.versions.insert("t", StoredVersion("v1", "f2", b"[]"))
        assert await stores.versions.get("t", "v1") == version

    async def test_only_the_very_document_that_is_named_is_removed(self, stores: Stores) -> None:  # A14
        version = StoredVersion("v1", "f1", b"{}")
        await stores.versions.insert("t", version)
        for other in (replace(version, document=b"[]"), replace(version, flow_id="f2")):
            assert not await stores.versions.remove("t", other)
        assert not await stores.versions.remove("another tenant", version)
        assert await stores.versions.get("t", "v1") == version
        assert await stores.versions.remove("t", version)
        assert await stores.versions.get("t", "v1") is None

    async def test_of_many_inserts_of_one_version_exactly_one_is_done(self, stores: Stores) -> None:  # F7
        versions = [StoredVersion("v1", "f1", b"%d" % number) for number in range(12)]
        done = await asyncio.gather(*(stores.versions.insert("t", version) for version in versions))
        assert done.count(True) == 1
        assert await stores.versions.get("t", "v1") == versions[done.index(True)]

    async def test_tenants_do_not_see_one_another(self, stores: Stores) -> None:  # F43
        of_a, of_b = StoredVersion("v1", "f1", b"a"), StoredVersion("v1", "f1", b"b")
        await stores.versions.insert("a", of_a)
        assert await stores.versions.get("b", "v1") is None
        assert await stores.versions.insert("b", of_b)
        assert await stores.versions.get("a", "v1") == of_a


class TestLife:
    async def test_an_open_store_is_ready(self, stores: Stores) -> None:  # F36
        await stores.database.ready()

    async def test_a_closed_store_is_away_and_closing_again_does_nothing(self, stores: Stores) -> None:  # F44
        await stores.database.close()
        await stores.database.close()
        uses: list[Callable[[], Awaitable[object]]] = [
            stores.database.ready,
            lambda: stores.flows.insert("t", _flow()),
            lambda: stores.flows.replace("t", _flow(), 1),
            lambda: stores.flows.get("t", "f1"),
            lambda: stores.flows.list("t", None),
            lambda: stores.versions.insert("t", StoredVersion("v1", "f1", b"")),
            lambda: stores.versions.get("t", "v1"),
        ]
        for use in uses:
            with pytest.raises(RetryLater) as away:
                await use()
            assert away.value.code == "flow_store_unavailable"


async def test_a_file_may_be_opened_by_several_at_once(tmp_path: Path) -> None:  # F42
    databases = [SqliteDatabase(tmp_path) for _ in range(4)]
    await asyncio.gather(*(database.open() for database in databases))
    assert await SqliteFlowStore(databases[0]).insert("t", _flow())
    for database in databases:
        assert await SqliteFlowStore(database).get("t", "f1") == _flow()
        await database.close()


async def test_a_file_is_made_for_its_user_alone_and_one_that_is_there_stays(tmp_path: Path) -> None:  # F42
    before = os.umask(0o022)
    try:
        for mode in (0o600, 0o640):
            database = SqliteDatabase(tmp_path)
            await database.open()
            assert await SqliteFlowStore(database).insert(f"t{mode}", _flow())
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}
            await database.close()
            (tmp_path / FILE_NAME).chmod(0o640)
    finally:
        os.umask(before)


class TestAStoreThatIsAway:
    async def test_a_locked_file_is_retry_later_and_nothing_is_stored(self, tmp_path: Path) -> None:  # F44
        database = SqliteDatabase(tmp_path, busy_timeout_ms=20)
        await database.open()
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryLater, match="flow_store_unavailable"):
            await SqliteFlowStore(database).insert("t", _flow())
        other.execute("ROLLBACK")
        other.close()
        assert await SqliteFlowStore(database).get("t", "f1") is None
        assert await SqliteFlowStore(database).insert("t", _flow())
        await database.close()

    async def test_who_reads_does_not_wait_for_who_waits_to_write(self, tmp_path: Path) -> None:  # F44
        database = SqliteDatabase(tmp_path, busy_timeout_ms=30_000)
        await database.open()
        flows, other = SqliteFlowStore(database), sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(flows.insert("t", _flow()))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            assert await flows.get("t", "f1") is None
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        assert await writing
        assert await flows.get("t", "f1") == _flow()
        await database.close()

    @pytest.mark.parametrize(
        ("pragma", "told"),
        [("max_page_count = 1", "its disk is full"), ("query_only = ON", "its file may only be read")],
    )
    async def test_a_file_that_takes_no_writes_says_why(
        self, tmp_path: Path, pragma: str, told: str
    ) -> None:  # F44
        database = SqliteDatabase(tmp_path)
        await database.open()
        await database.rows(f"PRAGMA {pragma}", ())
        version = StoredVersion("v1", "f1", b"x" * 100_000)
        with capture_logs() as logs, pytest.raises(RetryLater, match=f"flow_store_unavailable: .*{told}"):
            await SqliteVersionStore(database).insert("t", version)
        assert [(line["event"], line["reason"]) for line in logs] == [("flow_store_refuses_writes", told)]
        await database.close()

    def test_a_mongodb_that_takes_no_writes_says_why_and_nothing_of_what_they_hold(self) -> None:  # F44
        said = {"code": 14031, "codeName": "OutOfDiskSpace", "errmsg": "for Ada"}
        with (
            capture_logs() as logs,
            pytest.raises(RetryLater, match="refuses: error 14031 OutOfDiskSpace of MongoDB") as refused,
            mongo_errors_translated(),
        ):
            raise OperationFailure("for Ada", 14031, said)
        assert "Ada" not in refused.value.detail
        assert [(line["event"], line["reason"]) for line in logs] == [
            ("flow_store_refuses", "error 14031 OutOfDiskSpace")
        ]

    async def test_a_disk_without_room_for_a_version_is_not_ready(self, tmp_path: Path) -> None:  # F36, F44
        database = SqliteDatabase(tmp_path, room_bytes=1)
        await database.open()
        await database.ready()
        await database.close()
        crowded = SqliteDatabase(tmp_path, room_bytes=2**62)
        await crowded.open()
        with pytest.raises(RetryLater, match="its disk is full"):
            await crowded.ready()
        await crowded.close()

    async def test_a_start_without_room_beside_the_file_says_so_at_once(self, tmp_path: Path) -> None:  # F44
        database = SqliteDatabase(tmp_path, busy_timeout_ms=60_000)
        await database.open()
        await database.close()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))  # less than what SQLite puts there
        try:
            with pytest.raises(RetryLater, match="its disk is full"):
                async with asyncio.timeout(10):
                    await database.open()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    async def test_a_missing_folder_is_retry_later(self, tmp_path: Path) -> None:  # F44
        with pytest.raises(RetryLater, match="flow_store_unavailable"):
            await SqliteDatabase(tmp_path / "missing").open()

    async def test_a_file_that_is_no_database_needs_the_operator(self, tmp_path: Path) -> None:  # F44
        (tmp_path / FILE_NAME).write_bytes(b"not a database, but long enough to be read as one" * 100)
        with pytest.raises(CallTheOperator, match="flow_store_damaged"):
            await SqliteDatabase(tmp_path).open()

    async def test_a_record_that_is_not_json_needs_the_operator(self, tmp_path: Path) -> None:  # F44
        database = SqliteDatabase(tmp_path)
        await database.open()
        await SqliteFlowStore(database).insert("t", _flow())
        await database.change("UPDATE flows SET record = ?", (b"{",))
        with pytest.raises(CallTheOperator, match="stored_flow_unreadable"):
            await SqliteFlowStore(database).get("t", "f1")
        await database.close()

    async def test_a_url_that_cannot_be_used_needs_the_operator(self) -> None:  # F44
        with pytest.raises(CallTheOperator, match="flow_store_misconfigured"):
            await MongoDatabase("http://127.0.0.1").open()


@pytest.mark.parametrize(
    ("path", "name"),
    [("/staging", "staging"), ("/staging?w=1", "staging"), ("", "flow_engine"), ("/admin", "flow_engine")],
)
async def test_the_url_names_the_database(mongo_url: str, path: str, name: str) -> None:  # F42
    named, known = MongoDatabase(mongo_url + path), MongoDatabase(mongo_url, database_name=name)
    tenant = uuid.uuid4().hex
    await named.open()
    await known.open()
    assert await MongoFlowStore(named).insert(tenant, _flow())
    assert await MongoFlowStore(known).get(tenant, "f1") == _flow()
    await named.close()
    await known.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("collects_forgotten_sockets")
class TestAMongodbThatIsAway:
    async def test_no_mongodb_at_the_start_is_retry_later(self) -> None:  # F44
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"mongodb://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RetryLater, match="flow_store_unavailable") as away:
            await MongoDatabase(url, server_selection_ms=100).open()
        assert "Connect call failed" in away.value.reason  # F46
        assert "Topology" not in away.value.reason

    async def test_a_mongodb_that_goes_away_is_retry_later(
        self, start_mongo: Callable[[], Server]
    ) -> None:  # F44
        server = start_mongo()
        database = MongoDatabase(server.url, server_selection_ms=100)
        await database.open()
        assert await MongoFlowStore(database).insert("t", _flow())
        server.stop()
        for use in (
            MongoFlowStore(database).get("t", "f1"),
            MongoFlowStore(database).insert("t", _flow("f2")),
        ):
            with pytest.raises(RetryLater, match="flow_store_unavailable"):
                await use
        with pytest.raises(RetryLater, match="flow_store_unavailable"):
            await database.ready()
        await database.close()
