"""A whole service in process: real parts, a clock that stands still, and scripted outbound calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import httpx
import orjson
from fakeredis import FakeServer
from fastapi import FastAPI

from adapters.outbound.fake import Answer, ScriptedOutbound
from api.auth import Authenticator, Keyring, LocalOnly
from flow_engine.ports.models import LanguageModel, NoModel
from flow_engine.testing.simulations import SimulationLimits
from flow_engine.testing.tries import TryLimits
from flows.sqlite_store import MEMORY, SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from memory.connection import RedisMemory
from memory.in_process import embedded
from service.settings import Settings
from service.stores import FlowDatabase
from service.wiring import Service, ServiceDependencies, assemble
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version

T0 = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)  # a Thursday
BASE_URL = "http://127.0.0.1:8080"
HANDLER = "https://hooks.example.com/close"
CALL = {"contactId": "call-1", "conversationId": "conv-1"}


class SettableClock:
    """Implements `Clock`; time passes only by `advance`."""

    def __init__(self, at: datetime = T0) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def advance(self, **duration: float) -> None:
        self.at += timedelta(**duration)


@dataclass
class Scene:
    """A service that serves, and everything around it that a test may look at or move."""

    app: FastAPI
    http: httpx.AsyncClient
    clock: SettableClock
    outbound: ScriptedOutbound
    memory: RedisMemory
    flows: FlowDatabase
    service: Service

    async def work(self) -> int:
        """Do the background work that is due, and what it leaves to do by now; how many jobs that were."""
        done, jobs = 0, self.service.jobs[0]
        while claims := await jobs.schedule.claim(self.clock.now(), at_most=50, lease_s=60.0):
            for claim in claims:
                await jobs.run(claim)
            done += len(claims)
        return done

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return await self.http.post(
            path,
            content=orjson.dumps(body),
            headers={name.replace("_", "-"): v for name, v in headers.items()},
        )

    async def publish(
        self, document: JsonObject, *, tag: str | None = None, flow_name: str = "Clinic"
    ) -> str:
        """Save a version under a flow of its own and return its id."""
        flow = {"name": flow_name, "campaignId": "campaign-1", "updatedBy": "ada"}
        flow_id = (await self.post("/v1/flows", flow)).json()["id"]
        return await self.save(flow_id, document, tag=tag)

    async def save(self, flow_id: str, document: JsonObject, *, tag: str | None = None) -> str:
        own = {key: value for key, value in document.items() if key != "conversationalFlowId"}
        query = "" if tag is None else f"?tag={tag}"
        reply = await self.post(f"/v1/flows/{flow_id}/versions{query}", own)
        assert reply.status_code == 201, reply.text
        return reply.json()["versionId"]

    async def contact(self, **changes: Any) -> httpx.Response:
        body = {**CALL, "conversationalFlowVersionId": "version-1", "channel": "phone", **changes}
        return await self.post("/v1/handle-new-contact", {k: v for k, v in body.items() if v is not ...})

    async def started(self, **changes: Any) -> Any:
        reply = await self.contact(**changes)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def change(self, task: str, **changes: Any) -> httpx.Response:
        return await self.post("/v1/change-task", {**CALL, "task": task, **changes})

    async def changed(self, task: str, **changes: Any) -> Any:
        reply = await self.change(task, **changes)
        assert reply.status_code == 200, reply.text
        assert reply.json()["result"] is True, reply.text
        return reply.json()

    async def end(self, **changes: Any) -> httpx.Response:
        return await self.post("/v1/handle-end-contact", {**CALL, **changes})

    async def human(self, outcome: str, **changes: Any) -> httpx.Response:
        return await self.post("/v1/handle-human-task", {**CALL, "outcome": outcome, **changes})

    async def write(self, *entries: JsonObject, conversation: str = "conv-1") -> httpx.Response:
        return await self.http.put(f"/v1/memory/{conversation}", content=orjson.dumps(entries))

    async def written(self, *entries: JsonObject, conversation: str = "conv-1") -> Any:
        reply = await self.write(*entries, conversation=conversation)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def prompt(self, conversation: str = "conv-1") -> Any:
        reply = await self.http.get(f"/v1/prompt/{conversation}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def say(self, message_id: str, body: str, **changes: Any) -> httpx.Response:
        said = {"messageId": message_id, "ts": "2026-01-15T09:31:00Z", "type": "message", "src": "user"}
        return await self.post("/v1/handle-utterance", {**CALL, **said, "body": body, **changes})

    async def events(self, conversation: str = "conv-1", tenant: str = "default") -> list[Any]:
        """The outbox of a conversation, oldest first."""
        entries = await self.memory.driver.client.xrange(f"{{{tenant}:{conversation}}}::outbox")
        return [orjson.loads(fields[b"event"]) for _, fields in entries]


def keyring_of(text: str | bytes) -> Keyring:
    """A keys file whose keys may be short and easy to read: they stand in it by their SHA-256."""
    entries = orjson.loads(text)["keys"]
    hashed = [{**e, "sha256": sha256(e["key"].encode()).hexdigest()} for e in entries]
    return Keyring.parse(orjson.dumps({"keys": [{k: v for k, v in e.items() if k != "key"} for e in hashed]}))


def sqlite_in_memory() -> FlowDatabase:
    database = SqliteDatabase(MEMORY)
    return FlowDatabase(database, SqliteFlowStore(database), SqliteVersionStore(database))


@asynccontextmanager
async def open_scene(
    *documents: JsonObject,
    authenticator: Authenticator | None = None,
    answers: Mapping[str, Sequence[Answer]] | None = None,
    server: FakeServer | None = None,
    memory: RedisMemory | None = None,
    flows: FlowDatabase | None = None,
    clock: SettableClock | None = None,
    model: LanguageModel | None = None,
    try_limits: TryLimits | None = None,
    simulation_limits: SimulationLimits | None = None,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """A service with `documents` published. Give two scenes one `server` to let them share a Redis, or
    `memory` to be on a real one."""
    dependencies = ServiceDependencies(
        clock=clock or SettableClock(),
        outbound=ScriptedOutbound(answers or {}),
        memory=memory or embedded(server),
        database=flows or sqlite_in_memory(),
        model=model or NoModel(),
        try_limits=try_limits or TryLimits(),
        simulation_limits=simulation_limits or SimulationLimits(),
    )
    given = Settings(**{"samples": False, **settings})
    service = assemble(given, dependencies, authenticator or LocalOnly(), base_url=BASE_URL)
    transport = httpx.ASGITransport(app=service.app)
    async with service.opened(), httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
        scene = Scene(
            service.app,
            http,
            dependencies.clock,  # type: ignore[arg-type]
            dependencies.outbound,  # type: ignore[arg-type]
            dependencies.memory,
            dependencies.database,
            service,
        )
        for document in documents:
            await scene.publish(document)
        yield scene


# --- documents --------------------------------------------------------------------------------


def entry(var: str, value: object, **changes: Any) -> JsonObject:
    """One entry of a tool's batch."""
    return {"updatedBy": "findVisit", "contactId": "call-1", "varId": var, "value": value, **changes}


