"""Two processes that save versions of one flow at the same time (F6, F7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pymongo import AsyncMongoClient

from flow_engine.ports.flow_store import FlowRecord, StoredVersion, TagEntry, VersionEntry
from flows.mongo_store import MongoDatabase, MongoFlowStore, MongoVersionStore
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SAVES = 20
T0 = datetime(2026, 3, 1, tzinfo=UTC)
SERVER_VARIABLE = "FLOW_ENGINE_TEST_MONGO_URL"
PLACES = ["sqlite file", "mongodb wire"]
if SERVER_VARIABLE in os.environ:
    PLACES.append("mongodb server")


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("saving_process.py")), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def _run_two(*where: str) -> list[list[tuple[str, str]]]:
    """The acknowledged saves of two processes, each as (parent, version)."""
    processes = [_start(*where, "f1", who, str(SAVES)) for who in ("anna", "bruno")]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=10)[1]
        answers: list[list[tuple[str, str]]] = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            answers.append([(parent, version) for parent, version in json.loads(output)])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return answers


@pytest.mark.parametrize("place", PLACES)
async def test_exactly_one_of_two_processes_wins_latest_over_each_parent(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:  # F6, F7
    if place == "sqlite file":
        where = ("sqlite", str(tmp_path), "")
        database = SqliteDatabase(tmp_path)
        flows, versions = SqliteFlowStore(database), SqliteVersionStore(database)
    else:
        url = request.getfixturevalue("mongo_url") if place == "mongodb wire" else os.environ[SERVER_VARIABLE]
        where = ("mongodb", url, f"processes_{uuid.uuid4().hex}")
        database = MongoDatabase(url, database_name=where[2])
        flows, versions = MongoFlowStore(database), MongoVersionStore(database)
    first = VersionEntry("v0", False, ("phone",), "hash", "anna", T0)
    latest = TagEntry("latest", "v0", "anna", T0)
    await database.open()
    await versions.insert("t", StoredVersion("v0", "f1", b"{}"))
    await flows.insert(
        "t",
        FlowRecord(
            "f1", "n", "c", "1.0.0", "anna", T0, versions=(first,), tags=(latest,), tag_moves=(latest,)
        ),
    )

    of_anna, of_bruno = _run_two(*where)

    flow = await flows.get("t", "f1")
    assert flow is not None
    acknowledged = of_anna + of_bruno
    parents = [parent for parent, _ in acknowledged]
    assert len(set(parents)) == len(parents) == 2 * SAVES
    listed = [entry.version_id for entry in flow.versions]
    assert listed == ["v0", *sorted((version for _, version in acknowledged), key=listed.index)]
    assert [entry.parent_version_id for entry in flow.versions] == [None, *listed[:-1]]
    assert [move.version_id for move in flow.tag_moves] == listed
    assert [tag.version_id for tag in flow.tags] == listed[-1:]
    assert flow.revision == 1 + 2 * SAVES
    for version_id in listed:
        assert await versions.get("t", version_id) is not None
    await database.close()
    if place != "sqlite file":
        async with AsyncMongoClient[dict[str, object]](where[1]) as client:
            await client.drop_database(where[2])
