"""Saves versions of one flow over `latest`, again and again, as a process of its own.

Arguments: `sqlite` or `mongodb`, the folder or the URL, the database's name (MongoDB), the flow's id, the
process's name, and how many saves to do. Waits for a line on stdin, so that all start at once; prints the
acknowledged saves as a JSON list of `[parent version id, version id]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from flow_engine.errors import ReloadAndDecide
from flow_engine.idempotency import FinalReply
from flow_engine.ports.flow_store import VersionEntry
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.publishing import LATEST, find_tag
from flows.mongo_store import MongoDatabase, MongoFlowStore, MongoVersionStore
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


async def save_over_latest(
    flow_service: FlowService, flow_id: str, who: str, saves: int
) -> list[tuple[str, str]]:
    done: list[tuple[str, str]] = []
    while len(done) < saves:
        parent = find_tag(await flow_service.get_flow("t", flow_id), LATEST).version_id
        version_id = f"{who}-{uuid.uuid4().hex}"
        entry = VersionEntry(version_id, False, ("phone",), "hash", who, datetime.now(UTC))
        try:
            await flow_service.save_version(
                "t",
                flow_id,
                document=json.dumps({"_id": version_id}).encode(),
                entry=entry,
                parent_version_id=parent,
                tag=None,
                respond=lambda _: FinalReply(201, b""),
            )
        except ReloadAndDecide:
            continue
        done.append((parent, version_id))
        await asyncio.sleep(0.002)  # leaves the flow to the other process, so that the two do meet
    return done


async def main(kind: str, place: str, database_name: str, flow_id: str, who: str, saves: str) -> None:
    if kind == "sqlite":
        database = SqliteDatabase(Path(place))
        flows, versions = SqliteFlowStore(database), SqliteVersionStore(database)
    else:
        database = MongoDatabase(place, database_name=database_name)
        flows, versions = MongoFlowStore(database), MongoVersionStore(database)
    await database.open()
    flow_service = FlowService(
        flows=flows, versions=versions, clock=WallClock(), new_id=lambda: uuid.uuid4().hex
    )
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(await save_over_latest(flow_service, flow_id, who, int(saves))), flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
