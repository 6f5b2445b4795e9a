"""`make proof-rollout`: a tag split 90/10 over 10,000 conversations of two processes on one Redis (shown 4).

1. The smaller side gets its share within the 95 % interval of so many.
2. Another process on an empty Redis puts the same people on the same sides, whatever their conversations are
   called.
3. Of those who end, each counts once, though every second job is done twice.
4. A version that refuses everybody is rolled back once, by whichever process notices; from then on nobody new
   gets it.

Prints what was found; ends with 1 when something does not hold.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.runtime.commands import NewContact
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.outcomes import share
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.versions_in_use import VersionChoice
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from memory.connection import connect
from service.stores import FlowDatabase
from tests.api.harness import Scene, clinic, open_scene
from tests.flow_engine.listening.test_mining import dependencies_of, working_on
from tests.proof.fleet import redis_server

CONVERSATIONS, ENDED, AGAIN, AT_ONCE = 10_000, 1_500, 1_000, 50
WORSE, BASE = "version-2", "version-1"


@dataclass
class Process:
    """One of several on the same stores; its conversations are started as the API does it."""

    scene: Scene
    flow_id: str

    def __post_init__(self) -> None:
        dependencies = dependencies_of(self.scene)
        self.conversations = Conversations(Transactor(dependencies), dependencies)
        self.work = working_on(self.scene)

    async def started(self, name: str, person: str) -> str:
        """The version that the person got."""
        ref = ConversationRef("default", name)
        contact = NewContact("call", "phone", {}, {"personId": person}, None)
        await self.conversations.new_contact(ref, contact, VersionChoice(flow_id=self.flow_id, tag="prod"))
        session = (await self.scene.memory.conversations.load(ref)).session
        assert session is not None
        return session.version_id

    async def ended(self, name: str, *, refused: bool, twice: bool) -> None:
        ref = ConversationRef("default", name)
        if refused:
            await self.conversations.change_task(ref, "call", "nowhere")
        await self.conversations.end_contact(ref, "call", None)
        for _ in range(1 + twice):
            await self.work.conclude(Job("conclude", ref, "call"))


@asynccontextmanager
async def process(folder: Path, url: str, flow_id: str = "") -> AsyncGenerator[Process]:
    database = SqliteDatabase(folder)
    flows = FlowDatabase(database, SqliteFlowStore(database), SqliteVersionStore(database))
    async with open_scene(memory=connect(url), flows=flows) as scene:
        if not flow_id:
            await scene.publish(clinic())
            flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
            await scene.save(flow_id, clinic(_id=WORSE), tag="next")
        yield Process(scene, flow_id)


async def split(on: Process, **guard: Any) -> None:
    sides = [{"versionId": BASE, "weight": 90}, {"versionId": WORSE, "weight": 10}]
    url = f"/v1/flows/{on.flow_id}/tags/prod"
    reply = await on.scene.http.put(url, json={"split": sides, "updatedBy": "ada", **guard})
    assert reply.status_code == 200, reply.text


async def at_once(works: Iterable[Any]) -> list[Any]:
    """So many at a time: their results in order."""
    found, waiting = list[Any](), list(works)
    while waiting:
        found += await asyncio.gather(*waiting[:AT_ONCE])
        del waiting[:AT_ONCE]
    return found


async def rollout(folder: Path) -> dict[str, bool]:
    """What was to be shown, and whether it holds."""
    holds: dict[str, bool] = {}
    async with (
        redis_server() as redis,
        process(folder, redis.url) as one,
        process(folder, redis.url, one.flow_id) as other,
    ):
        await split(one)
        people = [f"person-{number}" for number in range(CONVERSATIONS)]
        first = await at_once((one, other)[n % 2].started(f"a{n}", person) for n, person in enumerate(people))
        estimate = share(Counter(first)[WORSE], CONVERSATIONS)
        holds[f"10 % of {CONVERSATIONS:,} conversations: {estimate}"] = (
            (estimate["low"] or 1) <= 0.1 <= (estimate["high"] or 0)
        )
        await at_once(
            (one, other)[n % 2].ended(f"a{n}", refused=False, twice=n % 2 == 0) for n in range(ENDED)
        )
        url = f"/v1/flows/{one.flow_id}/tags/prod/outcomes"
        told = (await one.scene.http.get(url)).json()
        counted = {side["versionId"]: side["conversations"] for side in told["versions"]}
        holds[f"each conversation counts once: {counted}"] = counted == Counter(first[:ENDED])
        await split(one, guard={"metric": "refused", "worseBy": 0.2, "minimum": 40})
        mine = [n for n in range(ENDED, 2 * ENDED) if first[n] == WORSE]
        for n in mine:
            await (one, other)[n % 2].ended(f"a{n}", refused=True, twice=False)
        rolled_back = (await other.scene.http.get(url)).json()["rolledBack"] or {}
        events = [
            event
            for n in mine
            for event in await one.scene.events(f"a{n}")
            if event["body"]["subtype"] == "rollout_rolled_back"
        ]
        holds[f"rolled back once: {rolled_back}, {len(events)} event"] = (
            rolled_back.get("versionId") == WORSE and len(events) == 1
        )
        after = await at_once(other.started(f"b{n}", people[n]) for n in range(AGAIN))
        holds["new conversations get the base only"] = set(after) == {BASE}
        await split(one)
    async with redis_server() as empty, process(folder, empty.url, one.flow_id) as later:
        again = await at_once(later.started(f"c{n}", people[n]) for n in range(AGAIN))
        holds["the same people are on the same sides on an empty Redis"] = again == first[:AGAIN]
    return holds


if __name__ == "__main__":
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(rollout(Path(name)))
    for what, held in found.items():
        print(f"{'holds ' if held else 'BROKEN'}  {what}")
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(0 if all(found.values()) else 1)