def needs(*variable_ids: str, required: bool = True) -> list[JsonObject]:
    return [{"variableId": variable_id, "required": required} for variable_id in variable_ids]


def multi_contact(**changes: Any) -> JsonObject:
    return {"multiContact": True, "conversationTimeLimit": 7200, "customHandler": HANDLER, **changes}


def clinic(**changes: Any) -> JsonObject:
    """A version with a task of each type, guards of each kind, and a task on the phone only.

    reception (AIO) → Visita cardiologica (AIO, needs the string and the flag), operator (HUM),
    supervised (AIS), written (AIO, on the chat only); each of them leads back to reception.
    """
    back = {"connectedTasks": ["reception"]}
    tasks = [
        aio_task(connectedTasks=["visit", "operator", "supervised", "written"]),
        aio_task(
            "visit",
            name="Visita Perché",
            description="The caller wants a visit",
            prompt="Ask for {{ $vars.var_string }}; known at the start: {{ $values.var_string }}.",
            transitionParameters=[*needs("var_string", "var_boolean"), *needs("var_date", required=False)],
            **back,
        ),
        hum_task("operator", routingParameters={"timeout": 60, "agentSkills": ["radiology"]}, **back),
        hum_task("supervised", type="AIS", **back),
        aio_task("written", channels=["chat"], **back),
        aio_task("island", connectedTasks=["reception"]),
    ]
    return minimal_version(**{"tasks": tasks, **changes})


def over_many_contacts(**changes: Any) -> JsonObject:
    """The same version over several contacts; every task has the closure configuration."""
    document = clinic(closureConfig=multi_contact(), **changes)
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
    return document
